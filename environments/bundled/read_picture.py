"""Read the number on a tile of a picture, which is too small to read before it is enlarged."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from vf.environments.bundled.calculator import answered, correct
from vf.environments.environment import Environment, Observation, Split
from vf.environments.generated import distinct_tasks, split_sizes
from vf.inference.models.scripted_model import Script
from vf.rubrics.penalties import extra_tool_calls, tool_errors
from vf.rubrics.rubric import Rubric
from vf.runtime.errors import ConfigError, ToolError
from vf.runtime.extras import load
from vf.runtime.seeding import derive_seed
from vf.traces.images import Image
from vf.traces.task import Task
from vf.traces.tools import tool

COLOURS = {
    "red": (200, 30, 30),
    "green": (30, 130, 50),
    "blue": (40, 70, 210),
    "yellow": (250, 220, 60),
    "purple": (130, 50, 160),
    "orange": (245, 140, 30),
    "cyan": (90, 220, 230),
    "white": (255, 255, 255),
    "black": (0, 0, 0),
}
TILE = 128  # pixels of an enlarged tile
SHRUNK = 8  # times, before the picture is scaled up again: what is lost is the digits
SHOWN = 32  # pixels of a tile in the picture of all tiles
_STROKE = 5  # pixels of an enlarged tile
# Digits of 3 x 5 dots, from the top row to the bottom one.
_DIGITS = (
    *("111101101101111", "010110010010111", "111001111100111", "111001111001111"),
    *("101101111001001", "111100111001111", "111100111101111", "111001001010010"),
    *("111101111101111", "111101111001111"),
)


class ReadPicture(Environment):
    """Pictures of coloured tiles with a number on each, and a tool that enlarges a tile.

    The question is which number is on the tile of a colour. A model has to see where that tile is,
    enlarge it, and read three digits. Reward: the number is right, less a share for wrong or
    superfluous calls.

    Args:
        size: Tiles in a row, and rows, 1 to 3.
        num_train: Tasks in the train split.
        num_eval: Tasks in the eval split; no picture is in both splits.
        seed: Seed of the tasks.

    Raises:
        ConfigError: If an argument is out of range, or Pillow is not installed.
    """

    system_prompt = (
        "Enlarge a tile with the zoom tool to read its number. End with 'Answer: ' and the number."
    )
    max_turns = 4

    def __init__(
        self, size: int = 3, num_train: int = 500, num_eval: int = 100, seed: int = 0
    ) -> None:
        if not 1 <= size <= 3:
            raise ConfigError(f"read-picture: size must be 1 to 3, got {size}")
        self.size = size
        self.sizes = split_sizes("read-picture", num_train, num_eval)
        self.seed = seed
        self.rubric = Rubric(
            outcome=correct,
            penalties=[extra_tool_calls(0.3, free=1), tool_errors(0.2)],
            metrics=[answered],
        )

    @tool
    def zoom(self, row: int, column: int) -> Image:
        """Enlarge one tile.

        Args:
            row: The tile's row; the top one is 1.
            column: The tile's column; the leftmost is 1.
        """
        if not (1 <= row <= self.size and 1 <= column <= self.size):
            raise ToolError(f"there are {self.size} rows and columns, counted from 1")
        return Image.of(_tile(*self.tiles[(row - 1) * self.size + column - 1]))

    def tasks(self, split: Split) -> Iterator[Task]:
        """Yield distinct pictures; which split a picture is in never changes."""
        drawn = distinct_tasks(
            "read-picture", self._draw, split=split, count=self.sizes[split], seed=self.seed
        )
        for task in drawn:
            task.prompt = self._prompt(task)
            yield task

    def reset(self, task: Task) -> Observation:
        """Draw the tiles."""
        self.tiles = self._tiles(task.id)
        return self.first_messages(task)

    def oracle(self, task: Task) -> Script:
        """Enlarge the tile that is asked for, and answer."""
        row, column = self._tile_of(task)
        return [{"zoom": {"row": row, "column": column}}, f"Answer: {task.answer}"]

    def privileged_context(self, task: Task) -> str:
        """Tell where the tile is, and its number."""
        row, column = self._tile_of(task)
        return f"Solution: the tile is in row {row}, column {column}. Answer: {task.answer}."

    def _draw(self, rng: random.Random) -> Task:
        id = f"picture-{rng.randrange(10**9):09d}"
        colour, number = self._tiles(id)[self._tile_index(id)]
        return Task(id=id, prompt=f"Which number is on the {colour} tile?", answer=number)

    def _prompt(self, task: Task) -> list[dict[str, Any]]:
        picture = Image.of(_picture(self._tiles(task.id), self.size)).to_openai()
        question = {"type": "text", "text": task.prompt}
        return [{"role": "user", "content": [picture, question]}]

    def _tiles(self, id: str) -> list[tuple[str, int]]:
        """Return the colour and the number of each tile, row by row."""
        rng = random.Random(derive_seed("read-picture", id, self.size))
        count = self.size**2
        colours = rng.sample(list(COLOURS), count)
        return list(zip(colours, rng.sample(range(100, 1000), count), strict=True))

    def _tile_index(self, id: str) -> int:
        return derive_seed("read-picture", id, "asked") % self.size**2

    def _tile_of(self, task: Task) -> tuple[int, int]:
        """Return the row and the column of the tile that a task asks for."""
        index = self._tile_index(task.id)
        return index // self.size + 1, index % self.size + 1


def _picture(tiles: list[tuple[str, int]], size: int) -> Any:
    """Return all tiles as one Pillow image, too small for their numbers."""
    whole = load("PIL.Image", "images").new("RGB", (size * TILE, size * TILE))
    for index, (colour, number) in enumerate(tiles):
        whole.paste(_tile(colour, number), (index % size * TILE, index // size * TILE))
    return whole.reduce(SHRUNK).resize((size * SHOWN, size * SHOWN), resample=0)


def _tile(colour: str, number: int) -> Any:
    """Return a tile with its number in the middle as a Pillow image."""
    ink = (0, 0, 0) if sum(COLOURS[colour]) > 380 else (255, 255, 255)
    tile = load("PIL.Image", "images").new("RGB", (TILE, TILE), COLOURS[colour])
    digits = str(number)
    left = (TILE - (4 * len(digits) - 1) * _STROKE) // 2
    top = (TILE - 5 * _STROKE) // 2
    for index, digit in enumerate(digits):
        for dot, inked in enumerate(_DIGITS[int(digit)]):
            if inked == "1":
                x = left + (4 * index + dot % 3) * _STROKE
                y = top + dot // 3 * _STROKE
                tile.paste(ink, (x, y, x + _STROKE, y + _STROKE))
    return tile

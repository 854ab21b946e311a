"""The soak's parts: together they run every slow test, and the gate runs each of them by turns."""

from __future__ import annotations

from pathlib import Path

from soak import PARTS, SLOW, turn

ROOT = Path(__file__).parents[1]


def runs(part: str, file: str) -> bool:
    words = PARTS[part].command.split()
    left_out = [word.removeprefix("--ignore=") for word in words if word.startswith("--ignore=")]
    folders = [word for word in words if word.startswith("tests")]
    return any(file.startswith(f"{folder}/") for folder in folders) and not any(
        file.startswith(f"{folder}/") for folder in left_out
    )


def test_every_test_belongs_to_one_part() -> None:
    files = [path.relative_to(ROOT).as_posix() for path in (ROOT / "tests").rglob("test_*.py")]
    assert len(files) > 100
    assert {file: n for file in files if (n := sum(runs(part, file) for part in SLOW)) != 1} == {}


def test_each_part_has_its_turn() -> None:
    by_turns = {name for name, part in PARTS.items() if part.by_turns}
    assert {turn(second) for second in range(len(by_turns))} == by_turns

"""Draw the tokens of a real rollout over two turns: `python docs/pictures/make_tokens.py`.

The tiny model plays one task of `calculator`. What the engine sampled in the first turn stays as it
is in the second: only the tokens between the two answers are rendered.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from drawing import Drawing

import vf

TITLE = (
    "Tokens are never encoded twice: the second prompt is the first one, its answer, and a bridge"
)
WIDTH, LEFT, ADVANCE, HEIGHT = 960, 20, 7.3, 22
Token = tuple[str, str]  # what it shows, and the class of its box


def main() -> None:
    """Write `tokens.svg`."""
    texts, sampled, turns = rollout()
    begins = len(texts) - texts[::-1].index("user", texts[::-1].index("user") + 1) - 2
    first = [n for n in range(begins, len(texts)) if turns[n] == 0]
    second = [n for n in range(begins, len(texts)) if turns[n] == 1]
    hidden = (f"{begins} tokens: system prompt, tools", "plain")
    turn_1 = [hidden, *((texts[n], "sampled" if sampled[n] else "plain") for n in first)]
    turn_2 = [hidden, *((texts[n], "kept" if sampled[n] else "plain") for n in first)]
    turn_2 += [(texts[n], "sampled" if sampled[n] else "bridge") for n in second]
    height = 128 + _rows(turn_1, None, 0) + _rows(turn_2, None, 0)
    picture = Drawing(WIDTH, height, TITLE)
    picture.text(LEFT, 30, "Turn 1: the chat template renders the prompt", size=15)
    y = 44 + _rows(turn_1, picture, 44)
    picture.text(
        LEFT, y + 26, "Turn 2: the same token ids, and only the bridge is rendered", size=15
    )
    y += 40 + _rows(turn_2, picture, y + 40)
    legend = [
        ("plain", "prompt, loss mask 0"),
        ("sampled", "sampled now, loss mask 1"),
        ("kept", "sampled before: the same ids"),
        ("bridge", "bridge, loss mask 0"),
    ]
    for number, (kind, text) in enumerate(legend):
        x = LEFT + number * 232
        picture.rect(x, y + 12, 18, 14, kind)
        picture.text(x + 26, y + 24, text, kind="note", size=13)
    picture.save("tokens.svg")


def rollout() -> tuple[list[str], list[int], list[int]]:
    """Return text, loss mask and turn of each token of a rollout with one tool call."""
    from transformers import AutoTokenizer

    command = ["vf.trainer.commands.main", "eval", "calculator", "-m", "tiny", "-n", "1"]
    command += ["--temperature", "0", "--args", '{"max_operations": 1}', "-o"]
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "-m", *command, f"{folder}/eval"], check=True)
        (trace,) = vf.TraceStore(next(Path(folder).rglob("traces.jsonl")))
    (branch,) = trace.branches
    tokenizer = AutoTokenizer.from_pretrained(Path(vf.__file__).parent / "inference" / "tiny")
    texts = [tokenizer.decode([token]) for token in branch.token_ids]
    return texts, [*branch.loss_mask], [*branch.turn_index]


def _rows(tokens: list[Token], picture: Drawing | None, top: float) -> float:
    """Draw tokens in rows, if there is a picture; return how high they are."""
    x, y = LEFT, 0.0
    for text, kind in tokens:
        shown = text.replace("\n", "⏎").replace(" ", "·") if len(text) < 20 else text
        width = ADVANCE * len(shown) + 8
        if x + width > WIDTH - LEFT:
            x, y = LEFT, y + HEIGHT + 5
        if picture is not None:
            picture.rect(x, top + y, width, HEIGHT, kind)
            picture.text(x + 4, top + y + 15, shown, kind="mono", size=12)
        x += width + 2
    return y + HEIGHT + 6


if __name__ == "__main__":
    main()

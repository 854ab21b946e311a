"""Every bundled environment, as Gymnasium makes it in these tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

LOCAL = {"sandbox": {"backend": "local", "unsafe_local": True}}
SMALL = {"num_train": 20, "num_eval": 20}
# By name here: the id in Gymnasium, and arguments that keep the tests quick.
BUNDLED: dict[str, tuple[str, dict[str, Any]]] = {
    "calculator": ("vf/Calculator-v0", SMALL),
    "code-contest": ("vf/CodeContest-v0", LOCAL),
    "geo-qa": ("vf/GeoQA-v0", SMALL | {"cities": 100}),
    "guess-number": ("vf/GuessNumber-v0", SMALL),
    "math-python": ("vf/MathPython-v0", LOCAL | SMALL),
    "repo-fix": ("vf/RepoFix-v0", LOCAL | SMALL),
    "reverse-text": ("vf/ReverseText-v0", SMALL),
    "support-desk": ("vf/SupportDesk-v0", SMALL),
    "wiki-qa": ("vf/WikiQA-v0", {}),
}
RIVERS = {"Aldor": "Tavo", "Brenn": "Ursk", "Corval": "Velm", "Dunmere": "Wyr"}


def arguments(name: str, folder: Path) -> dict[str, Any]:
    """Return an environment's arguments; what it reads is written into the folder."""
    return _towns(folder) if name == "wiki-qa" else BUNDLED[name][1]


def _towns(folder: Path) -> dict[str, str]:
    passages = [
        {"id": town, "title": town, "text": f"{town} is a town on the river {river}."}
        for town, river in RIVERS.items()
    ]
    questions = [
        {"id": town, "question": f"On which river lies {town}?", "golden_answers": [river]}
        for town, river in RIVERS.items()
    ]
    return {
        "corpus": _write(folder / "corpus.jsonl", passages),
        "train": _write(folder / "train.jsonl", questions[:3]),
        "eval": _write(folder / "eval.jsonl", questions[3:]),
    }


def _write(path: Path, rows: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)

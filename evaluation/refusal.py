"""The error for a results folder that holds another evaluation, and how to resolve it."""

from __future__ import annotations

import argparse
import difflib
import json
import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from vf.evaluation.eval_config import EvalConfig
from vf.evaluation.fingerprint import FORMAT, without_rubrics
from vf.evaluation.results import Cell, next_of

MOST = 12  # lines about what differs
# Lines about a source of sandboxes, that an environment or one of its tools has.
SANDBOXES = re.compile(r"  environments\.(.+?)\.(?:attributes\.source|tool_settings\[\d+\])\.")
BACKENDS = re.compile(
    SANDBOXES.pattern
    + r'(?:.+\.)?type: "vf\.sandbox\.hosting\.(\w+)_source\.\w+Source" → '
    + r'"vf\.sandbox\.hosting\.(\w+)_source\.\w+Source"'
)
SHOWN = 120  # characters of a value
AROUND = 20  # characters shown before the first that differs, of a long text


def difference_lines(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return a line for each difference that a person wants to know of: settings first, code last.

    The code of what only one of the two uses is left out: it follows from what uses it.
    """
    lines = list(differences(_known_to(now, before), _known_to(before, now)))
    lines = lines or list(differences(before, now))
    if before.get("size") != now.get("size"):  # the digests are of different tasks
        lines = [line for line in lines if not line.startswith("  tasks.")]
    lines = list(_with_backends(lines))
    return sorted(
        map(_in_words, lines), key=lambda line: (".source." in line, "environments." in line)
    )


def _with_backends(lines: Sequence[str]) -> Iterator[str]:
    """Yield one line for an environment with sandboxes of another kind, without their settings."""
    changed = {match[1]: match for line in lines if (match := BACKENDS.match(line))}
    for environment, match in changed.items():
        yield f"  sandboxes of {environment}: {match[2]} → {match[3]}"
    for line in lines:
        source = SANDBOXES.match(line)
        if source is None or source[1] not in changed:
            yield line


def _in_words(line: str) -> str:
    """Return a line about a difference with the name that a user knows, and without digests."""
    where, _, values = line.strip().partition(": ")
    room, _, name = where.partition(".")
    if room == "settings":
        where = name
    elif room == "size":
        _, _, environment = name.partition("tasks.")
        where = f"-n (tasks of {environment})" if environment else f"-r ({name})"
    elif room in ("tasks", "model_files"):
        values = "changed"
    return f"  {where}: {values}"


def _known_to(other: Any, one: Any) -> Any:
    """Return ``one`` without the sources that ``other`` does not have."""
    if not isinstance(one, Mapping) or not isinstance(other, Mapping):
        return one
    shared = {}
    for key, value in one.items():
        there = other.get(key)
        if key == "source" and isinstance(value, Mapping) and isinstance(there, Mapping):
            shared[key] = {name: code for name, code in value.items() if name in there}
        else:  # a setting may be called so, too
            shared[key] = _known_to(there, value)
    return shared


def refusal(
    args: argparse.Namespace,
    path: Path,
    config: EvalConfig,
    before: Mapping[str, Any],
    now: Mapping[str, Any],
) -> str:
    """Return why an evaluation cannot be resumed, and the commands that help.

    Args:
        args: The command line.
        path: The results folder.
        config: The settings.
        before: The measurement in that folder.
        now: The measurement that would be made now.
    """
    return "\n".join(_lines(args, path, config, before, now))


def _lines(
    args: argparse.Namespace,
    path: Path,
    config: EvalConfig,
    before: Mapping[str, Any],
    now: Mapping[str, Any],
) -> Iterator[str]:
    if before.get("format") != FORMAT:
        yield (
            f"{path} was written by another version of vf-rl, which did not record all that a "
            "result depends on (rubric, system prompt, tools, code), so it cannot be resumed: "
            "nothing tells whether these have changed. What it holds stays as it is"
        )
    else:
        yield f"{path} holds another evaluation. What differs (there → now):"
        lines = difference_lines(before, now)
        yield from lines[:MOST]
        if len(lines) > MOST:
            yield f"  and {len(lines) - MOST} more"
    yield _way_out(args, path)
    if before.get("format") == FORMAT and without_rubrics(before) == without_rubrics(now):
        yield "Only the rubric differs. To score the rollouts that are there with the new one:"
        yield from _rescores(path, config, before, now)


def _way_out(args: argparse.Namespace, path: Path) -> str:
    if args.output is not None:
        return "To measure beside it, name a new folder with --output"
    base = path.with_name(path.name.partition("@")[0])
    return f"To measure beside it, in {next_of(base)}, add --fresh"


def _rescores(
    path: Path, config: EvalConfig, before: Mapping[str, Any], now: Mapping[str, Any]
) -> Iterator[str]:
    """Yield a command for each model in each environment whose rubric differs."""
    cells = [
        (entry, Cell(path, entry.name, model.name))
        for entry in config.environments
        if before["environments"][entry.name] != now["environments"][entry.name]
        for model in config.models
    ]
    for entry, cell in cells:
        which = [cell.path.parent.name, cell.path.name] if len(cells) > 1 else []
        output = _unused(path.with_name("-".join([path.name, *which, "rescored"])))
        command = ["vf-rl", "eval", "--rescore", str(cell.store.path)]
        command += ["--rubric", _typed(entry.id)]
        if entry.args:
            command += ["--args", json.dumps(entry.args, ensure_ascii=False)]
        yield f"  {shlex.join([*command, '-o', str(output)])}"


def _typed(id: str) -> str:
    """Return an environment's id as one would type it here: a file's path from this folder."""
    where, colon, name = id.partition(":")
    near = os.path.relpath(where) if where.endswith(".py") else where
    return f"{min(where, near, key=len)}{colon}{name}"


def _unused(name: Path) -> Path:
    number, file = 1, name.with_name(f"{name.name}.jsonl")
    while file.exists():
        number += 1
        file = name.with_name(f"{name.name}-{number}.jsonl")
    return file


def differences(there: Any, now: Any, where: str = "") -> Iterator[str]:
    """Yield a line for each value that differs between two nested ones.

    Args:
        there: The earlier measurement.
        now: The measurement that would be made now.
        where: The name of the value, for the lines.
    """
    if isinstance(there, Mapping) and isinstance(now, Mapping):
        for key in sorted({*there, *now}, key=str):
            name = f"{where}.{key}" if where else str(key)
            yield from differences(there.get(key), now.get(key), name)
    elif isinstance(there, list) and isinstance(now, list) and len(there) == len(now):
        for index, (one, other) in enumerate(zip(there, now, strict=True)):
            yield from differences(one, other, f"{where}[{index}]")
    elif isinstance(there, str) and isinstance(now, str) and "\n" in there + now:
        yield from _line_differences(there.splitlines(), now.splitlines(), where)
    elif there != now:
        yield f"  {where}: {_both(there, now)}"


def _line_differences(there: list[str], now: list[str], where: str) -> Iterator[str]:
    """Yield the first lines of two texts that differ, and how many more do."""
    matcher = difflib.SequenceMatcher(None, there, now, autojunk=False)
    changed = [(a, b, c, d) for kind, a, b, c, d in matcher.get_opcodes() if kind != "equal"]
    if not changed:
        return
    a, b, c, d = changed[0]
    one, other = ("\n".join(part).strip() or None for part in (there[a:b], now[c:d]))
    rest = f" (and {len(changed) - 1} more)" if len(changed) > 1 else ""
    yield f"  {where}, line {c + 1}: {_both(one, other)}{rest}"


def _both(there: Any, now: Any) -> str:
    one, other = _text(there), _text(now)
    # Of two long values, from where they begin to differ.
    same = next((n for n, (x, y) in enumerate(zip(one, other, strict=False)) if x != y), 0)
    start = max(0, same - AROUND) if max(len(one), len(other)) > SHOWN else 0
    return f"{_short(one, start)} → {_short(other, start)}"


def _text(value: Any) -> str:
    return "(none)" if value is None else json.dumps(value, ensure_ascii=False)


def _short(text: str, start: int) -> str:
    start = 0 if len(text) <= SHOWN else start
    cut = text[start : start + SHOWN]
    return ("…" if start else "") + cut + ("…" if start + SHOWN < len(text) else "")

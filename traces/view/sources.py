"""Which files hold traces, and reading them whatever state they are in."""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from vf.runtime.errors import ConfigError, did_you_mean
from vf.runtime.parse import parse_json, parse_toml
from vf.traces.export.openai_chat import read_chat
from vf.traces.export.parquet import ENDING, read_parquet
from vf.traces.trace import Trace, first_problem

MAX_LINE_BYTES = 256 << 20  # a longer line is counted, never held in memory

Split = Literal["train", "eval", ""]

NEEDED = (
    "Name a traces file, a run's folder (runs/NAME) or a results folder of vf-rl eval "
    "(evals/ENV-MODEL)"
)
_LOOKED_AT = 100  # lines of a file, to see whether it holds any trace
_NOT_TRACES = {"metrics.jsonl"}
_OF_TRACES = {"task", "prompt_messages", "tool_events"}  # fields that no other format has together
_EVALUATION = re.compile(r"eval-(\d+)")  # of a training run, by the steps before it


@dataclass(frozen=True, slots=True)
class Source:
    """A file of traces.

    Attributes:
        path: Where it is.
        models: The folder's models, whose tokenizers made the token ids, by the names that an
            evaluation gave them; the model of a training run is under ``""``.
    """

    path: Path
    models: Mapping[str, str]

    def model_of(self, trace: Trace) -> str:
        """Return what the model of a trace is called, or ``""`` if nothing says so."""
        evaluation = trace.info.get("eval")
        name = evaluation.get("model") if isinstance(evaluation, dict) else None
        return name[:200] if isinstance(name, str) else self.models.get("", "")

    @property
    def run(self) -> str:
        """The folder of the run or the results that the file is of."""
        inside = [folder for folder in self.path.parents if folder.name == "traces"]
        return str(inside[0].parent if inside else self.path.parent)

    def place_of(self, trace: Trace) -> tuple[Split, int | None]:
        """Return whether a trace is of training or of an evaluation, and the training step.

        The step of an evaluation is the number of training steps before it. ``""`` and None stand
        for what nothing says.
        """
        if trace.origin is not None:
            return "train", trace.origin.step
        if evaluation := _EVALUATION.fullmatch(self.path.stem):
            return "eval", int(evaluation[1])
        return ("eval" if isinstance(trace.info.get("eval"), dict) else ""), None

    def model_behind(self, name: str) -> str:
        """Return the model that an evaluation calls so; the name itself if it says no more."""
        return self.models.get(name, name)


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A line that is not a trace.

    Attributes:
        line: Its number in the file, from 1.
        why: What is wrong with it.
        torn: Whether it is the beginning of an object at the end of the file.
    """

    line: int
    why: str
    torn: bool = False


def find_sources(paths: Sequence[Path]) -> list[Source]:
    """Return the traces files that files, run folders and results folders stand for.

    A run folder stands for its ``traces/*.jsonl``; any other folder for its own ``*.jsonl``, or,
    where it has none, for the traces files and run folders somewhere below it. What was put away
    because it was retried (``superseded-N``, ``failed``) is left out unless it is named. A file is
    named once, in whatever way it was reached.

    Raises:
        ConfigError: If a path does not exist, or a folder has no traces file.
    """
    by_file: dict[Path, Source] = {}
    for path in paths:
        for file in _files(path):
            by_file.setdefault(file.resolve(), Source(file, _models_near(file)))
    return list(by_file.values())


def read(
    source: Source, advance: Callable[[int], None] | None = None
) -> Iterator[Trace | Unreadable]:
    """Yield what the file's lines hold, one line in memory at a time.

    Empty lines are left out. A JSON object that is no trace but has OpenAI chat ``messages`` is
    shown as a trace of them, marked with ``info["foreign"]``. A Parquet file is read as it was
    exported.

    Args:
        source: The file.
        advance: Told the number of bytes of every line that was read.

    Raises:
        ConfigError: If the file cannot be opened, or is Parquet that was not exported here.
    """
    if source.path.suffix == ENDING:
        yield from read_parquet(source.path)
        if advance is not None:
            advance(source.path.stat().st_size)
        return
    try:
        file = source.path.open("rb")
    except OSError as error:
        raise ConfigError(f"cannot read {source.path}: {error.strerror}") from error
    with file:
        number = 0
        while line := file.readline(MAX_LINE_BYTES):
            number += 1
            size = len(line)
            if number == 1:  # Windows editors add a mark
                line = line.removeprefix(codecs.BOM_UTF8)
            if size == MAX_LINE_BYTES and not line.endswith(b"\n"):
                while (rest := file.readline(MAX_LINE_BYTES)) and not rest.endswith(b"\n"):
                    size += len(rest)
                size += len(rest)
                yield Unreadable(number, f"longer than {MAX_LINE_BYTES >> 20} MiB")
            elif line.strip():
                record = _parse(line, number)
                if isinstance(record, Trace) and not record.info.get("foreign"):
                    record.find_images(source.path.parent)
                yield record
            if advance is not None:
                advance(size)


def refuse_foreign(sources: Sequence[Source]) -> None:
    """See from their first lines that not all files hold something else than traces.

    An empty file, and one whose only line is being written, may hold traces later.

    Raises:
        ConfigError: If none of them holds a trace; the message says what the first holds.
    """
    complaint = ""
    for source in sources:
        records = list(islice(read(source), _LOOKED_AT))
        first = records[0] if records else None
        if not isinstance(first, Unreadable) or any(isinstance(r, Trace) for r in records):
            return
        if first.torn:
            return
        run = source.path.parent
        inside = f" It belongs to a run: name {run}." if (run / "metrics.jsonl").is_file() else ""
        complaint = complaint or (
            f"{source.path} does not hold traces: line {first.line}: {first.why}.{inside}"
        )
    if complaint:
        raise ConfigError(f"{complaint} {NEEDED}")


def _parse(line: bytes, number: int) -> Trace | Unreadable:
    try:
        return Trace.from_json(line)
    except ValueError as error:
        problem = error
    try:
        raw = parse_json(line)
    except ValueError:
        torn = "" if line.endswith(b"\n") else ", and the file ends in the middle of it"
        return Unreadable(number, f"not JSON{torn}", bool(torn) and line.startswith(b"{"))
    # A trace with something wrong in it has messages, too, and is no conversation of others.
    chat = None if isinstance(raw, dict) and raw.keys() >= _OF_TRACES else read_chat(raw, number)
    return chat or Unreadable(number, f"not a trace: {first_problem(problem)}")


def _files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    if not path.is_dir():
        names = [entry.name for entry in path.parent.iterdir()] if path.parent.is_dir() else []
        raise ConfigError(f"there is no {path}.{did_you_mean(path.name, names)}")
    inside = path / "traces"
    own = inside.glob("*.jsonl") if inside.is_dir() else path.glob("*.jsonl")
    below = (*path.rglob("traces/*.jsonl"), *path.rglob("traces.jsonl"))
    for candidates in (own, below):
        files = {
            file
            for file in candidates
            if file.name not in _NOT_TRACES
            and not any(map(_put_away, file.relative_to(path).parts[:-1]))
        }
        if files:
            return sorted(files)
    raise ConfigError(f"there is no traces file (*.jsonl) in {path}. {NEEDED}")


def _put_away(folder: str) -> bool:
    return folder == "failed" or folder.startswith("superseded-")


def _models_near(file: Path) -> dict[str, str]:
    """Return the models of the nearest config, in the file's folder or the three above it."""
    for folder in file.resolve().parents[:4]:
        run, evaluation = folder / "config.toml", folder / "config.json"
        try:
            if run.is_file():
                model = parse_toml(run.read_text(encoding="utf-8-sig")).get("model")
                return {"": model} if isinstance(model, str) else {}
            if evaluation.is_file():
                return dict(_named(parse_json(evaluation.read_text(encoding="utf-8"))))
        except (OSError, ValueError, RecursionError):
            return {}
    return {}


def _named(config: Any) -> Iterator[tuple[str, str]]:
    """Yield the name and the model of every table with both, wherever it is in the config."""
    if isinstance(config, dict):
        name, model = config.get("name"), config.get("model")
        if isinstance(name, str) and isinstance(model, str):
            yield name, model
    if isinstance(config, (dict, list)):
        for entry in config.values() if isinstance(config, dict) else config:
            yield from _named(entry)

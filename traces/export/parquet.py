"""Traces as Parquet: one row each, in a fixed schema, and read back equal.

docs/viewing.md describes the columns. What has no fixed shape (a task's answer and info, the tools'
schemas, the trace's info) is JSON text, in columns whose names end with ``_json``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self

import pydantic_core

from vf.runtime.errors import ConfigError
from vf.runtime.extras import load
from vf.traces.images import Image, by_reference
from vf.traces.trace import Trace, trace_adapter

ENDING = ".parquet"
GROUP_ROWS, GROUP_BYTES = 1024, 32 << 20  # at which a row group is written
# At which rows become columns. One row at a time takes eight times as long.
BATCH_ROWS, BATCH_BYTES = 64, 8 << 20
TOKEN_BYTES = 64  # of a row, about, for each of its tokens
_MARK, _VERSION = b"vf.traces", b"1"
_PARTS = ("penalties", "gates", "parts")


def schema() -> Any:
    """Return the ``pyarrow.Schema`` of the file.

    Raises:
        ConfigError: If pyarrow is not installed.
    """
    pa, _ = _pyarrow()
    text, i64, f64, flag = pa.string(), pa.int64(), pa.float64(), pa.bool_()

    def rows(**columns: Any) -> Any:
        return pa.list_(pa.struct(list(columns.items())))

    call = pa.struct([("name", text), ("arguments", text)])
    calls = rows(id=text, type=text, function=call, malformed=text)
    messages = rows(
        role=text,
        content=text,
        reasoning_content=text,
        tool_calls=calls,
        tool_call_id=text,
        name=text,
        images=rows(sha256=text, media_type=text, width=i64, height=i64, at=i64),
    )
    indices = pa.list_(i64)
    columns = {
        "id": text,
        "environment": text,
        "model": text,
        "task_id": text,
        "prompt": text,
        "prompt_json": text,
        "answer_json": text,
        "task_info_json": text,
        "seed": i64,
        "messages": messages,
        "prompt_messages": i64,
        "tools_json": text,
        "reward": f64,
        "outcome": f64,
        "components": rows(kind=text, name=text, value=f64),
        "metrics": rows(name=text, value=f64),
        "scored": flag,
        "stop_reason": text,
        "error": pa.struct([(f, text) for f in ("boundary", "type", "message", "traceback")]),
        "num_turns": i64,
        "num_tokens": i64,
        "num_sampled": i64,
        "turns": rows(prompt_tokens=i64, completion_tokens=i64, finish_reason=text, seconds=f64),
        "tool_events": rows(turn=i64, call_id=text, name=text, kind=text, detail=text, seconds=f64),
        "step_rewards": pa.list_(f64),
        "branches": rows(
            token_ids=pa.list_(i64),
            loss_mask=pa.list_(pa.int8()),
            logprobs=pa.list_(f64),
            turn_index=pa.list_(i64),
            weight_version=pa.list_(i64),
            experts=pa.list_(pa.binary()),
            supports=pa.list_(pa.list_(i64)),
            images=rows(name=text, at=i64),
        ),
        "forks": rows(turn=i64, reason=text, kind=text),
        "lineages": rows(
            messages=messages,
            prompt_messages=i64,
            tools_json=text,
            branches=indices,
            turns=indices,
            answers=indices,
            parent=i64,
            role=text,
        ),
        "roles": rows(
            name=text,
            player=text,
            trained=flag,
            reward=f64,
            answers=i64,
            prompt_tokens=i64,
            completion_tokens=i64,
        ),
        "timing": rows(phase=text, seconds=f64),
        "info_json": text,
        "origin": pa.struct([(name, i64) for name in ("step", "group", "rollout")]),
        "images": rows(name=text, data=pa.binary()),
    }
    return pa.schema(list(columns.items()), metadata={_MARK: _VERSION})


class ParquetTraces:
    """A Parquet file of traces that is being written, a row group at a time.

    Args:
        path: The file; it is replaced.
        written: Called with each trace once it has a row.
        unfit: Called with a trace that has none, and why: the schema has no room for something in
            it, like an id beyond 64 bits.

    Raises:
        ConfigError: If pyarrow is not installed.
    """

    def __init__(
        self,
        path: Path,
        *,
        written: Callable[[Trace], None] = lambda trace: None,
        unfit: Callable[[Trace, str], None] = lambda trace, why: None,
    ) -> None:
        self._pa, parquet = _pyarrow()
        self._schema = schema()
        self._writer = parquet.ParquetWriter(path, self._schema, compression="zstd")
        self._written, self._unfit = written, unfit
        self._rows: list[tuple[Trace, dict[str, Any]]] = []
        self._row_bytes = 0  # about
        self._batches: list[Any] = []

    def append(self, trace: Trace, model: str) -> None:
        """Add a row.

        Args:
            trace: The trace.
            model: The model whose tokenizer made its token ids; may be empty.

        Raises:
            ConfigError: If the file of an image is missing or damaged.
        """
        row = _row(trace, model)
        self._rows.append((trace, row))
        self._row_bytes += TOKEN_BYTES * row["num_tokens"]
        self._row_bytes += sum(len(image["data"]) for image in row["images"])
        if len(self._rows) >= BATCH_ROWS or self._row_bytes >= BATCH_BYTES:
            self._convert()

    def _convert(self) -> None:
        """Make a batch of the rows, or where that fails, of those that fit."""
        rows, self._rows, self._row_bytes = self._rows, [], 0
        try:
            if rows:
                self._batch(rows)
        except _Unfit:
            for trace, row in rows:
                try:
                    self._batch([(trace, row)])
                except _Unfit as error:
                    self._unfit(trace, str(error))
        waiting = self._batches
        if (
            sum(map(len, waiting)) >= GROUP_ROWS
            or sum(batch.nbytes for batch in waiting) >= GROUP_BYTES
        ):
            self._write()

    def _batch(self, rows: list[tuple[Trace, dict[str, Any]]]) -> None:
        try:
            batch = self._pa.RecordBatch.from_pylist([row for _, row in rows], self._schema)
        except (self._pa.ArrowException, OverflowError, TypeError, ValueError) as error:
            raise _Unfit(str(error).splitlines()[0]) from error
        self._batches.append(batch)
        for trace, _ in rows:
            self._written(trace)

    def _write(self) -> None:
        if self._batches:
            table = self._pa.Table.from_batches(self._batches, self._schema)
            self._writer.write_table(table, row_group_size=len(table))
        self._batches = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        if exc_info[0] is None:
            self._convert()
            self._write()
        self._writer.close()


class _Unfit(ValueError):
    """The schema has no room for something in a row."""


def read_parquet(path: Path) -> Iterator[Trace]:
    """Yield the traces of an exported file, a few in memory at a time.

    Raises:
        ConfigError: If pyarrow is not installed, or the file was not exported by this library.
    """
    pa, parquet = _pyarrow()
    try:
        with parquet.ParquetFile(path) as file:
            if (file.schema_arrow.metadata or {}).get(_MARK) != _VERSION:
                raise ConfigError(f"{path} is Parquet, but holds no traces that were exported here")
            for batch in file.iter_batches(batch_size=16):
                for row in batch.to_pylist():
                    yield _trace(row)
    except (OSError, pa.ArrowException) as error:
        raise ConfigError(f"cannot read {path}: {error}") from error


def _row(trace: Trace, model: str) -> dict[str, Any]:
    task, score = trace.task, trace.score
    prompt, images = by_reference(task.prompt)
    is_text = isinstance(prompt, str)
    return {
        "id": trace.id,
        "environment": trace.environment,
        "model": model,
        "task_id": task.id,
        "prompt": prompt if is_text else None,
        "prompt_json": None if is_text else _json(prompt),
        "answer_json": _json(task.answer),
        "task_info_json": _json(task.info),
        "seed": trace.seed,
        "messages": [_message(asdict(message)) for message in trace.messages],
        "prompt_messages": trace.prompt_messages,
        "tools_json": _json(trace.tools),
        "reward": trace.reward,
        "outcome": score and score.outcome,
        "components": [
            {"kind": kind, "name": name, "value": None if value is None else float(value)}
            for kind in _PARTS
            for name, value in getattr(score, kind, {}).items()
        ],
        "metrics": _pairs(score.metrics if score else {}, "name", "value"),
        "scored": score is not None,
        "stop_reason": trace.stop_reason,
        "error": trace.error and asdict(trace.error),
        "num_turns": len(trace.turns),
        "num_tokens": sum(map(len, trace.branches)),
        "num_sampled": trace.completion_tokens,
        "turns": [asdict(turn) for turn in trace.turns],
        "tool_events": [asdict(event) for event in trace.tool_events],
        "step_rewards": trace.step_rewards,
        "branches": [
            {
                **{name: getattr(branch, name) for name in branch.__slots__},
                "images": [{"name": image.name, "at": image.at} for image in branch.images],
            }
            for branch in trace.branches
        ],
        "forks": [asdict(fork) for fork in trace.forks],
        "lineages": [_lineage(asdict(lineage)) for lineage in trace.lineages],
        "roles": [{"name": name, **asdict(role)} for name, role in trace.roles.items()],
        "timing": _pairs(trace.timing, "phase", "seconds"),
        "info_json": _json(trace.info),
        "origin": trace.origin and asdict(trace.origin),
        "images": [
            {"name": name, "data": image.read()}
            for name, image in {i.name: i for i in (*images, *trace.held_images)}.items()
        ],
    }


def _trace(row: dict[str, Any]) -> Trace:
    score = None
    if row["scored"]:
        score = {"reward": row["reward"], "outcome": row["outcome"]}
        score["metrics"] = {entry["name"]: entry["value"] for entry in row["metrics"]}
        for kind in _PARTS:
            entries = [entry for entry in row["components"] if entry["kind"] == kind]
            score[kind] = {entry["name"]: _kept(kind, entry["value"]) for entry in entries}
    for branch in row["branches"]:  # none in files that were exported before there were any
        shown = branch.get("images") or []
        branch["images"] = [Image.named(entry["name"], entry["at"]) for entry in shown]
    kept = ("id", "environment", "seed", "prompt_messages", "stop_reason", "error", "turns")
    more = ("tool_events", "step_rewards", "branches", "forks")
    trace = trace_adapter().validate_python(
        {name: row[name] for name in (*kept, *more)}
        | {
            "task": {
                "id": row["task_id"],
                "prompt": json.loads(row["prompt_json"]) if row["prompt_json"] else row["prompt"],
                "answer": json.loads(row["answer_json"]),
                "info": json.loads(row["task_info_json"]),
            },
            "messages": [_read_message(message) for message in row["messages"]],
            "tools": json.loads(row["tools_json"]),
            # Not in files that were exported before there were any.
            "lineages": [_read_lineage(entry) for entry in row.get("lineages") or ()],
            "roles": {entry.pop("name"): entry for entry in row.get("roles") or ()},
            "score": score,
            "timing": {entry["phase"]: entry["seconds"] for entry in row["timing"]},
            "info": json.loads(row["info_json"]),
            "origin": row.get("origin"),  # not in files that were exported before it was
        }
    )
    held = {entry["name"]: entry["data"] for entry in row.get("images") or ()}
    for image in trace.held_images:
        image.data = held.get(image.name)
    return trace


def _lineage(raw: dict[str, Any]) -> dict[str, Any]:
    messages = [_message(message) for message in raw["messages"]]
    return raw | {"messages": messages, "tools_json": _json(raw.pop("tools"))}


def _read_lineage(raw: dict[str, Any]) -> dict[str, Any]:
    messages = [_read_message(message) for message in raw["messages"]]
    return raw | {"messages": messages, "tools": json.loads(raw.pop("tools_json"))}


def _message(raw: dict[str, Any]) -> dict[str, Any]:
    calls = [
        {
            "id": call["id"],
            "type": "function",
            "function": {"name": call["name"], "arguments": call["arguments"]},
            "malformed": call["malformed"],
        }
        for call in raw["tool_calls"]
    ]
    del raw["raw"]  # of the API's, not the trace's
    for image in raw["images"]:
        del image["data"], image["folder"]
    return raw | {"reasoning_content": raw.pop("reasoning"), "tool_calls": calls}


def _read_message(raw: dict[str, Any]) -> dict[str, Any]:
    calls = [
        {"id": call["id"], "malformed": call["malformed"], **call["function"]}
        for call in raw["tool_calls"]
    ]
    images = raw.get("images") or []  # not in files that were exported before there were any
    thought = raw.pop("reasoning_content")
    return raw | {"reasoning": thought, "tool_calls": calls, "images": images}


def _pairs(values: Mapping[str, float | None], key: str, value: str) -> list[dict[str, Any]]:
    return [{key: name, value: number} for name, number in values.items()]


def _kept(kind: str, value: float | None) -> float | bool | None:
    return value if value is None or kind != "gates" else bool(value)


def _json(value: Any) -> str:
    return pydantic_core.to_json(value, inf_nan_mode="constants").decode()


def _pyarrow() -> tuple[Any, Any]:
    return load("pyarrow", "data"), load("pyarrow.parquet", "data")

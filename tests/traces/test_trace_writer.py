"""Traces that are written beside the event loop."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

import vf
from vf.traces.store import TraceStore
from vf.traces.writer import TraceWriter


def trace(number: int) -> vf.Trace:
    return vf.Trace("e", vf.Task(str(number), "?"), seed=number)


def test_traces_are_written_in_order_by_another_thread(tmp_path: Path) -> None:
    used: set[threading.Thread] = set()

    class Watched(TraceStore):
        def append(self, trace: vf.Trace, line: bytes | None = None) -> None:
            used.add(threading.current_thread())
            super().append(trace, line)

    writer, store = TraceWriter(), Watched(tmp_path / "traces.jsonl")
    for number in range(50):
        writer.append(store, trace(number))
    writer.close(store)
    assert [found.seed for found in store] == [*range(50)]
    assert threading.current_thread() not in used
    writer.stop()


def test_a_trace_that_another_process_has_encoded_is_written_as_it_is(tmp_path: Path) -> None:
    writer, store = TraceWriter(), TraceStore(tmp_path / "traces.jsonl")
    line = trace(7).to_json()
    writer.append(store, trace(8), line)
    writer.close(store)
    assert store.path.read_bytes() == line + b"\n"
    writer.stop()


def test_what_is_left_is_written_when_it_stops(tmp_path: Path) -> None:
    writer, store = TraceWriter(), TraceStore(tmp_path / "traces.jsonl")
    writer.append(store, trace(1))
    writer.stop()
    store.close()
    assert len(list(store)) == 1


def test_a_trace_that_cannot_be_written_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    writer, store = TraceWriter(), TraceStore(tmp_path / "file" / "traces.jsonl")
    writer.append(store, trace(1))
    with pytest.raises(OSError, match=r"could not be written to .*traces\.jsonl"):
        writer.close(store)
    with pytest.raises(OSError, match="make room"):
        writer.check()
    writer.stop()

"""The traces file: append, read lazily, and survive being killed at any byte."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import vf
from vf.traces.store import DamagedLine


def make_trace(name: str, text: str = "") -> vf.Trace:
    return vf.Trace("e", vf.Task(name, "p"), 0, id=name, messages=[vf.Message("user", text)])


def write(path: Path, *names: str) -> None:
    with vf.TraceStore(path) as store:
        for name in names:
            store.append(make_trace(name))


def read(path: Path) -> list[str]:
    return [trace.id for trace in vf.TraceStore(path)]


def test_what_is_appended_is_read_back_in_order(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "t.jsonl"
    traces = [make_trace("a"), make_trace("b", "Grüße\n\u2028 \x00 end")]
    with vf.TraceStore(path) as store:
        for trace in traces:
            store.append(trace)
    assert list(vf.TraceStore(path)) == traces
    assert path.read_bytes().count(b"\n") == 2


def test_a_trace_is_readable_at_once_and_a_closed_store_can_continue(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    store = vf.TraceStore(path)
    store.append(make_trace("a"))
    assert read(path) == ["a"]
    store.close()
    store.close()
    store.append(make_trace("b"))
    store.close()
    assert read(path) == ["a", "b"]


def test_nothing_is_created_before_the_first_trace(tmp_path: Path) -> None:
    with vf.TraceStore(tmp_path / "t.jsonl"):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_missing_file_and_a_folder_in_its_place_are_named(tmp_path: Path) -> None:
    with pytest.raises(vf.ConfigError, match=r"no traces file at .*gone\.jsonl"):
        read(tmp_path / "gone.jsonl")
    with pytest.raises(vf.ConfigError, match=f"{tmp_path.name} cannot be read: Is a directory"):
        read(tmp_path)


def test_cut_at_every_byte_of_the_last_line_earlier_traces_survive(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    write(path, "a", "b")
    whole_start = len(path.read_bytes())
    write(path, "torn")
    content = path.read_bytes()
    for end in range(whole_start, len(content)):
        path.write_bytes(content[:end])
        complete = end == len(content) - 1  # all there but the newline
        kept = ["a", "b", "torn"] if complete else ["a", "b"]
        assert read(path) == kept
        write(path, "new")
        assert read(path) == [*kept, "new"]


def test_a_file_of_one_torn_line_only_is_fixed(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_bytes(b"{")
    write(path, "a")
    assert read(path) == ["a"]


def test_a_torn_line_longer_than_any_read_block_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    with vf.TraceStore(path) as store:
        store.append(make_trace("long", "x" * 200_000))
        store.append(make_trace("torn", "y" * 300_000))
    path.write_bytes(path.read_bytes()[:-10])
    write(path, "new")
    assert read(path) == ["long", "new"]


@pytest.mark.parametrize("junk", [b"{}\n", b'{"environment": \n', b"\xff\xfe\n"])
def test_a_corrupt_complete_line_is_an_error_naming_file_and_line(
    tmp_path: Path, junk: bytes
) -> None:
    path = tmp_path / "t.jsonl"
    write(path, "a")
    path.write_bytes(path.read_bytes() + junk)
    write(path, "b")
    with pytest.raises(vf.ConfigError, match=r"t\.jsonl, line 2: not a trace: [^\n]+$"):
        read(path)


def test_a_damaged_line_is_put_aside_as_the_error_offers(tmp_path: Path) -> None:
    path = tmp_path / "two words.jsonl"
    write(path, "a")
    for junk in (b"{}\n", b"\xff\xfe\x00\n"):
        path.write_bytes(path.read_bytes() + junk)
    write(path, "b")
    for _ in range(2):
        with pytest.raises(DamagedLine) as caught:
            read(path)
        offered = str(caught.value).partition("put it aside: ")[2]
        subprocess.run(offered, shell=True, check=True)
    assert read(path) == ["a", "b"]
    assert Path(f"{path}.damaged").read_bytes() == b"{}\n\xff\xfe\x00\n"


def test_reading_is_lazy(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    write(path, "a")
    path.write_bytes(path.read_bytes() + b"corrupt\n")
    traces = iter(vf.TraceStore(path))
    assert next(traces).id == "a"
    with pytest.raises(vf.ConfigError, match="line 2"):
        next(traces)


def test_threads_append_whole_lines_even_where_the_system_writes_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: whole(fd, bytes(data)[:2000]))
    store = vf.TraceStore(tmp_path / "t.jsonl")
    start = threading.Barrier(8)

    def work(worker: int) -> None:
        start.wait()
        for index in range(20):
            store.append(make_trace(f"{worker}-{index}", "z" * 5000))

    threads = [threading.Thread(target=work, args=(worker,)) for worker in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    store.close()
    found = read(store.path)
    assert sorted(found) == sorted(f"{w}-{i}" for w in range(8) for i in range(20))
    for worker in range(8):
        own = [name for name in found if name.startswith(f"{worker}-")]
        assert own == [f"{worker}-{index}" for index in range(20)]


WRITER = """
import sys, vf
store = vf.TraceStore(sys.argv[1])
for index in range(100_000):
    message = vf.Message("user", "x" * 300_000)
    store.append(vf.Trace("e", vf.Task("t", "p"), 0, id=str(index), messages=[message]))
    print(index, flush=True)
"""


def test_a_killed_writer_loses_no_trace_that_was_appended(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    process = subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    for _ in range(3):
        process.stdout.readline()
    process.send_signal(signal.SIGKILL)
    told = 3 + len(process.stdout.read().splitlines())
    assert process.wait() == -signal.SIGKILL
    found = read(path)
    assert found == [str(index) for index in range(len(found))]
    assert told <= len(found) <= told + 1
    write(path, "after")
    assert read(path) == [*found, "after"]


FULL_DISK = """
import resource, sys, vf
path = sys.argv[1]
def trace(name, size):
    return vf.Trace("e", vf.Task("t", "p"), 0, id=name, messages=[vf.Message("user", "x" * size)])
store = vf.TraceStore(path)
store.append(trace("a", 10))
soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (5000, hard))
try:
    store.append(trace("too large", 50_000))
except OSError as error:
    print("refused", flush=True)
resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
store.append(trace("b", 10))
"""


def test_after_a_write_that_failed_half_way_the_same_store_can_continue(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(path)], check=True, capture_output=True, timeout=60
    )
    assert done.stdout == b"refused\n"
    assert read(path) == ["a", "b"]


def test_a_file_that_a_windows_editor_saved_with_empty_lines_is_read(tmp_path: Path) -> None:
    path = tmp_path / "traces.jsonl"
    write(path, "a", "b")
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b"\r\n\r\n\n"))
    assert read(path) == ["a", "b"]

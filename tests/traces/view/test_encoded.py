"""A page that is written again: only what has changed is read, and the page is as if all were."""

from __future__ import annotations

from pathlib import Path

import vf
from tests.traces.view.material import research
from vf.traces.learned import Learned, write_learned
from vf.traces.view.encoded import Encoder
from vf.traces.view.sources import find_sources
from vf.traces.view.write_page import write_page


def append(file: Path, trace: vf.Trace) -> None:
    with vf.TraceStore(file) as store:
        store.append(trace)


def test_only_files_that_changed_are_read_again(tmp_path: Path) -> None:
    traces = tmp_path / "run" / "traces"
    traces.mkdir(parents=True)
    (tmp_path / "kept").mkdir()
    encoder, page = Encoder(tmp_path / "kept"), tmp_path / "page.html"
    files = [traces / "step-000001.jsonl", traces / "step-000002.jsonl"]

    def bytes_read() -> int:
        """Write the page, which is to be the same as one without a memory."""
        read: list[int] = []
        sources = find_sources([tmp_path / "run"])
        write_page(sources, page, title="t", encoder=encoder, advance=read.append)
        fresh = tmp_path / "fresh.html"
        write_page(sources, fresh, title="t")
        assert page.read_bytes() == fresh.read_bytes()
        return sum(read)

    append(files[0], research(0))
    append(files[1], research(1))
    assert bytes_read() == sum(file.stat().st_size for file in files)
    assert bytes_read() == 0
    append(files[1], research(2))
    assert bytes_read() == files[1].stat().st_size
    learned = Learned("trace-0", 0, 1, [0] * 39 + [1] + [0] * 40, [0.25], [-0.5], [0.0])
    write_learned(tmp_path / "run" / "learned" / files[0].name, [learned])
    assert bytes_read() == files[0].stat().st_size

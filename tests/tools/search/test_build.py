"""Building an index: whole or not at all, from every source, and with errors that name the line."""

from __future__ import annotations

import gzip
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.tools.search.corpus import TOWNS, drawn
from vf.runtime.errors import ConfigError
from vf.tools.search.build import build_index
from vf.tools.search.contract import Document
from vf.tools.search.sources import Documents, Fields, join_contents, split_contents
from vf.tools.search.tantivy_index import TantivyIndex

ROWS = [{"id": town.id, "title": town.title, "text": town.text} for town in TOWNS]


def lines(rows: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    if path.suffix == ".parquet":
        pyarrow = pytest.importorskip("pyarrow")
        import pyarrow.parquet as parquet

        parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    elif path.suffix == ".gz":
        path.write_bytes(gzip.compress(lines(rows).encode()))
    else:
        path.write_text(lines(rows))
    return path


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.parquet"])
def test_every_kind_of_file_gives_the_same_index(tmp_path: Path, name: str) -> None:
    expected = build_index(TOWNS, tmp_path / "from-memory")
    assert build_index(write(tmp_path / name, ROWS), tmp_path / "from-file") == expected
    assert build_index(iter(ROWS), tmp_path / "from-iterator") == expected


def test_several_files_make_one_index(tmp_path: Path) -> None:
    parts = [write(tmp_path / "a.jsonl", ROWS[:2]), write(tmp_path / "b.jsonl.gz", ROWS[2:])]
    assert build_index(parts, tmp_path / "index") == build_index(TOWNS, tmp_path / "other")


def test_a_loaded_dataset_is_an_iterable(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    rows = datasets.Dataset.from_list(ROWS)
    expected = build_index(TOWNS, tmp_path / "one")
    assert build_index(rows, tmp_path / "two") == expected
    assert build_index(rows.to_iterable_dataset(), tmp_path / "three") == expected


def test_a_dataset_is_streamed_by_its_name(tmp_path: Path) -> None:
    """A folder stands for a repository of the hub: the library reads both alike."""
    pytest.importorskip("datasets")
    (tmp_path / "corpus").mkdir()
    write(tmp_path / "corpus" / "train.jsonl", ROWS)
    name = f"hf:{tmp_path / 'corpus'}"
    assert build_index(name, tmp_path / "one") == build_index(TOWNS, tmp_path / "two")
    for wrong in (f"{name}@nosplit", f"hf:{tmp_path}/nothing"):
        with pytest.raises(ConfigError, match=f"cannot load {re.escape(wrong)}: "):
            build_index(wrong, tmp_path / "three")


def test_search_r1_corpora_are_taken_apart(tmp_path: Path) -> None:
    rows = [{"id": n, "contents": join_contents(town)} for n, town in enumerate(TOWNS)]
    build_index(write(tmp_path / "wiki.jsonl", rows), tmp_path / "index")
    assert TantivyIndex(tmp_path / "index").fetch("4") == Document("4", "São Paulo", TOWNS[4].text)


@pytest.mark.parametrize(
    "document", [*TOWNS, Document("1", 'A "b" c', '"d"\ne'), Document("2", "", "")]
)
def test_contents_are_joined_and_split_again(document: Document) -> None:
    assert split_contents(join_contents(document)) == (document.title, document.text)


def test_fields_may_have_other_names(tmp_path: Path) -> None:
    rows = [{"key": "a", "name": "Oslo", "passage": "A fjord."}]
    build_index(rows, tmp_path / "index", fields=Fields("key", "name", "passage"))
    assert TantivyIndex(tmp_path / "index").fetch("a") == Document("a", "Oslo", "A fjord.")


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        (
            '{"id": "x", "title": "T"}',
            "line 2: the field 'text' or .* is missing; it has: id, title",
        ),
        ('{"title": "T", "text": "t"}', "line 2: the field 'id' or .* is missing"),
        ('{"id": "x", "text": null}', r"line 2: the field 'text' or .* \(text\) is missing"),
        ('{"id": "x", "text": 5}', "line 2: the field 'text' .* is int, not text"),
        ('{"id": true, "text": "t"}', "line 2: the field 'id' .* is bool"),
        ('{"id": " ", "text": "t"}', "line 2: the id is empty"),
        ('{"id": "x", "text": "  "}', "line 2: title and text are both empty"),
        ('{"id": "paris", "text": "t"}', "line 2: the id 'paris' has been used before"),
        ("[1]", "line 2: expected an object with fields, got list"),
        ('{"id": ', "line 2: not JSON"),
        ("\udcff", "line 2: not JSON"),
        (json.dumps({"id": "x" * 600, "text": "t"}), "line 2: the id is longer than 512 bytes"),
    ],
)
def test_a_bad_line_is_named_with_what_is_wrong(tmp_path: Path, line: str, complaint: str) -> None:
    source = tmp_path / "bad.jsonl"
    source.write_bytes((lines(ROWS[:1]) + line + "\n").encode(errors="surrogateescape"))
    with pytest.raises(ConfigError, match=f"bad.jsonl, {complaint}"):
        build_index(source, tmp_path / "index")
    assert [path.name for path in tmp_path.iterdir()] == ["bad.jsonl"]


def test_an_id_that_comes_again_much_later_is_found(tmp_path: Path) -> None:
    documents = [Document(str(n), "", "text") for n in range(9000)]
    with pytest.raises(ConfigError, match="document 9001: the id '17' has been used before"):
        build_index([*documents, Document("17", "", "other")], tmp_path / "index")


def test_half_a_packed_file_is_an_error_that_says_how_far_it_went(tmp_path: Path) -> None:
    rows = [{"id": d.id, "text": d.text} for d in drawn(2000)]
    whole = write(tmp_path / "a.jsonl.gz", rows).read_bytes()
    (tmp_path / "a.jsonl.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ConfigError, match=r"a.jsonl.gz, after line \d+: "):
        build_index(tmp_path / "a.jsonl.gz", tmp_path / "index")
    assert not (tmp_path / "index").exists()


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ("nothing.jsonl", "there is no file"),
        (__file__, r"test_build.py: documents come from a folder, .*\.md, .*\.jsonl"),
        ([], "there are no documents"),
    ],
)
def test_a_source_that_cannot_be_read_is_reported(
    tmp_path: Path, source: Any, complaint: str
) -> None:
    with pytest.raises(ConfigError, match=complaint):
        build_index(source, tmp_path / "index")
    assert list(tmp_path.iterdir()) == []


def test_what_is_there_is_only_replaced_if_asked(tmp_path: Path) -> None:
    path = tmp_path / "index"
    first = build_index(TOWNS[:3], path)
    with pytest.raises(ConfigError, match="exists already"):
        build_index(TOWNS, path)
    opened = TantivyIndex(path)
    second = build_index(TOWNS, path, overwrite=True)
    assert (TantivyIndex(path).meta, opened.meta) == (second, first)
    assert [hit.document.id for hit in opened.find("capital", 5)] == ["oslo", "paris"]
    assert [entry.name for entry in tmp_path.iterdir()] == ["index"]


def test_what_is_no_index_is_never_replaced(tmp_path: Path) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter-1.tex").write_text("Two years of work")
    with pytest.raises(ConfigError, match="is not an index"):
        build_index(TOWNS, tmp_path / "thesis", overwrite=True)
    assert (tmp_path / "thesis" / "chapter-1.tex").read_text() == "Two years of work"


def test_a_source_that_fails_leaves_the_old_index_as_it_was(tmp_path: Path) -> None:
    def failing() -> Iterator[Document]:
        yield from TOWNS
        raise OSError("the disk is gone")

    first = build_index(TOWNS[:3], tmp_path / "index")
    with pytest.raises(ConfigError, match="the disk is gone"):
        build_index(failing(), tmp_path / "index", overwrite=True)
    assert TantivyIndex(tmp_path / "index").meta == first
    assert [entry.name for entry in tmp_path.iterdir()] == ["index"]


ENDLESS = """
import itertools, sys
from vf.tools.search.build import build_index
from vf.tools.search.contract import Document

def documents():
    for number in itertools.count():
        if number == 2000:
            print("going", flush=True)
        yield Document(str(number), "", "some words " * 20)

build_index(documents(), sys.argv[1], memory_mib=20, overwrite=True)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_build_that_is_killed_leaves_no_half_index(
    tmp_path: Path, number: signal.Signals
) -> None:
    path = tmp_path / "index"
    build = subprocess.Popen(
        [sys.executable, "-c", ENDLESS, str(path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    try:
        assert build.stdout is not None
        assert build.stdout.readline() == b"going\n"
        build.send_signal(number)
        build.wait(60)
    finally:
        build.kill()
    assert not path.exists()
    left = [entry.name for entry in tmp_path.iterdir()]
    assert len(left) == (1 if number is signal.SIGKILL else 0)
    build_index(TOWNS, path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["index"]


LARGE = """
import random, sys
from vf.tools.search.build import build_index
from vf.tools.search.contract import Document

words = [f"word{number}" for number in range(5000)]
texts = [" ".join(random.Random(n).choices(words, k=100)) for n in range(500)]

def anonymous():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("RssAnon"))

def documents():
    peak = 0
    for number in range(60_000):
        yield Document(str(number), "", texts[number % 500])
        peak = max(peak, anonymous() if number % 500 == 0 else 0)
        if number % 30_000 == 29_999:
            print(peak)

build_index(documents(), sys.argv[1], memory_mib=15)
"""


def test_an_index_that_was_being_replaced_when_all_went_dark_comes_back(tmp_path: Path) -> None:
    """The state between the two renames, as a process left it that is dead by now."""
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait(60)
    meta = build_index(TOWNS[:3], tmp_path / "[index]")
    left = f".[index].building-{os.uname().nodename}-{ended.pid}-0badcafe"
    (tmp_path / "[index]").rename(tmp_path / f"{left}-old")
    (tmp_path / left).mkdir()
    with pytest.raises(ConfigError, match="exists already"):
        build_index(TOWNS, tmp_path / "[index]")
    assert TantivyIndex(tmp_path / "[index]").meta == meta
    assert [entry.name for entry in tmp_path.iterdir()] == ["[index]"]


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="reads /proc")
def test_memory_does_not_grow_with_the_documents(tmp_path: Path) -> None:
    command = [sys.executable, "-c", LARGE, str(tmp_path / "index")]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    half, whole = map(int, run.stdout.split())
    assert whole < 1.25 * half


def test_progress_is_shown_in_the_unit_of_its_total(tmp_path: Path) -> None:
    source = Documents(write(tmp_path / "a.jsonl", ROWS))
    told = [(source.done, source.total) for _ in source]
    size = (tmp_path / "a.jsonl").stat().st_size
    assert [total for _, total in told] == [size] * 5
    assert source.done == size
    rows = Documents(ROWS)
    assert [(rows.done, rows.total) for _ in rows] == [(n, 5) for n in range(1, 6)]


def test_a_progress_bar_is_drawn_if_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    build_index(TOWNS, tmp_path / "quiet")
    assert capsys.readouterr().err == ""
    build_index(write(tmp_path / "a.jsonl", ROWS), tmp_path / "towns", progress=True)
    assert "indexing towns" in (shown := capsys.readouterr().err)
    assert "5 documents" in shown

"""The embedded index: right scores, one order, any query, many processes."""

from __future__ import annotations

import asyncio
import contextlib
import math
import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tools.search.corpus import TOWNS, drawn, make_index
from vf.runtime.errors import ConfigError
from vf.tools.search.build import build_index
from vf.tools.search.contract import Document, Index
from vf.tools.search.search_tools import open_index
from vf.tools.search.tantivy_index import TantivyIndex


@pytest.fixture(scope="module")
def towns(tmp_path_factory: pytest.TempPathFactory) -> TantivyIndex:
    return make_index(tmp_path_factory.mktemp("towns"))


def found(index: TantivyIndex, query: str, k: int = 10) -> list[str]:
    return [hit.document.id for hit in asyncio.run(index.search(query, k))]


def test_an_index_keeps_the_contract(towns: TantivyIndex) -> None:
    assert isinstance(towns, Index)
    assert open_index(towns.path).fingerprint == towns.fingerprint


def test_any_word_may_match_in_any_form(towns: TantivyIndex) -> None:
    assert found(towns, "capitals of Norway")[0] == "oslo"
    assert found(towns, "SAO paulo")[0] == "sao"
    assert found(towns, "rhone")[0] == "lyon"
    assert found(towns, "Ouagadougou") == ["ouaga"]


def test_nothing_is_found_for_words_that_nobody_wrote(towns: TantivyIndex) -> None:
    assert found(towns, "xylophone") == []
    assert found(towns, "???") == []
    assert found(towns, "") == []


def test_operators_of_a_query_language_are_words(towns: TantivyIndex) -> None:
    assert found(towns, 'id:paris -capital +"fjord"~3 [a TO b] title:*') == found(
        towns, "id paris capital fjord 3 a TO b title"
    )


def test_a_document_comes_back_as_it_was_given(towns: TantivyIndex) -> None:
    for document in TOWNS:
        assert asyncio.run(towns.open(document.id)) == document
    assert asyncio.run(towns.open("atlantis")) is None
    assert asyncio.run(towns.open("\ud800\x00")) is None


def test_scores_are_bm25(tmp_path: Path) -> None:
    """Robertson and Zaragoza's formula, k1 = 1.2, b = 0.75, idf = ln(1 + (N−n+½)/(n+½)).

    The documents are short enough that tantivy's one-byte lengths are exact.
    """
    documents = list(drawn(300))
    build_index(documents, tmp_path / "index", language=None)
    index = TantivyIndex(tmp_path / "index")
    bags = {d.id: Counter(f"{d.title} {d.text}".lower().split()) for d in documents}
    mean = sum(bag.total() for bag in bags.values()) / len(bags)
    query = " ".join(documents[7].text.split()[:4])
    expected = {}
    for doc_id, bag in bags.items():
        score = 0.0
        for word in set(query.split()):
            having = sum(word in other for other in bags.values())
            idf = math.log(1 + (len(bags) - having + 0.5) / (having + 0.5))
            norm = 1.2 * (0.25 + 0.75 * bag.total() / mean)
            score += idf * bag[word] * 2.2 / (bag[word] + norm)
        if score:
            expected[doc_id] = score
    hits = asyncio.run(index.search(query, 300))
    assert {hit.document.id: hit.score for hit in hits} == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("rounds", [1, 6])
def test_equal_scores_stand_by_document_id(tmp_path: Path, rounds: int) -> None:
    """Also where the index has several segments, which tantivy breaks ties between otherwise."""
    documents = [
        Document(f"{n * 7919 % 5000:05}", "", "same words " + "x " * 60) for n in range(5000)
    ]
    build_index(documents, tmp_path / "index")
    if rounds > 1:
        split(tmp_path / "index", documents, rounds)
    index = TantivyIndex(tmp_path / "index")
    assert (index._searcher.num_segments > 1) == (rounds > 1)
    for k in (1, 3, 40):
        assert found(index, "same words", k) == [f"{n:05}" for n in range(k)]


def split(path: Path, documents: list[Document], rounds: int) -> None:
    """Write an index's content again, in several segments, as a large corpus would have it."""
    import tantivy

    from vf.tools.search.build import _entry
    from vf.tools.search.tantivy_index import ANALYZER, make_analyzer, make_schema

    meta = TantivyIndex(path).meta
    shutil.rmtree(path)
    path.mkdir()
    index = tantivy.Index(make_schema(), str(path), sort_by_field="id")
    index.register_tokenizer(ANALYZER, make_analyzer("english"))
    writer = index.writer(heap_size=20_000_000, num_threads=1)
    for start in range(rounds):
        for document in documents[start::rounds]:
            writer.add_document(_entry(tantivy.Document(), document))
        writer.commit()
    writer.wait_merging_threads()
    meta.write(path)


def test_the_order_in_which_documents_came_changes_nothing(tmp_path: Path) -> None:
    documents = list(drawn(500))
    one, other = tmp_path / "one", tmp_path / "other"
    assert build_index(documents, one) == build_index(documents[::-1], other)
    for query in (documents[3].text, documents[4].title, "title"):
        assert found(TantivyIndex(one), query) == found(TantivyIndex(other), query)


def test_the_fingerprint_tells_content_and_language_apart(tmp_path: Path) -> None:
    def fingerprint(name: str, documents: list[Document], language: str | None) -> str:
        return build_index(documents, tmp_path / name, language=language).fingerprint

    base = fingerprint("a", TOWNS, "english")
    moved = [Document("paris", "Pari", "s" + TOWNS[0].text), *TOWNS[1:]]
    assert len({base, fingerprint("b", moved, "english"), fingerprint("c", TOWNS, None)}) == 3
    assert fingerprint("d", TOWNS, "english") == base


def _ask(path: str, query: str) -> tuple[str, list[tuple[str, float]]]:
    index = TantivyIndex(path)
    hits = asyncio.run(index.search(query, 20))
    return index.fingerprint, [(hit.document.id, hit.score) for hit in hits]


def test_processes_answer_alike_at_the_same_time(tmp_path: Path) -> None:
    documents = list(drawn(2000))
    build_index(documents, tmp_path / "index")
    asked = (str(tmp_path / "index"), documents[11].text)
    with multiprocessing.get_context("spawn").Pool(3) as pool:
        answers = pool.starmap(_ask, [asked] * 6)
    assert answers == [_ask(*asked)] * 6
    assert len(answers[0][1]) == 20


@pytest.mark.skipif(os.name != "posix" or os.getuid() != 0, reason="only root can become nobody")
def test_who_may_only_read_an_index_can_search_it(tmp_path: Path) -> None:
    make_index(tmp_path)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        shutil.copytree(tmp_path / "index", folder / "index")
        assert search_as_nobody(folder / "index") == "3\n"


def search_as_nobody(path: Path) -> str:
    code = (
        "import asyncio, datetime, os, sys, tantivy\n"
        "from vf.tools.search.tantivy_index import TantivyIndex\n"
        "os.setgid(65534); os.setuid(65534)\n"
        "print(len(asyncio.run(TantivyIndex(sys.argv[1]).search('capital', 9))))\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    return run.stdout


def test_a_lock_of_tantivys_own_does_not_keep_an_index_from_being_opened(
    towns: TantivyIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its thread that looks for newer commits locks the folder of links, at any moment."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    ended = threading.Event()

    def lock() -> None:
        while not ended.is_set():
            for folder in tmp_path.iterdir():
                with contextlib.suppress(FileNotFoundError):
                    (folder / ".tantivy-meta.lock").touch()

    thread = threading.Thread(target=lock)
    thread.start()
    try:
        for _ in range(20):
            assert found(TantivyIndex(towns.path), "capitals of Norway")[0] == "oslo"
    finally:
        ended.set()
        thread.join()
    assert not list(tmp_path.glob("vf-*/search-*")), "no folder of links is left"


def test_searches_of_one_loop_after_the_other(towns: TantivyIndex) -> None:
    async def many() -> list[int]:
        hits = await asyncio.gather(*(towns.search("capital", 3) for _ in range(50)))
        return [len(found) for found in hits]

    assert asyncio.run(many()) == asyncio.run(many()) == [3] * 50


def test_threads_do_not_disturb_each_other(tmp_path: Path) -> None:
    documents = list(drawn(1000))
    index = make_index(tmp_path, documents)
    queries = [document.text for document in documents[:200]]
    expected = [index.find(query, 5) for query in queries]
    with ThreadPoolExecutor(8) as pool:
        answers = [pool.map(lambda query: index.find(query, 5), queries) for _ in range(4)]
        assert [list(answer) for answer in answers] == [expected] * 4


@settings(max_examples=50, deadline=None)
@given(st.text(st.characters(exclude_categories=())), st.integers(1, 10**12))
def test_any_text_is_a_query(towns: TantivyIndex, query: str, k: int) -> None:
    hits = towns.find(query, k)
    assert len(hits) <= min(k, len(TOWNS))
    assert hits == sorted(hits, key=lambda hit: (-hit.score, hit.document.id))


@pytest.mark.parametrize(
    "query", ["capital " * 5000, "a" * 10_000, "(" * 10_000, "word\x00" * 2000]
)
def test_a_query_of_ten_thousand_characters(towns: TantivyIndex, query: str) -> None:
    assert len(towns.find(query, 3)) == (3 if "capital" in query else 0)


def test_what_is_not_an_index_is_reported(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is not an index"):
        open_index(tmp_path / "nothing")
    make_index(tmp_path)
    (tmp_path / "index" / "meta.json").write_text("{")
    with pytest.raises(ConfigError, match="cannot open the index"):
        open_index(tmp_path / "index")


def test_a_missing_package_is_named_with_its_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_index(tmp_path)
    monkeypatch.setitem(sys.modules, "tantivy", None)
    for use in (lambda: open_index(tmp_path / "index"), lambda: build_index(TOWNS, tmp_path / "b")):
        with pytest.raises(ConfigError, match=r"pip install 'vf-rl\[search\]'"):
            use()
    assert [path.name for path in tmp_path.iterdir()] == ["index"]

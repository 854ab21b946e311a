"""What a search costs: `python benchmarks/search.py`.

One generated corpus of passages of about 100 words, as rare as in a natural language (Zipf), and
one list of queries: six words of a random passage each. Every contender, in a fresh process, builds
its index on disk and finds the best five passages of each query, text included; any word may match.

- tantivy: the engine itself, called directly: the floor.
- fts5: SQLite's full-text search, ranked by its bm25().
- bm25s (`pip install bm25s`): scores computed beforehand, in numpy arrays.
- ours: the `search` tool of an episode: thread, snippets, escaping, token budget, record.

Ours is also measured from Python as rollouts use it: so many episodes at once, each with one search
after the other. Meanwhile a coroutine wakes up every millisecond, and how late it is tells for how
long the event loop was held up.

The last line is JSON: `ratio` is tantivy's median over ours (0.5 or more is the target: within
twice), `queries_per_s` what 64 callers get through our tool (target: 1,000), `fts5_ratio` and
`bm25s_ratio` their medians over ours.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import platform
import random
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any

from harness import in_process, parse, print_result, say
from peers import present, versions_of

TARGET = 0.5  # of raw tantivy's speed
TARGET_PER_S = 1000.0  # queries, at 100,000 passages
K = 5
WORDS_PER_PASSAGE = 100
WORDS_PER_QUERY = 6
VOCABULARY = 50_000
CALLERS = (1, 64)

Search = Callable[[str], list[str]]  # the best passages' text
Row = tuple[str, str, str]  # id, title, text


def passages(count: int) -> Iterator[Row]:
    """Yield the corpus, the same every time."""
    rng = random.Random(0)
    words = [_word(number) for number in range(VOCABULARY)]
    weights = list(itertools.accumulate(1 / rank for rank in range(1, VOCABULARY + 1)))
    for number in range(count):
        length = rng.randint(WORDS_PER_PASSAGE // 2, WORDS_PER_PASSAGE * 3 // 2)
        text = " ".join(rng.choices(words, cum_weights=weights, k=length))
        yield f"p{number}", f"Passage {number}", text


def _word(number: int) -> str:
    """Return a word that can be spoken; frequent ones are short."""
    syllables = [a + b for a in "bcdfghklmnprstvz" for b in "aeiou"]
    word = ""
    while number >= 0:
        word = syllables[number % len(syllables)] + word
        number = number // len(syllables) - 1
    return word


def write_corpus(path: Path, count: int) -> None:
    """Write the corpus, which takes longer to make than to read."""
    with path.open("w") as file:
        file.writelines(json.dumps(row) + "\n" for row in passages(count))


def read_corpus(path: Path) -> Iterator[Row]:
    """Yield what was written."""
    with path.open() as file:
        for line in file:
            name, title, text = json.loads(line)
            yield name, title, text


def make_queries(count: int, documents: int) -> list[str]:
    """Return queries: six words of a passage each."""
    rng = random.Random(1)
    texts = [text for _, _, text in itertools.islice(passages(documents), 5000)]
    return [" ".join(rng.sample(rng.choice(texts).split(), WORDS_PER_QUERY)) for _ in range(count)]


def tantivy(folder: Path, rows: Iterator[Row] | None) -> Search:
    import tantivy

    builder = tantivy.SchemaBuilder()
    builder.add_text_field("body", stored=True, tokenizer_name="en_stem", index_option="freq")
    if rows is not None:
        writer = tantivy.Index(builder.build(), str(folder)).writer(512 << 20, num_threads=1)
        for _, title, text in rows:
            document = tantivy.Document()
            document.add_text("body", f"{title}\n{text}")
            writer.add_document(document)
        writer.commit()
        writer.wait_merging_threads()
    index = tantivy.Index.open(str(folder))
    index.config_reader("manual")
    searcher = index.searcher()

    def search(query: str) -> list[str]:
        found = searcher.search(index.parse_query(query, ["body"]), K, count=False).hits
        return [str(searcher.doc(address).get_first("body")) for _, address in found]

    return search


def fts5(folder: Path, rows: Iterator[Row] | None) -> Search:
    database = sqlite3.connect(folder / "fts5.sqlite")
    if rows is not None:
        database.execute(
            "CREATE VIRTUAL TABLE p USING fts5(id UNINDEXED, title, body, tokenize='porter')"
        )
        database.executemany("INSERT INTO p VALUES (?, ?, ?)", rows)
        database.execute("INSERT INTO p(p) VALUES ('optimize')")
        database.commit()
    best = "SELECT body FROM p WHERE p MATCH ? ORDER BY bm25(p) LIMIT ?"

    def search(query: str) -> list[str]:
        return [text for (text,) in database.execute(best, (" OR ".join(query.split()), K))]

    return search


def bm25s(folder: Path, rows: Iterator[Row] | None) -> Search:
    import bm25s

    if rows is not None:
        corpus = [{"text": f"{title}\n{text}"} for _, title, text in rows]
        tokens = bm25s.tokenize(
            [row["text"] for row in corpus], stopwords=None, show_progress=False
        )
        engine = bm25s.BM25()
        engine.index(tokens, show_progress=False)
        engine.save(str(folder), corpus=corpus)
    engine = bm25s.BM25.load(str(folder), load_corpus=True, mmap=True)

    def search(query: str) -> list[str]:
        tokens = bm25s.tokenize([query], stopwords=None, show_progress=False)
        found = engine.retrieve(tokens, k=K, show_progress=False)
        return [row["text"] for row in found.documents[0]]

    return search


def build_ours(folder: Path, rows: Iterator[Row]) -> None:
    from vf.tools.search.build import build_index
    from vf.tools.search.contract import Document

    build_index((Document(*row) for row in rows), folder / "index")


def measure(pipe: Connection, name: str, folder: Path, corpus: Path, queries: list[str]) -> None:
    """Build, open again, and search: one contender."""
    started = time.perf_counter()
    if name == "ours":
        build_ours(folder, read_corpus(corpus))
    else:
        CONTENDERS[name](folder, read_corpus(corpus))
    found: dict[str, Any] = {"build_s": time.perf_counter() - started}
    found["size_mib"] = sum(p.stat().st_size for p in folder.rglob("*") if p.is_file()) / 2**20
    if name == "ours":
        found |= asyncio.run(through_the_tool(folder / "index", queries))
    else:
        search = CONTENDERS[name](folder, None)
        found |= one_by_one(search, queries)
    pipe.send(found)


CONTENDERS: dict[str, Callable[[Path, Iterator[Row] | None], Search]] = {
    "tantivy": tantivy,
    "fts5": fts5,
    "bm25s": bm25s,
}


def one_by_one(search: Search, queries: list[str]) -> dict[str, Any]:
    for query in queries[: len(queries) // 10]:
        search(query)
    spent = []
    for query in queries:
        started = time.perf_counter()
        texts = search(query)
        spent.append(time.perf_counter() - started)
        assert len(texts) == K
    return {"callers_1": told(spent, sum(spent))}


async def through_the_tool(path: Path, queries: list[str]) -> dict[str, Any]:
    import vf
    from vf.tools.search.search_tools import SearchTools

    environment = vf.Environment()
    environment.tools = [SearchTools(str(path), k=K)]
    found = {}
    for callers in CALLERS:
        episodes = [environment.episode(seed) for seed in range(callers)]
        late: list[float] = []
        watcher = asyncio.create_task(watch(late))
        await run_all(episodes, iter(queries[: len(queries) // 10]))
        late.clear()
        started = time.perf_counter()
        spent = await run_all(episodes, iter(queries))
        found[f"callers_{callers}"] = told(spent, time.perf_counter() - started) | {
            "loop_late_p95_ms": 1000 * percentile(late, 0.95),
            "loop_late_worst_ms": 1000 * max(late),
        }
        watcher.cancel()
        for episode in episodes:
            await episode.release()
    return found


async def run_all(episodes: list[Any], queries: Iterator[str]) -> list[float]:
    spent: list[float] = []

    async def caller(search: Callable[..., Any]) -> None:
        for query in queries:
            started = time.perf_counter()
            text = await search(query)
            spent.append(time.perf_counter() - started)
            assert text.count("<result ") == K

    await asyncio.gather(*(caller(episode.toolbox.tools["search"].fn) for episode in episodes))
    return spent


async def watch(late: list[float]) -> None:
    while True:
        started = time.perf_counter()
        await asyncio.sleep(0.001)
        late.append(time.perf_counter() - started - 0.001)


def told(spent: list[float], seconds: float) -> dict[str, float]:
    return {
        "p50_ms": 1000 * median(spent),
        "p95_ms": 1000 * percentile(spent, 0.95),
        "queries_per_s": len(spent) / seconds,
    }


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[int(share * (len(values) - 1))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--documents", type=int, default=100_000, help="default: 100,000")
    parser.add_argument("--queries", type=int, default=1000, help="default: 1,000")
    parser.add_argument("--rounds", type=int, default=1, help="medians of so many; default: 1")
    parser.add_argument("--only", nargs="+", choices=[*CONTENDERS, "ours"], help="for a quick look")
    args = parse(parser, documents=500, queries=100)
    queries = make_queries(args.queries, args.documents)
    wanted = args.only or [*CONTENDERS, "ours"]
    names = present(wanted, {"bm25s": "bm25s"}, "{}")
    names = present(names, {"tantivy": "tantivy", "ours": "tantivy"}, "'vf-rl[search]'")
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    with tempfile.TemporaryDirectory(prefix="vf-search-") as scratch:
        corpus = Path(scratch) / "corpus.jsonl"
        say(f"writing {args.documents:,} passages")
        write_corpus(corpus, args.documents)
        for number, name in itertools.product(range(args.rounds), names):
            # It takes a hundred times as long as the others.
            asked = queries[: max(100, len(queries) // 10)] if name == "fts5" else queries
            say(f"round {number + 1} of {args.rounds}: {name} indexes, then {len(asked):,} queries")
            folder = Path(scratch) / f"{name}-{number}"
            folder.mkdir()
            found = in_process(measure, name, folder, corpus, asked)
            shutil.rmtree(folder)
            runs[name].append(found)
            print(f"{name:>8}  {line(found)}", flush=True)
    results = {name: medians(found) for name, found in runs.items()}
    print_result(
        args,
        "search",
        **summary(results),
        options=vars(args),
        results=results,
        versions=versions(),
    )


def line(found: dict[str, Any]) -> str:
    parts = [f"built in {found['build_s']:.1f} s, {found['size_mib']:.0f} MiB"]
    for callers in CALLERS:
        if told := found.get(f"callers_{callers}"):
            parts.append(
                f"{callers} at once: p50 {told['p50_ms']:.3f} ms, p95 {told['p95_ms']:.3f} ms, "
                f"{told['queries_per_s']:.0f}/s"
            )
            if "loop_late_p95_ms" in told:
                parts.append(f"loop late by {told['loop_late_p95_ms']:.2f} ms (p95)")
    return "; ".join(parts)


def medians(found: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        key: medians([run[key] for run in found])
        if isinstance(value, dict)
        else round(median(run[key] for run in found), 4)
        for key, value in found[0].items()
    }


def summary(results: dict[str, dict[str, Any]]) -> dict[str, Any]:
    out: dict[str, Any] = {"ratio": None, "target": TARGET, "target_per_s": TARGET_PER_S}
    p50 = {name: found["callers_1"]["p50_ms"] for name, found in results.items()}
    if "ours" in p50:
        names = {"tantivy": "ratio", "fts5": "fts5_ratio", "bm25s": "bm25s_ratio"}
        out |= {
            key: round(p50[name] / p50["ours"], 3) for name, key in names.items() if name in p50
        }
        out["queries_per_s"] = round(results["ours"][f"callers_{CALLERS[-1]}"]["queries_per_s"])
    return out


def versions() -> dict[str, str | None]:
    told: dict[str, str | None] = {
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
    }
    return told | versions_of("tantivy", "bm25s")


if __name__ == "__main__":
    main()

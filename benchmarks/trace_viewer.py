"""How fast a page of many long traces opens and scrolls: `python benchmarks/trace_viewer.py`.

Writes 1,000 traces of 20,000 tokens, half of them sampled, as one page with `vf-rl view`'s own
functions, and opens it from the disk in a headless Chromium. Then it reads through the table and
through one trace's tokens a screenful at a time, and takes the longest gap between two frames, and
it searches all text of all traces, the first time and once it is unpacked.
The token ids follow Zipf's law and the logprobs an exponential one, so that they compress about
as badly as real ones.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import random
import resource
import tempfile
import time
from itertools import accumulate
from pathlib import Path
from statistics import median
from typing import Any
from urllib.parse import urlencode

from chromium import Tab, chromium, find_chromium
from harness import missing, parse, print_result, say

import vf
from vf.traces.trace import Branch, Score, StopReason, Turn
from vf.traces.view.sources import find_sources
from vf.traces.view.write_page import write_page

TARGET_SECONDS = 3.0
VOCABULARY = 50_000
TURNS = 10

# Runs in the page: scrolls by part of a screen in each of 120 frames, and returns the gaps in ms.
SCROLL = """
new Promise((resolve) => {
  const box = document.querySelector(SELECTOR);
  const gaps = [];
  let last = performance.now();
  function frame() {
    const now = performance.now();
    gaps.push(now - last);
    last = now;
    box.scrollTop += STEP * box.clientHeight;
    if (gaps.length < 120) requestAnimationFrame(frame);
    else resolve({longest: Math.max(...gaps.slice(1)), at: box.scrollTop});
  }
  requestAnimationFrame(frame);
})
"""


def make_trace(index: int, tokens: int, rng: random.Random, weights: list[float]) -> vf.Trace:
    """Return a rollout of ten turns."""
    branch, turns, messages = Branch(), [], [vf.Message("user", f"Question {index}?")]
    part = tokens // (2 * TURNS)
    for turn in range(TURNS):
        branch.add_context(rng.choices(range(VOCABULARY), cum_weights=weights, k=part), turn)
        ids = rng.choices(range(VOCABULARY), cum_weights=weights, k=part)
        branch.add_sampled(ids, [-rng.expovariate(2) for _ in ids], [turn // 3] * part, turn)
        turns.append(Turn(part, part, "stop", rng.random()))
        messages += [vf.Message("assistant", "word " * part), vf.Message("user", "word " * part)]
    reward = rng.random()
    return vf.Trace(
        environment="benchmark",
        task=vf.Task(f"task-{index // 8}", f"Question {index}?"),
        seed=index,
        messages=messages,
        prompt_messages=1,
        branches=[branch],
        turns=turns,
        score=Score(reward, reward),
        stop_reason=StopReason.TERMINATED,
        timing={"total": rng.random()},
    )


async def measure(program: str, page: Path) -> dict[str, float]:
    """Open the page in a browser of its own."""
    async with chromium(program) as tab:
        await tab.size(1440, 900)
        started = time.perf_counter()
        await tab.open(page.as_uri())
        await tab.until("document.body?.dataset.ready && document.querySelector('#rows .row')", 60)
        table = time.perf_counter() - started
        await tab.until("document.readyState === 'complete'", 60)
        whole = time.perf_counter() - started
        idle = await scroll(tab, "#grid", 0.0)
        scrolled = await scroll(tab, "#grid")
        first, again = [await search(tab, words) for words in ('"question 7?"', '"question 3?"')]
        await tab.evaluate("location.hash = ''")
        await tab.until("!document.getElementById('count').textContent.includes(' of ')")
        started = time.perf_counter()
        await tab.evaluate("document.querySelector('#rows .row').click()")
        await tab.until("document.querySelector('.tabs')")
        await tab.evaluate("document.getElementById('tab-tokens').click()")
        await tab.until("document.querySelectorAll('.token').length > 100")
        opened = time.perf_counter() - started
        read = await scroll(tab, ".pane")
        if tab.errors:
            raise RuntimeError(f"errors in the page: {tab.errors}")
    return {
        "table_s": table,
        "whole_page_s": whole,
        "open_tokens_s": opened,
        "first_search_s": first,
        "search_s": again,
        "idle_longest_frame_ms": idle,
        "table_longest_frame_ms": scrolled,
        "tokens_longest_frame_ms": read,
    }


async def search(tab: Tab, words: str) -> float:
    """Return the seconds until the one trace that has the words is found."""
    started = time.perf_counter()
    await tab.evaluate(f"location.hash = {json.dumps(urlencode({'q': words}))}")
    await tab.until("document.getElementById('count').textContent.startsWith('1 of ')", 60)
    found = time.perf_counter() - started
    await tab.evaluate("location.hash = 'reward=none'")
    await tab.until("document.getElementById('count').textContent.startsWith('0 of ')", 60)
    return found


async def scroll(tab: Tab, selector: str, step: float = 0.5) -> float:
    """Return the longest gap between two frames, in ms, of scrolling by ``step`` screens."""
    script = SCROLL.replace("SELECTOR", json.dumps(selector)).replace("STEP", str(step))
    found: dict[str, Any] = await tab.evaluate(script)
    if step and found["at"] < 1000:
        raise RuntimeError(f"{selector} did not scroll")
    return float(found["longest"])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--traces", type=int, default=1000)
    parser.add_argument("--tokens", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=5)
    args = parse(parser, traces=100, tokens=4000, rounds=1)
    program = find_chromium()
    if program is None:
        missing("Chromium: apt-get install chromium")
    say(f"writing {args.traces:,} traces of {args.tokens:,} tokens")
    rng = random.Random(0)
    weights = list(accumulate(1 / (rank + 10) for rank in range(VOCABULARY)))
    with tempfile.TemporaryDirectory() as folder:
        path, page = Path(folder) / "traces.jsonl", Path(folder) / "traces.html"
        with vf.TraceStore(path) as store:
            for index in range(args.traces):
                store.append(make_trace(index, args.tokens, rng, weights))
        say("writing the page")
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        started = time.perf_counter()
        write_page(find_sources([path]), page, title="benchmark")
        writing = time.perf_counter() - started
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        sizes = {"jsonl_mb": path.stat().st_size / 1e6, "page_mb": page.stat().st_size / 1e6}
        rounds = []
        for number in range(args.rounds):
            say(f"round {number + 1} of {args.rounds}")
            rounds.append(asyncio.run(measure(program, page)))
            print("  ".join(f"{k} {v:.3f}" for k, v in rounds[-1].items()), flush=True)
    medians = {key: round(median(each[key] for each in rounds), 3) for key in rounds[0]}
    print_result(
        args,
        "trace_viewer",
        ratio=round(TARGET_SECONDS / medians["whole_page_s"], 2),
        target=1.0,
        **medians,
        writing_s=round(writing, 1),
        writing_memory_growth_mib=round(grown / 1024, 1),
        **{key: round(value, 1) for key, value in sizes.items()},
        options=vars(args),
        cores=os.cpu_count(),
        versions={"python": platform.python_version()},
    )


if __name__ == "__main__":
    main()

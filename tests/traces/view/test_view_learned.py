"""Why it learned: tokens by advantage, ratio and clipping, and how the reward comes about."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from chromium import Tab

import vf
from tests.traces.view.browser import count, look, page_of, text
from tests.traces.view.material import research
from vf.traces.learned import Learned, write_learned
from vf.traces.trace import Score
from vf.traces.view.sources import find_sources
from vf.traces.view.write_page import write_page

pytestmark = pytest.mark.browser

ADVANTAGES = [1.5, 0.5, 0.1, 0.0, -0.1, -0.5, -1.5, 1.5, 1.5, 1.5]
RATIOS = [1.0, 1.05, 1.2, 2.0, 0.95, 0.8, 0.5, 1.0, 1.0, 1.0]


def learned_page(folder: Path) -> Path:
    """Write a run of two rollouts; of the first it was written down what the loss used, twice."""
    traces, run = [research(0), research(1)], folder / "run"
    (run / "traces").mkdir(parents=True)
    with vf.TraceStore(run / "traces" / "step-000004.jsonl") as store:
        for trace in traces:
            store.append(trace)
    mask = [1 if 30 <= i < 40 else 0 for i in range(80)]
    first = Learned("trace-0", 0, 1, mask, [0.25] * 10, [-0.5] * 10, [0.0] * 10)
    second = Learned(
        *("trace-0", 0, 2, mask, ADVANTAGES, [-0.5 + math.log(r) for r in RATIOS]),
        *([math.log(r) for r in RATIOS], [1.0] * 9 + [0.5]),
        clipped=[0, 0, 0, 1, 0, 0, 1, 0, 0, 0],
        dropped=[0] * 8 + [1, 0],
        bounded=[0] * 9 + [1],
        teacher_logprobs=[-0.125] * 9 + [-2.5],
    )
    write_learned(run / "learned" / "step-000004.jsonl", [first, second])
    page = folder / "page.html"
    write_page(find_sources([run]), page, title="run")
    return page


def classes(start: int = 30, end: int = 40) -> str:
    places = json.dumps(list(range(start, end)))
    return (
        f'{places}.map(i => document.querySelector(`.token[data-i="${{i}}"]`)'
        "?.className.split(' ')[1]).join(' ')"
    )


async def choose(tab: Tab, label: str, value: str) -> None:
    find = "[...document.querySelectorAll('.tokens .bar label')].find(e => e.textContent.startsWith"
    await tab.evaluate(
        f"{{const s = {find}({json.dumps(label)})).querySelector('select');"
        f"s.value = {json.dumps(value)}; s.dispatchEvent(new Event('change'))}}"
    )


def test_tokens_are_coloured_by_what_the_loss_used_with_numbers(tmp_path: Path) -> None:
    async def check(tab: Tab) -> None:
        await tab.until(count(".token[data-i]"))
        await choose(tab, "Colour by", "advantage")
        await tab.until(f"{classes()} === 'up3 up2 up1 flat down1 down2 down3 up3 up3 up3'")
        assert "colour=advantage" in await tab.evaluate("location.hash")
        legend = text(".legend .swatch")
        numbers = "≤ −1|to −0.2|to 0|0|to 0.2|to 1|≥ 1|not trained"
        assert await tab.evaluate(legend) == numbers
        assert await tab.evaluate(classes(29, 30)) == "context"
        await choose(tab, "Optimizer step", "1")
        await tab.until(f"{classes()} === '{' '.join(['up2'] * 10)}'")
        await choose(tab, "Optimizer step", "2")
        await choose(tab, "Colour by", "ratio")
        await tab.until(f"{classes()} === 'flat up1 up2 up3 down1 down2 down3 flat flat flat'")
        assert (await tab.evaluate(legend)).startswith("≤ 0.74|to 0.90|to 0.99|1|")
        await choose(tab, "Colour by", "clip")
        held = "sampled sampled sampled clipped sampled sampled clipped sampled dropped bounded"
        await tab.until(f"{classes()} === '{held}'")
        counts = await tab.evaluate(legend)
        assert counts.startswith("as it is 6|dropped: no policy gradient 1|clipped 2|")
        await tab.evaluate(
            "document.querySelector('[data-i=\"33\"]').dispatchEvent("
            "new PointerEvent('pointerover', {bubbles: true}))"
        )
        names = (await tab.evaluate(text("#hover dt"))).split("|")
        facts = dict(zip(names, (await tab.evaluate(text("#hover dd"))).split("|"), strict=True))
        assert facts["advantage"] == "0"
        assert facts["trainer's logprob"] == "0.193"
        assert facts["ratio in the loss"] == "2.0000"
        assert facts["trainer ÷ sampler"] == "2.000"
        assert facts["teacher's logprob"] == "-0.125"
        assert facts["held back"] == "clipped"

    look(learned_page(tmp_path), check, trace="trace-0", tab="tokens")


def test_a_trace_of_which_nothing_was_written_says_how_to_find_one(tmp_path: Path) -> None:
    async def check(tab: Tab) -> None:
        await tab.until(f"{text('.notice')}.includes('search for learned>0')")
        await tab.evaluate("location.hash = 'q=learned>0'")
        await tab.until(f"{text('#count')}.startsWith('1 of 2')")

    look(learned_page(tmp_path), check, trace="trace-1", tab="tokens", colour="advantage")


def test_the_rewards_arithmetic_is_in_the_open(tmp_path: Path) -> None:
    scores = [
        Score(0.9, 1.0, penalties={"tool_errors": 0.5}),
        Score(0.0, 1.0, gates={"no_hack": False}),
        Score(0.75, 0.75, parts={"right": 1.0, "short": 0.5}),
        Score(0.6, 0.8, penalties={"tool_errors": 0.5, "length": 1.0}),
        Score(0.0, 0.0, penalties={"tool_errors": 0.5}),
    ]
    traces = [research(i) for i in range(len(scores))]
    for trace, score in zip(traces, scores, strict=True):
        trace.score = score
    said = [
        "1 × (1 − 0.1) = 0.90.1 was taken by tool_errors = 0.5, at a weight of 0.2.",
        "reward = 0broken: no_hack. A gate that is broken makes the reward 0.",
        "weighted mean of right 1, short 0.5 = 0.75",
        "0.8 × (1 − 0.25) = 0.60.25 was taken by tool_errors = 0.5, length = 1, each times its"
        " weight.",
        "0 × (1 − penalties) = 0The outcome is 0, so there is nothing that penalties could reduce.",
    ]

    async def check(tab: Tab) -> None:
        for index, expected in enumerate(said):
            await tab.evaluate(f"location.hash = 'trace=trace-{index}&tab=reward'")
            await tab.until(f"{text('.arithmetic')} === {json.dumps(expected)}")

    look(page_of(tmp_path, *traces), check)

"""What changed in a task: its traces of several steps, runs and models side by side."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import pytest
from chromium import Tab

import vf
from tests.traces.view.browser import count, look, text
from vf.traces.trace import Branch, Score, StopReason, Turn
from vf.traces.view.sources import find_sources
from vf.traces.view.write_page import write_page

pytestmark = pytest.mark.browser

PROMPT = list(range(100, 150))


def answered(name: str, ids: Sequence[int], reply: str, chance: float = 0.5) -> vf.Trace:
    """Return a held-out rollout whose prompt is always the same."""
    branch = Branch()
    branch.add_context(PROMPT, 0)
    branch.add_sampled(list(ids), [math.log(chance)] * len(ids), [1] * len(ids), 0)
    messages = [vf.Message("user", "Which river?"), vf.Message("assistant", reply)]
    return vf.Trace(
        environment="quiz",
        task=vf.Task("river", "Which river?", answer="Akerselva"),
        seed=0,
        id=name,
        messages=messages,
        prompt_messages=1,
        branches=[branch],
        turns=[Turn(50, len(ids), "stop", 1.0)],
        score=Score(chance, chance),
        stop_reason=StopReason.TERMINATED,
    )


def run(folder: Path, model: str, steps: dict[int, vf.Trace]) -> Path:
    (folder / "traces").mkdir(parents=True)
    (folder / "config.toml").write_text(f'model = "{model}"')
    for step, trace in steps.items():
        with vf.TraceStore(folder / "traces" / f"eval-{step:06d}.jsonl") as store:
            store.append(trace)
    return folder


def page_of_runs(page: Path, *runs: Path) -> Path:
    """Write the page; the tokens of `other` have other texts than those of the rest."""
    write_page(
        find_sources(runs),
        page,
        title="runs",
        texts_of=lambda model: lambda ids: [f" {'ab'[model == 'other']}{i}" for i in ids],
    )
    return page


def test_steps_stand_side_by_side_with_the_first_token_that_differs(tmp_path: Path) -> None:
    steps = {
        0: answered("before", [7, 8, 9, 10], "the Rhine", 0.25),
        10: answered("middle", [7, 8, 9, 10], "the Rhine", 0.5),
        15: answered("later", [7, 8, 9], "the Rhine"),
        30: answered("after", [7, 8, 30, 31], "the Akerselva", 0.8),
    }
    page = page_of_runs(tmp_path / "page.html", run(tmp_path / "run", "one", steps))
    named = "[...document.querySelectorAll('.side select')].map(e => e.selectedOptions[0].text)"

    async def check(tab: Tab) -> None:
        await tab.key("w")
        await tab.until(f"{count('.side')} === 3")
        assert await tab.evaluate(f"{named}.map(e => e.split(',')[0])") == [
            "step 0",
            "step 10",
            "step 30",
        ]
        assert await tab.evaluate(text(".lead")) == (
            "First difference at token 53:  a9, probability 25.0 %|The same as the first."
            "|Differs from the first at token 53:  a30, probability 80.0 %"
        )
        assert await tab.evaluate(text(".differs")) == " a9| a30"
        assert await tab.evaluate(text(".alike summary")) == "|".join(["12 tokens alike"] * 3)
        assert await tab.evaluate(count(".side .token")) == 3 * 42
        await tab.evaluate("document.querySelector('.alike').open = true")
        await tab.until(f"{count('.alike .token')} === 12")
        await tab.evaluate("[...document.querySelectorAll('.side-choice button')][1].click()")
        await tab.until(f"{count('.side')} === 2")
        assert "trace=before&with=after&tab=changed" in await tab.evaluate("location.hash")
        await tab.evaluate(
            "{const s = document.querySelectorAll('.side select')[1]; s.value = 'later';"
            "s.dispatchEvent(new Event('change'))}"
        )
        await tab.until(f"{text('.lead')}.includes('Ends before the first difference')")
        assert "with=later" in await tab.evaluate("location.hash")
        await tab.evaluate("document.querySelector('.add').click()")
        await tab.until(f"{count('.side')} === 3")

    look(page, check)


@pytest.mark.slow
def test_two_models_of_other_tokenizers_are_compared_by_words(tmp_path: Path) -> None:
    one = run(tmp_path / "one", "one", {5: answered("one", [7, 8], "It is the Rhine")})
    two = run(tmp_path / "two", "other", {5: answered("two", [7, 8], "It is the Akerselva")})
    alike = run(tmp_path / "copy", "copy", {5: answered("copy", [7, 9], "It is the Rhine")})

    async def words(tab: Tab) -> None:
        await tab.until(f"{count('.side')} === 2")
        assert await tab.evaluate(text(".differs")) == " Rhine| Akerselva"
        assert "First difference at word 6: Rhine" in await tab.evaluate(text(".lead"))

    async def tokens(tab: Tab) -> None:
        await tab.until(f"{count('.side')} === 2")
        assert await tab.evaluate(text(".differs")) == " a9| a8"

    async def runs(tab: Tab) -> None:
        await tab.until(f"{count('.side')} === 2")
        assert "First difference at token 51" in await tab.evaluate(text(".lead"))
        await tab.evaluate("document.querySelector('.across-runs').click()")
        await tab.until(f"{text('.lead')}.includes('token 52')")
        assert "trace=one&with=copy" in await tab.evaluate("location.hash")

    look(page_of_runs(tmp_path / "a.html", one, two), words, trace="one", tab="changed")
    look(page_of_runs(tmp_path / "b.html", one, alike), tokens, trace="one", tab="changed")
    with vf.TraceStore(one / "traces" / "eval-000000.jsonl") as store:
        store.append(answered("start", [30, 8], "It is the Rhine"))
    look(page_of_runs(tmp_path / "c.html", one, alike), runs, trace="one", tab="changed")


def test_a_task_that_is_there_once_says_what_to_name_beside_it(tmp_path: Path) -> None:
    page = page_of_runs(
        tmp_path / "page.html", run(tmp_path / "run", "one", {0: answered("one", [7], "x")})
    )

    async def check(tab: Tab) -> None:
        await tab.until(count(".changed"))
        assert "vf-rl view runs/a runs/b" in await tab.evaluate(text(".changed"))

    look(page, check, trace="one", tab="changed")

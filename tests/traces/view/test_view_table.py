"""The table of traces: train and eval apart, what a search finds and refuses, columns, copying."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import urlencode

import pytest
from chromium import Tab

import vf
from tests.traces.view.browser import count, look, page_of, text, write_run
from tests.traces.view.material import research

pytestmark = pytest.mark.browser


async def go(tab: Tab, until: str, **state: str) -> None:
    await tab.evaluate(f"location.hash = {json.dumps(urlencode(state))}")
    await tab.until(until)


async def expect(tab: Tab, start: str, **state: str) -> None:
    await go(tab, f"{text('#count')}.startsWith({json.dumps(start)})", **state)


def test_train_and_eval_have_a_count_and_a_mean_each(tmp_path: Path) -> None:
    async def check(tab: Tab) -> None:
        splits = "All 8|Train 4, mean 0.657|Eval 4, mean 0.250"
        assert await tab.evaluate(text(".splits button")) == splits
        assert await tab.evaluate(text("#count")) == "8 traces"  # no mean over both
        await tab.key("t")
        await tab.until(f"{text('#count')} === '4 of 8 traces, mean reward 0.657'")
        await expect(tab, "4 of 8 traces, mean reward 0.250", split="eval")
        await expect(tab, "2 of 8 traces, mean reward 0.500", split="eval", step="15")
        means = await tab.evaluate(text(".splits button"))
        assert means == "All 2|Train 0|Eval 2, mean 0.500"
        await expect(tab, "1 of 8", q="gain>0 split:eval")

    look(write_run(tmp_path), check)


def test_a_search_finds_text_anywhere_in_a_trace(tmp_path: Path) -> None:
    deep = research(7)
    deep.messages[6].content = f"{'x' * 3000} the Ångström value is -12.5 degrees"
    deep.info = {"note": "left by the environment"}
    page = page_of(tmp_path, *(research(i) for i in range(30) if i != 7), deep)

    async def check(tab: Tab) -> None:
        await expect(tab, "1 of 30", q="ångström")
        await expect(tab, "1 of 30", q="-12.5")  # a negative number is looked for
        await expect(tab, "29 of 30", q="-ångström")  # a word is excluded
        await expect(tab, "29 of 30", q='-"-12.5"')
        await expect(tab, "1 of 30", q='"left by the environment"')
        await expect(tab, "29 of 30", q="syntaxerror")
        await expect(tab, "30 traces", q="tools:python print(1")
        await expect(tab, "1 of 30", q="ångström reward>-0.5")
        await expect(tab, "0 of 30", q="ångström reward<-0.5")
        await tab.evaluate("document.querySelector('#clear').click()")
        await expect(tab, "1 of 30", q="ångström", trace="trace-7")
        await tab.until("CSS.highlights.get('found')?.size === 1")

    look(page, check)


def test_a_field_that_is_none_is_refused_with_the_nearest(tmp_path: Path) -> None:
    async def check(tab: Tab) -> None:
        said = text("#query-problem")
        await go(tab, f"{said}.includes('no field “rewrad”')", q="rewrad>0.5")
        assert "Did you mean “reward”?" in await tab.evaluate(said)
        assert await tab.evaluate(count("#rows .row")) == 0
        await go(tab, f"{said}.includes('not with “high”')", q="reward>high")
        await go(tab, f"{said}.includes('“stop” is text')", q="stop>1")
        await expect(tab, "3 traces", q="reward>")  # still typing
        assert await tab.evaluate("document.getElementById('query-problem').hidden")
        await expect(tab, "0 of 3", q='"rewrad>0.5"')

    look(page_of(tmp_path, *(research(i) for i in range(3))), check)


def test_columns_are_chosen_in_the_address_and_answers_have_theirs(tmp_path: Path) -> None:
    boxed = research(1)
    boxed.messages[-1].content = "So \\boxed{\\frac{1}{2}}."

    async def check(tab: Tab) -> None:
        assert "ExpectedAnswer" in (await tab.evaluate(text(".c-expected, .c-stated"))).replace(
            "|", ""
        )
        heads = text("#columns > div")
        await go(tab, f"{heads} === 'Task|Expected|Answer'", cols="task,expected,stated,nothing")
        cells = (await tab.evaluate(text(".row .c-expected, .row .c-stated"))).split("|")
        assert cells == ["Akerselva", "river 0", "Akerselva", "\\frac{1}{2}"]
        await tab.evaluate(
            "document.querySelectorAll('#columns-menu input')[0].click()"  # the reward
        )
        await tab.until(f"{heads} === 'Reward|Task|Expected|Answer'")
        assert "cols=reward%2Ctask%2Cexpected%2Cstated" in await tab.evaluate("location.hash")

    look(page_of(tmp_path, research(0), boxed), check)


def test_filters_stay_while_a_trace_is_open_and_texts_can_be_copied(tmp_path: Path) -> None:
    trap = "window.copied = []; navigator.clipboard.writeText = async (t) => { copied.push(t) }"

    async def check(tab: Tab) -> None:
        await tab.key("Enter")
        await tab.until(count(".conversation"))
        assert await tab.evaluate("document.querySelector('.selects').checkVisibility()")
        await tab.evaluate(trap)
        await tab.evaluate("document.querySelector('.card.answer .copy').click()")
        await tab.evaluate("document.querySelector('.call .copy').click()")
        await tab.key("y")
        await tab.until("window.copied.length === 3")
        answer, arguments, address = await tab.evaluate("copied")
        assert (answer, arguments) == ("Akerselva", '{"query": "city"}')
        assert address.endswith("#trace=trace-0")
        top = "document.querySelector('.pane').scrollTop"
        await tab.key("n")
        await tab.until(f"{top} > 0")
        await tab.key("p")
        await tab.until(f"{top} === 0")

    look(page_of(tmp_path, *(research(i) for i in range(3))), check)


@pytest.mark.slow
def test_ten_thousand_traces_are_searched_in_a_moment(tmp_path: Path) -> None:
    traces = [research(i) for i in range(25)]
    many: list[vf.Trace] = [traces[i % 25] for i in range(10_000)]

    async def check(tab: Tab) -> None:
        took = (
            "(async () => { const began = performance.now(); location.hash = 'q=syntaxerror+river';"
            "while (!document.getElementById('count').textContent.startsWith('10,000 traces, mean')"
            " || !location.hash.includes('syntax')) await new Promise(r => setTimeout(r, 5));"
            "return performance.now() - began })()"
        )
        assert await tab.evaluate(took) < 10_000  # 0.2 s where nothing else runs
        assert await tab.evaluate(count("#rows .row")) < 40

    look(page_of(tmp_path, *many), check)

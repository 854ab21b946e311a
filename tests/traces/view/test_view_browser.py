"""The page in a real headless Chromium: what it shows, and that no trace runs anything in it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from urllib.parse import urlencode

import pytest
from chromium import Tab, chromium, find_chromium

import vf
from tests.pictures import png
from tests.traces.agents import delegated
from tests.traces.view.browser import count, look, page_of, show, text
from tests.traces.view.material import ATTACK, hostile, research

pytestmark = pytest.mark.browser


def test_nothing_in_a_trace_becomes_markup_in_any_view(tmp_path: Path) -> None:
    page = page_of(tmp_path, hostile(), research(1))
    ours = {"SCRIPT": 8, "IMG": 0, "STYLE": 1, "svg": 0}  # index, ours, traces, searched, tokens

    async def check(tab: Tab) -> None:
        for key in "123456":
            await show(tab, key)
            for tag, expected in ours.items():
                assert await tab.evaluate(count(tag)) == expected, (key, tag)
            assert ATTACK in await tab.evaluate(text("#detail h2"))
        assert ATTACK in await tab.evaluate("document.title")

    look(page, check, trace=ATTACK)


def test_the_policy_would_stop_what_slipped_through(tmp_path: Path) -> None:
    page = page_of(tmp_path, research())

    async def run() -> None:
        async with chromium(str(find_chromium())) as tab:
            await tab.open(page.as_uri())
            await tab.until("document.body && document.body.dataset.ready")
            with pytest.raises(RuntimeError, match="TrustedHTML"):
                await tab.evaluate("document.body.innerHTML = '<b>x</b>'")
            await tab.evaluate(
                "{const s = document.createElementNS('http://www.w3.org/2000/svg', 'script');"
                "s.append('window.pwned = 1'); document.body.append(s);"
                "const i = document.createElement('img'); i.src = 'http://127.0.0.1:9/x';"
                "document.body.append(i)}"
            )
            await tab.until("performance.now() > 0")
            assert await tab.evaluate("window.pwned === undefined")
            assert [error for error in tab.errors if "Content Security Policy" in error]

    asyncio.run(run())


def test_hidden_characters_are_shown_and_a_huge_line_comes_in_parts(tmp_path: Path) -> None:
    async def check(tab: Tab) -> None:
        labels = await tab.evaluate(text(".conversation .hidden-char"))
        assert labels == "RLO|PDF|ZWSP|ESC|BEL|LS"
        shown = await tab.evaluate(text(".conversation .text"))
        assert "می\u200cخواهم 👩\u200d👩" in shown  # scripts that need joiners keep them
        assert not set("\u202e\u200b\x1b") & set(shown)
        long = "[...document.querySelectorAll('.text')].find(e => e.textContent.startsWith('xxx'))"
        assert await tab.evaluate(f"{long}.firstChild.textContent.length") == 20_000
        assert "2,980,000 characters left" in await tab.evaluate(f"{long}.textContent.slice(-60)")
        await tab.evaluate(f"{long}.querySelector('button').click()")
        assert await tab.evaluate(f"{long}.textContent.length > 220000")
        pane = "document.querySelector('.pane')"
        assert await tab.evaluate(f"{pane}.scrollWidth - {pane}.clientWidth") == 0

    look(page_of(tmp_path, hostile()), check, trace=ATTACK)


def test_the_table_filters_sorts_and_searches(tmp_path: Path) -> None:
    page = page_of(tmp_path, *(research(i) for i in range(300)), hostile())

    async def expect(tab: Tab, start: str, **state: str) -> None:
        await tab.evaluate(f"location.hash = {json.dumps(urlencode(state))}")
        await tab.until(f"{text('#count')}.startsWith({json.dumps(start)})", 10)

    async def check(tab: Tab) -> None:
        assert await tab.evaluate(count("#rows .row")) < 40  # of 301: only what is seen is drawn
        await expect(tab, "301 traces, mean reward 0.543")
        await expect(tab, "100 of 301 traces, mean reward 0.0", reward="zero")
        await expect(tab, "101 of 301", reward="part")
        await expect(tab, "100 of 301", reward="part", stop="terminated")
        await expect(tab, "1 of 301", error="any")
        await expect(tab, "24 of 301", q="task:river-7 turns>=3 river-7")
        await expect(tab, "2 of 301", q="reward>0.6 -reward=1 river-74")
        await expect(tab, "0 of 301", q="nowhere")
        assert await tab.evaluate("!document.getElementById('empty').hidden")
        await expect(tab, "24 of 301", q="river-7", sort="-reward")
        first = "document.querySelector('[aria-rowindex=\"2\"]').textContent"
        assert (await tab.evaluate(first)).startswith("1.000")
        await tab.evaluate("document.querySelector('.c-reward button').click()")
        await tab.until(f"{first}.startsWith('0.000')")
        assert "sort=reward" in await tab.evaluate("location.hash")
        await tab.evaluate("document.getElementById('clear').click()")
        await tab.evaluate("document.getElementById('grid').scrollTop = 1e6")
        await tab.until("document.querySelector('[aria-rowindex=\"302\"]')")
        assert await tab.evaluate(count("#rows .row")) < 40

    look(page, check)


def test_a_conversation_shows_each_call_with_its_event_and_result(tmp_path: Path) -> None:
    async def check(tab: Tab) -> None:
        calls = (await tab.evaluate(text(".call"))).split("|")
        assert calls == [
            'callsearchok250 ms{"query": "city"}resultfound the river',
            'callopenrejected50 ms{"doc_id": "oslo"}no document osloresultno such document',
            "callpythoninvalid json0 sprint(1not JSONresultSyntaxError",
        ]
        assert "30 prompt + 10 sampled tokens · 1.50 s" in await tab.evaluate(text(".rule"))
        assert "forked: the template rewrote turn 1" in await tab.evaluate(text(".rule.fork"))

    look(page_of(tmp_path, research()), check, trace="trace-0")


def test_a_conversation_of_very_many_messages_comes_in_parts(tmp_path: Path) -> None:
    trace = research()
    trace.messages += [vf.Message("assistant", f"again {i}") for i in range(1200)]

    async def check(tab: Tab) -> None:
        assert await tab.evaluate(count(".message")) < 500
        more = "document.querySelector('.more-messages')"
        assert "(708 messages left)" in await tab.evaluate(f"{more}.textContent")
        await tab.evaluate(f"{more}.click(); {more}.click()")
        assert await tab.evaluate(f"{more} === null")
        assert (await tab.evaluate(text(".message"))).endswith("assistantagain 1199")

    look(page_of(tmp_path, trace), check, trace="trace-0")


@pytest.mark.parametrize("named", [True, False])
def test_every_token_tells_what_is_known_of_it(tmp_path: Path, named: bool) -> None:
    trace = research()

    async def facts(tab: Tab, index: int) -> dict[str, str]:
        await tab.evaluate(
            f"document.querySelector('[data-i=\"{index}\"]').dispatchEvent("
            "new PointerEvent('pointerover', {bubbles: true}))"
        )
        names = (await tab.evaluate(text("#hover dt"))).split("|")
        return dict(zip(names, (await tab.evaluate(text("#hover dd"))).split("|"), strict=True))

    async def check(tab: Tab) -> None:
        await tab.until(f"{count('.token[data-i]')} === {len(trace.branches[0])}")
        tokens = "[...document.querySelectorAll('.token[data-i]')]"
        masks = f"{tokens}.map(e => +e.classList.contains('sampled'))"
        assert await tab.evaluate(masks) == trace.branches[0].loss_mask
        words = (await tab.evaluate(text(".token[data-i]"))).split("|")
        ids = trace.branches[0].token_ids
        assert words == [f" <{i}>" if named and i % 2 == 0 else str(i) for i in ids]
        assert (await facts(tab, 0))["loss mask"] == "0, context"
        assert "branch 2 left before" not in str(await facts(tab, 49))
        sampled = await facts(tab, 75)
        assert sampled["id"] == str(ids[75])
        assert sampled["logprob"] == "-0.500"
        assert sampled["weight version"] == "4"
        assert sampled["turn"] == "2"
        assert "branch 2 left before this token: the template rewrote" in sampled["fork"]
        await tab.evaluate(
            "{const s = document.querySelector('.tokens select'); s.value = '1';"
            "s.dispatchEvent(new Event('change'))}"
        )
        await tab.until(f"{count('.token[data-i]')} === 54")
        assert "no, forked at token 50" in str(await facts(tab, 51))
        assert [(await facts(tab, i))["logprob"] for i in (51, 52, 53)] == ["-0.250", "-inf", "-70"]
        assert "forked from branch 1: the template rewrote turn 1" in await tab.evaluate(
            text(".flow h4 .fork")
        )

    look(page_of(tmp_path, trace, named=named), check, trace="trace-0", tab="tokens")


def test_long_traces_are_drawn_only_where_they_are_seen(tmp_path: Path) -> None:
    trace = research()
    trace.branches[0].add_sampled([8] * 100_000, [-1.0] * 100_000, [9] * 100_000, 2)
    reach = "document.querySelector('[data-i=\"100079\"]')"

    async def check(tab: Tab) -> None:
        await tab.until(count(".token[data-i]"))
        assert await tab.evaluate(count(".token[data-i]")) < 10_000
        # The pane gets longer as more of it is drawn.
        await tab.until(f"(document.querySelector('.pane').scrollTop = 1e9, {reach})")
        assert await tab.evaluate(count(".token[data-i]")) < 10_000

    look(page_of(tmp_path, trace), check, trace="trace-0", tab="tokens")


def test_reward_timeline_and_two_of_a_group_side_by_side(tmp_path: Path) -> None:
    async def check(tab: Tab) -> None:
        rows = (await tab.evaluate(text(".scores tbody tr"))).split("|")
        assert rows[0] == "Rewardreward0"
        assert "tool_errorspenalty0.37" in rows
        assert "no_hackgatebroken" in rows
        assert "wordsmetricnan" in rows
        assert "skippedmetricn/a" in rows
        await tab.key("4")
        await tab.until(count(".span"))
        lanes = await tab.evaluate(
            "['environment', 'generate', 'tools', 'score'].map("
            "l => document.querySelectorAll('.span.' + l).length)"
        )
        assert lanes == [4, 3, 3, 1]
        await tab.key("c")
        await tab.until(f"{count('.pane')} === 2")
        assert await tab.evaluate(text(".big-reward")) == "0.000reward|1.000reward"
        assert "with=trace-0" in await tab.evaluate("location.hash")
        await tab.key("Escape")
        await tab.until("document.getElementById('detail').hidden")

    page = page_of(tmp_path, *(research(i) for i in range(5)))
    look(page, check, trace="trace-1", tab="reward")


def test_the_keyboard_alone_is_enough(tmp_path: Path) -> None:
    async def check(tab: Tab) -> None:
        await tab.key("j")
        await tab.key("j")
        await tab.key("Enter")
        await tab.until("location.hash.includes('trace=trace-2')")
        await tab.key("k")
        await tab.until("location.hash.includes('trace=trace-1')")
        await tab.key("/")
        assert await tab.evaluate("document.activeElement.id") == "search"
        await tab.key("Escape")
        await tab.key("?")
        assert await tab.evaluate("document.getElementById('help').open")

    look(page_of(tmp_path, *(research(i) for i in range(5))), check)


def test_an_agents_conversations_with_their_reasons_tokens_and_what_it_left(
    tmp_path: Path,
) -> None:
    trace = delegated()

    async def pick(tab: Tab, place: int) -> None:
        await tab.evaluate(f"document.querySelectorAll('.conversations button')[{place}].click()")
        await tab.until(f"location.hash.includes('part={place + 1}')")
        chosen = "[...document.querySelectorAll('.conversations button')]"
        await tab.until(f"{chosen}.findIndex(e => e.ariaPressed === 'true') === {place}")

    async def check(tab: Tab) -> None:
        main, helper, again = (await tab.evaluate(text(".conversations li"))).split("|")
        assert main == "1  You lead. 2 answers, 5 sampled tokens"
        assert helper.startswith("2 conversation You help. 2 answers, 24 sampled tokens")
        assert "the first message differs" in helper
        assert again.startswith("3 parallel Answer: B 1 answer, 2 sampled tokens")
        depths = "[...document.querySelectorAll('.conversations li')].map("
        depths += "e => getComputedStyle(e).paddingLeft)"
        assert await tab.evaluate(depths) == ["0px", "0px", "22px"]
        # The one that was answered last is shown first, what it repeats folded.
        assert await tab.evaluate(text(".message")) == "assistantAnswer: B"
        assert await tab.evaluate(text(".repeated summary")) == "4 messages as in conversation 1"
        await tab.evaluate("document.querySelector('.repeated').open = true")
        await tab.until(f"{count('.repeated .message')} === 3")
        await pick(tab, 1)
        said = await tab.evaluate(text(".message"))
        assert "You help." in said
        assert "[noted]" in said
        turns = await tab.evaluate(text(".rule:not(.fork)"))
        assert [each.split(" ")[1] for each in turns.split("|")] == ["2", "3"]
        assert "callsearchok" in await tab.evaluate(text(".call"))
        left = await tab.evaluate(text(".program"))
        for part in ("OutputAnswer: B", "exit code 0", "stderra warning", "File notes.md# Notes"):
            assert part in left
        await show(tab, "2")
        await tab.until(f"{count('.token[data-i]')} === {len(trace.branches[1])}")
        await pick(tab, 2)
        await tab.until(f"{count('.token[data-i]')} === {len(trace.branches[2])}")
        copied = "[...document.querySelectorAll('.token[data-i]')]"
        copied += ".filter(e => e.classList.contains('copied')).map(e => +e.dataset.i)"
        assert await tab.evaluate(copied) == [5, 6, 7]
        heads = await tab.evaluate(text(".flow h4"))
        assert "copied from branch 1 · 3 tokens" in heads
        assert "⋔ forked from branch 1: asked again after 4 messages" in heads
        await show(tab, "5")
        assert "program" not in await tab.evaluate(text(".boxed"))

    look(page_of(tmp_path, trace, research()), check, trace="agent")


def test_what_could_not_be_read_is_counted_and_what_could_is_shown(tmp_path: Path) -> None:
    foreign = b'{"messages": [{"role": "user", "content": "hello from elsewhere"}]}\n'
    torn = research(1).to_json()[:500]
    page = page_of(tmp_path, research(), tail=b"\xff\xfe no JSON\n" + foreign + torn)

    async def check(tab: Tab) -> None:
        said = await tab.evaluate(text("#problems"))
        assert said.startswith("2 lines could not be read as a trace, and are not shown")
        assert "line 2: not JSON" in said
        assert "line 4: not JSON, and the file ends in the middle of it" in said
        assert (await tab.evaluate(text("#count"))).startswith("2 traces")
        await tab.evaluate("document.querySelectorAll('#rows .row')[1].click()")
        await tab.until(f"{text('.message')}.includes('hello from elsewhere')")

    look(page, check)


def test_nothing_is_cut_off_at_any_width(tmp_path: Path) -> None:
    async def check(tab: Tab) -> None:
        for width in (360, 768, 1440):
            await tab.size(width, 800)
            for key in "123456":
                await show(tab, key)
                for part in ("documentElement", "querySelector('.pane')"):
                    over = f"document.{part}.scrollWidth - document.{part}.clientWidth"
                    assert await tab.evaluate(over) <= 0, (width, key, part)

    look(page_of(tmp_path, research(), hostile()), check, trace="trace-0")


def test_half_of_a_page_still_says_what_is_missing(tmp_path: Path) -> None:
    page = page_of(tmp_path, *(research(i) for i in range(40)))
    whole = page.read_bytes()
    page.write_bytes(whole[: whole.index(b'id="t20"')])

    async def check(tab: Tab) -> None:
        assert (await tab.evaluate(text("#count"))).startswith("40 traces")
        assert "it was not saved whole" in await tab.evaluate(text(".pane"))

    look(page, check, trace="trace-30")


def test_images_are_shown_where_they_stood_once_they_are_seen(tmp_path: Path) -> None:
    trace = research()
    trace.lineages = []
    said: list[str | vf.Image] = ["🙂 before ", vf.Image.of(png(size=(40, 20))), " after"]
    shots = [vf.Message.of("user", [vf.Image.of(png((n, 0, 0), (800, 600)))]) for n in range(50)]
    trace.messages = [vf.Message.of("user", said), *shots]
    page = page_of(tmp_path, trace)
    drawn = "[...document.querySelectorAll('img.picture')].filter(e => e.naturalWidth).length"

    async def check(tab: Tab) -> None:
        await tab.until(f"{drawn} > 0")
        assert await tab.evaluate(text(".with-images > .text")) == "🙂 before | after"
        assert await tab.evaluate("document.querySelector('img.picture').naturalWidth") == 40
        assert await tab.evaluate(count("img.picture")) == 51
        assert await tab.evaluate(drawn) < 30  # the others are not unpacked yet
        await tab.evaluate("[...document.querySelectorAll('img.picture')].at(-1).scrollIntoView()")
        await tab.until("[...document.querySelectorAll('img.picture')].at(-1).naturalWidth === 800")

    look(page, check, trace=trace.id)

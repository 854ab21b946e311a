"""The page in a real headless Chromium: live, offline, several runs, nothing from elsewhere."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from chromium import Tab, chromium, find_chromium

import vf
from tests.traces.view.material import ATTACK, hostile
from tests.viewer.pages import append, line, make_run
from tests.viewer.test_evaluations import results, scored
from vf.traces.view.sources import find_sources
from vf.traces.view.write_page import write_page
from vf.trainer.watching.page_details import AboutFolders
from vf.viewer.live import LiveServer
from vf.viewer.page import offline_page
from vf.viewer.watch import Watch

pytestmark = pytest.mark.browser

Check = Callable[[Tab], Awaitable[None]]


def text(selector: str) -> str:
    return (
        f"[...document.querySelectorAll({json.dumps(selector)})].map(e => e.textContent).join('|')"
    )


def chart(title: str) -> str:
    """Return the expression of what is said about a chart."""
    labels = "[...document.querySelectorAll('.plot')].map(e => e.ariaLabel ?? '')"
    return f"({labels}.find(l => l.startsWith('{title} by')) ?? '')"


READY = "document.body && document.body.dataset.ready"
FRAME = "document.querySelector('iframe')?.contentDocument"


def live(paths: list[Path], scratch: Path, check: Check, address: str = "") -> None:
    """Serve these paths and open the page; nothing may fail or be fetched from elsewhere."""

    async def run() -> None:
        watch = Watch(paths, AboutFolders())
        watch.scan()
        server = LiveServer(watch, scratch)
        runner = await server.start()
        following = asyncio.create_task(server.follow())
        try:
            async with chromium(str(find_chromium())) as tab:
                await tab.size(1280, 900)
                await tab.open(server.url + address)
                await tab.until(READY)
                await check(tab)
                assert tab.errors == []
                own = (server.url, "data:,", "about:")
                assert [url for url in tab.requests if not url.startswith(own)] == []
        finally:
            following.cancel()
            await runner.cleanup()

    asyncio.run(run())


def offline(page: Path, check: Check, address: str = "") -> None:
    async def run() -> None:
        async with chromium(str(find_chromium())) as tab:
            await tab.size(1280, 900)
            await tab.open(page.as_uri() + address)
            await tab.until(READY)
            await check(tab)
            assert await tab.evaluate("window.pwned === undefined")
            assert tab.errors == []
            local = ("file:", "blob:", "data:,", "about:")
            assert [url for url in tab.requests if not url.startswith(local)] == []

    asyncio.run(run())


def test_a_run_appears_and_is_followed_while_it_is_written(tmp_path: Path) -> None:
    run = tmp_path / "runs" / "quickstart-1"

    async def check(tab: Tab) -> None:
        assert "does not exist yet" in await tab.evaluate(text(".wait"))
        make_run(run, 3)
        await tab.until(f"{chart('Reward')}.includes('training 0.530, held out 0.125')")
        assert "3 / 40" in await tab.evaluate(text(".runs td"))
        drawn = await tab.evaluate("document.querySelectorAll('canvas').length")
        append(run, line(4, **{"eval/reward/mean": 0.75}), line(5))
        await tab.until(f"{chart('Reward')}.includes('training 0.550, held out 0.750')")
        assert await tab.evaluate("document.querySelectorAll('canvas').length") == drawn
        assert "0.125 → 0.750" in await tab.evaluate(text(".tile b"))
        await tab.evaluate("document.querySelector('#to-traces').click()")
        await tab.until(f"{FRAME}?.body?.dataset.ready")
        await tab.evaluate(f"{FRAME}.querySelector('#rows .row').click()")
        await tab.until("location.hash.startsWith('#/traces?trace=trace-')")

    live([run], tmp_path, check)


def test_two_runs_lie_over_each_other_and_their_settings_that_differ_are_named(
    tmp_path: Path,
) -> None:
    make_run(tmp_path / "slow", 3, learning_rate=1e-4)
    make_run(tmp_path / "fast", 5, learning_rate=1e-2)

    async def check(tab: Tab) -> None:
        said = await tab.evaluate(chart("Reward"))
        for part in ("fast training 0.550", "slow training 0.530", "slow held out 0.125"):
            assert part in said
        assert await tab.evaluate(text(".runs thead th")) == (
            "Run|Step|Held out|Training|Time|Sampled|learning_rate"
        )
        assert await tab.evaluate(text(".runs .setting")) == "0.01|0.0001"
        assert "very-secret" not in await tab.evaluate("document.documentElement.innerHTML")
        await tab.evaluate("document.querySelector('[data-run=slow]').click()")
        await tab.until(f"!{chart('Reward')}.includes('slow')")
        assert await tab.evaluate("location.hash") == "#/overview?hide=slow"
        await tab.evaluate("location.hash = '#/overview?by=time&log=1&smooth=0.5&zoom=10~30'")
        await tab.until(f"{chart('Reward')}.startsWith('Reward by time')")
        assert await tab.evaluate("document.querySelector('#smooth').value") == "0.5"

    live([tmp_path], tmp_path, check)


NAMES = ["toString", "__proto__", "constructor", "valueOf", "hasOwnProperty"]


def test_names_that_every_object_of_a_script_has_are_names_like_others(tmp_path: Path) -> None:
    one, other = make_run(tmp_path / "one"), make_run(tmp_path / "toString")
    append(one, line(4, **dict.fromkeys(NAMES, 1.5)))
    append(other, line(4, **{f"metric/{name}": 2.5 for name in NAMES}))

    async def check(tab: Tab) -> None:
        await tab.evaluate(
            "document.querySelectorAll('details').forEach((each) => each.open = true)"
        )
        shown = (await tab.evaluate(text(".chart h3"))).split("|")
        for name in NAMES:
            assert name in shown
            assert f"metric/{name}" in shown
        append(one, line(5, **dict.fromkeys(NAMES, 3.5)))
        await tab.until(f"{chart('toString')}.includes('3.5')")

    live([tmp_path], tmp_path, check)


def test_axes_show_nothing_that_cannot_be(tmp_path: Path) -> None:
    run = make_run(tmp_path / "one", 5)

    async def check(tab: Tab) -> None:
        await tab.until("document.querySelectorAll('.chart[data-ends]').length > 4")
        ranges = await tab.evaluate(
            "Object.fromEntries([...document.querySelectorAll('.chart')]"
            ".filter(e => !e.hidden && e.dataset.ends)"
            ".map(e => [e.querySelector('h3').textContent, e.dataset.ends]))"
        )
        assert ranges["Failed tool calls"] == "0 % … 100 %"
        assert ranges["Reward"] == "0 … 1"
        assert ranges["Time per step"] == "0 s … 10 s"
        assert ranges["KL of sampler and learner nats"] == "−0.001 … 0.001"

    live([run], tmp_path, check)


def test_an_offline_file_shows_the_same_with_all_traces(tmp_path: Path) -> None:
    run = make_run(tmp_path / "one")
    append(run, line(4, **{f"metric/{ATTACK}": 1.0}))
    with vf.TraceStore(run / "traces" / "step-000002.jsonl") as store:
        store.append(hostile())
    traces, page = tmp_path / "traces.html", tmp_path / "page.html"
    write_page(find_sources([run]), traces, title=ATTACK)
    watch = Watch([run], AboutFolders())
    watch.scan()
    page.write_bytes(offline_page(watch.everything(), ATTACK, traces=traces.read_bytes()))

    async def check(tab: Tab) -> None:
        assert "training 0.540" in await tab.evaluate(chart("Reward"))
        assert ATTACK in await tab.evaluate(text(".chart h3"))
        assert await tab.evaluate("document.querySelector('#status').textContent") == "offline copy"
        for scheme, dark in (("light", False), ("dark", True)):
            features = [{"name": "prefers-color-scheme", "value": scheme}]
            await tab.send("Emulation.setEmulatedMedia", features=features)
            back = await tab.evaluate("getComputedStyle(document.body).backgroundColor")
            assert (sum(map(int, back[4:-1].split(","))) < 200) is dark
            for width in (360, 420, 900, 1400):
                await tab.size(width, 900)
                root = "document.documentElement"
                over = f"{root}.scrollWidth - {root}.clientWidth"
                assert await tab.evaluate(over) == 0, width
        await tab.evaluate("document.querySelector('#to-traces').click()")
        for _ in range(600):  # until the frame has loaded
            await tab.evaluate("document.querySelector('iframe')?.contentWindow.focus()")
            await tab.key("Enter")
            if "?trace=" in await tab.evaluate("location.hash"):
                break
        assert "#/traces?trace=" in await tab.evaluate("location.hash")

    offline(page, check)


def test_evaluations_are_shown_with_links_to_their_traces(tmp_path: Path) -> None:
    one = results(tmp_path / "one", [scored(t, 0.0) for t in "aabb"])
    two = results(tmp_path / "two", [scored(t, float(i % 2)) for i, t in enumerate("aabb")])

    async def check(tab: Tab) -> None:
        await tab.until("document.querySelectorAll('.whisker').length > 2")
        assert await tab.evaluate("document.body.dataset.view") == "evaluations"
        said = await tab.evaluate(text(".evaluations tbody"))
        assert "0.500 [0.000, 1.000]" not in said  # both tasks at one half: no interval
        assert "0.500" in said
        assert await tab.evaluate(text("#evaluations .chart h3")) == "Rewards|Success in k rollouts"
        assert "outcome below 1" in await tab.evaluate(text(".failures"))
        await tab.until("document.querySelector('#evaluations canvas')")
        await tab.evaluate("document.querySelector('.failures a').click()")
        await tab.until(f"{FRAME}?.body?.dataset.ready")
        assert "q=reward%3C1" in await tab.evaluate("location.hash")
        await tab.evaluate("location.hash = '#/overview'")
        await tab.until("document.body.dataset.view === 'overview'")
        assert "no training run" in await tab.evaluate(text("#overview"))

    live([one, two], tmp_path, check)

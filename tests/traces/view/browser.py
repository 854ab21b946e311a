"""A page of traces in a headless Chromium, for tests."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from urllib.parse import urlencode

from chromium import Tab, chromium, find_chromium

import vf
from tests.traces.view.material import ATTACK, research
from vf.traces.view.sources import find_sources
from vf.traces.view.write_page import write_page

Check = Callable[[Tab], Awaitable[None]]


def page_of(folder: Path, *traces: vf.Trace, tail: bytes = b"", named: bool = True) -> Path:
    """Write a page of these traces, with texts `<id>` for the tokens of even ids."""
    file = folder / "traces.jsonl"
    with vf.TraceStore(file) as store:
        for trace in traces:
            store.append(trace)
    with file.open("ab") as out:
        out.write(tail)
    (folder / "config.toml").write_text('model = "the-model"')
    page = folder / "page.html"
    write_page(
        find_sources([file]),
        page,
        title=ATTACK,
        texts_of=lambda model: (
            (lambda ids: ["" if i % 2 else f" <{i}>" for i in ids]) if named else None
        ),
    )
    return page


def look(page: Path, check: Check, **state: str) -> None:
    """Open the page and check it; then nothing may have run, failed or been fetched."""

    async def run() -> None:
        async with chromium(str(find_chromium())) as tab:
            await tab.size(1280, 800)
            await tab.open(f"{page.as_uri()}#{urlencode(state)}")
            await tab.until("document.body && document.body.dataset.ready")
            await check(tab)
            assert await tab.evaluate("window.pwned === undefined")
            assert tab.errors == []
            assert [url for url in tab.requests if not url.startswith(("file:", "blob:"))] == []

    asyncio.run(run())


def text(selector: str) -> str:
    return (
        f"[...document.querySelectorAll({json.dumps(selector)})].map(e => e.textContent).join('|')"
    )


def count(selector: str) -> str:
    return f"document.querySelectorAll({json.dumps(selector)}).length"


async def show(tab: Tab, key: str) -> None:
    """Go to a view by its key, and wait until it is drawn."""
    name = ("conversation", "tokens", "reward", "timeline", "details", "changed")[int(key) - 1]
    await tab.key(key)
    await tab.until(f"document.querySelector('#tab-{name}[aria-selected=true]')")


def write_run(folder: Path) -> Path:
    """Write the page of a run: four traces of a step, and two held-out tasks before and after."""
    traces = folder / "run" / "traces"
    traces.mkdir(parents=True)
    (folder / "run" / "config.toml").write_text('model = "the-model"')
    with vf.TraceStore(traces / "step-000004.jsonl") as store:
        for index in (0, 1, 2, 3):
            store.append(research(index))
    for step, outcomes in ((0, (0, 0)), (15, (1, 0))):
        with vf.TraceStore(traces / f"eval-{step:06d}.jsonl") as store:
            for task, solved in enumerate(outcomes):
                trace = research(0 if solved else 1)
                trace.id, trace.origin = f"eval-{step}-{task}", None
                trace.task = vf.Task(f"held-out-{task}", "Which river?", answer="Akerselva")
                store.append(trace)
    page = folder / "run.html"
    write_page(
        find_sources([folder / "run"]),
        page,
        title="run",
        texts_of=lambda model: lambda ids: [f" <{i}>" for i in ids],
    )
    return page

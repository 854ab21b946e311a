"""The site builds without a warning, holds every page, and needs nothing from elsewhere."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Iterator
from contextlib import suppress
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from chromium import Tab, chromium, find_chromium

from tests.docs.blocks import ROOT

pytestmark = pytest.mark.slow

ATTRIBUTES = {"a": "href", "link": "href", "script": "src", "img": "src", "iframe": "src"}


class Page(HTMLParser):
    """What a page of the site refers to, and the ids that it has."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.linked: list[str] = []
        self.loaded: list[str] = []
        self.ids: set[str] = set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note what a tag says."""
        named = dict(attrs)
        self.ids.add(named.get("id") or "")
        target = named.get(ATTRIBUTES.get(tag, ""))
        if target is not None:
            (self.linked if tag == "a" else self.loaded).append(target)


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    return {path: Page(path) for path in site.rglob("*.html") if path.name != "404.html"}


def test_every_page_is_there(site: Path) -> None:
    names = {path.stem for path in (ROOT / "docs").glob("*.md")} | {"CONTRIBUTING"}
    names |= {f"benchmarks/results/{p.stem}" for p in (ROOT / "benchmarks/results").glob("*.md")}
    assert [name for name in names if not (site / f"{name}.html").is_file()] == []
    assert list(site.rglob("*.py")) == []


def test_nothing_is_loaded_from_elsewhere(pages: dict[Path, Page]) -> None:
    loaded = [target for page in pages.values() for target in page.loaded]
    assert len(loaded) > len(pages)
    assert [target for target in loaded if urlsplit(target).netloc] == []


def test_every_link_and_anchor_leads_somewhere(pages: dict[Path, Page]) -> None:
    wrong, checked = [], 0
    for path, page in pages.items():
        for target in [*page.linked, *page.loaded]:
            parts = urlsplit(target)
            if parts.scheme or parts.netloc:
                continue
            checked += 1
            file = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            other = pages.get(file)
            lost = parts.fragment and other is not None and parts.fragment not in other.ids
            if not file.is_file() or lost:
                wrong.append(f"{path.name}: {target}")
    assert checked > 1000
    assert wrong == []


def test_markdown_of_github_is_shown_as_meant(site: Path) -> None:
    templates = (site / "templates.html").read_text(encoding="utf-8")
    assert "<code>&lt;|eot|&gt;</code>" in templates  # without the backslashes of the table
    for page in site.glob("*.html"):
        text = page.read_text(encoding="utf-8")
        assert "python no-run" not in text
        assert "```" not in text


@pytest.fixture
def address(site: Path) -> Iterator[str]:
    handler = functools.partial(QuietHandler, directory=str(site))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


class QuietHandler(SimpleHTTPRequestHandler):
    """Serves files, and says nothing."""

    def log_message(self, format: str, *args: object) -> None:
        """Leave the terminal alone."""


@pytest.mark.browser
def test_in_a_browser(address: str) -> None:
    """Light and dark differ, pages fit the window, code is readable, nothing is fetched."""

    async def scheme(tab: Tab, name: str) -> str:
        feature = {"name": "prefers-color-scheme", "value": name}
        await tab.send("Emulation.setEmulatedMedia", features=[feature])
        await tab.open(f"{address}/reference.html?{name}")
        await tab.until(f"location.search === '?{name}' && document.readyState === 'complete'")
        await tab.until("document.body.dataset.mdColorScheme")
        return str(await tab.evaluate("getComputedStyle(document.body).backgroundColor"))

    async def run() -> None:
        async with chromium(str(find_chromium())) as tab:
            await tab.size(1280, 800)
            assert await scheme(tab, "dark") != await scheme(tab, "light")
            for width in (1280, 400):
                await tab.size(width, 800)
                for name in ("index", "reference", "templates", "losses", "guide-training"):
                    await tab.open(f"{address}/{name}.html?{width}")
                    await tab.until(
                        f"location.search === '?{width}' && document.readyState === 'complete'"
                        f" && location.pathname === '/{name}.html'"
                    )
                    assert await tab.evaluate("document.documentElement.scrollWidth") <= width
                    size = (
                        "parseFloat(getComputedStyle(document.querySelector('pre code')).fontSize)"
                    )
                    assert await tab.evaluate(
                        f"!document.querySelector('pre code') || {size} >= 14"
                    )
            assert tab.errors == []
            assert [url for url in tab.requests if not url.startswith((address, "data:"))] == []

    asyncio.run(run())


@pytest.mark.browser
@pytest.mark.parametrize("protocol", ["http", "file"])
def test_search(protocol: str, site: Path, address: str) -> None:
    """What is typed is found, from a server and from a disk, and nothing is fetched elsewhere."""
    base = address if protocol == "http" else site.as_uri()
    box = "document.querySelector('[data-md-component=search-query]')"
    query = "max_steps_off_policy"

    async def run() -> None:
        async with chromium(str(find_chromium())) as tab:
            await tab.size(1280, 800)
            await tab.open(f"{base}/index.html")
            await tab.until(f"document.readyState === 'complete' && {box}")
            await tab.evaluate(f"{box}.focus()")
            for character in query:
                await tab.key(character)
            await tab.until("document.querySelectorAll('.md-search-result__link').length > 1")
            assert await tab.evaluate(f"{box}.value") == query
            found = "[...document.querySelectorAll('.md-search-result__link')].map(a => a.href)"
            assert any("/loop.html" in link for link in await tab.evaluate(found))
            for seconds in (2.0, 4.0, 8.0, 16.0, 32.0):  # results that are drawn again lose a click
                await tab.evaluate("document.querySelector('.md-search-result__link')?.click()")
                with suppress(TimeoutError):
                    await tab.until(f"document.body?.innerText.includes({query!r})", seconds)
                    break
            else:
                pytest.fail("the page that was found did not open")
            assert tab.errors == []
            assert [url for url in tab.requests if not url.startswith((base, "data:"))] == []

    asyncio.run(run())


def test_shell_blocks_are_coloured(site: Path) -> None:
    page = (site / "sft.html").read_text(encoding="utf-8")
    assert '<span class="nf">vf-rl</span>' in page  # an indented block
    assert '<span class="na">--resume</span>' in page
    page = (site / "guide-training.html").read_text(encoding="utf-8")
    assert '<span class="na">--dry-run</span>' in page  # a fenced one

"""Every link between pages of the repository leads somewhere; others are not fetched."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from pymdownx.slugs import slugify

from tests.docs.blocks import PAGES, ROOT

LINKING = [*PAGES, *sorted((ROOT / "benchmarks").rglob("*.md"))]
_CODE = re.compile(r"^```.*?^```$|`[^`\n]+`", re.DOTALL | re.MULTILINE)
_slug = slugify(case="lower")


def links(path: Path) -> Iterator[tuple[str, str]]:
    """Yield file and anchor of a page's links; a file of "" is the page itself."""
    prose = _CODE.sub("", path.read_text(encoding="utf-8"))
    for target in re.findall(r"\]\(([^)\s]+)\)", prose):
        if not re.match(r"\w+:", target):
            file, _, anchor = target.partition("#")
            yield file, anchor


@cache
def anchors(path: Path) -> set[str]:
    """Return the anchors of a page: those of its headings, as GitHub and the site make them."""
    text = path.read_text(encoding="utf-8")
    outside = re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.+)$", outside, re.MULTILINE)
    return {_slug(each.replace("`", ""), "-") for each in headings} | set(
        re.findall(r'<a id="([^"]+)">', text)
    )


@pytest.mark.parametrize("path", LINKING, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_to_files_and_headings(path: Path) -> None:
    wrong = []
    for file, anchor in links(path):
        target = (path.parent / file).resolve() if file else path
        if not target.exists() or (anchor and anchor not in anchors(target)):
            wrong.append(f"{file}#{anchor}")
    assert wrong == []


def test_there_are_links_to_check() -> None:
    found = [link for path in LINKING for link in links(path)]
    assert len(found) > 50
    assert any(anchor for _, anchor in found)


def linked(page: Path) -> set[Path]:
    return {(page.parent / file).resolve() for file, _ in links(page) if file}


def test_the_home_of_the_docs_lists_every_page_and_the_readme_leads_there() -> None:
    home = ROOT / "docs" / "index.md"
    assert home in linked(ROOT / "README.md")
    assert set((ROOT / "docs").glob("*.md")) - linked(home) == {home}

"""Tables of the page in a real Chromium: names can be read, and no column is out of reach."""

from __future__ import annotations

from pathlib import Path

import pytest
from chromium import Tab

from tests.viewer.pages import make_run
from tests.viewer.test_evaluations import results, scored
from tests.viewer.test_page_browser import live

pytestmark = pytest.mark.browser

WIDTHS = (420, 900, 1400)
LONG = "qwen3-4b-calculator-grpo-lr1e-6-kl0.001-group16-seed0-2026-11-28"
# What is wrong with the tables that are shown, in words.
FAULTS = """
[...document.querySelectorAll('.view:not([hidden]) table')].flatMap((table) => {
  const box = table.closest('.scroll-x');
  if (!box) return ['a table outside of a box that scrolls'];
  const rect = (node) => node.getBoundingClientRect();
  const lines = (node) => {
    const range = document.createRange();
    range.selectNodeContents(node);
    return Math.round(range.getBoundingClientRect().height / 17);
  };
  const found = [];
  for (const node of table.querySelectorAll('th .clip, td .clip')) {
    const wide = rect(node).width;
    if (lines(node) > 1 && wide < Math.min(190, 0.35 * innerWidth)) {
      found.push(`${Math.round(wide)} px for ${node.textContent}`);
    }
  }
  for (const node of table.querySelectorAll('.num')) {
    if (lines(node) > 1) found.push(`a number on two lines: ${node.textContent}`);
  }
  box.scrollLeft = 1e6;
  const [first, last] = [table.rows[0].cells[0], [...table.rows[0].cells].at(-1)];
  if (rect(last).right > rect(box).right + 1) found.push(`out of reach: ${last.textContent}`);
  if (rect(first).left < rect(box).left - 1) found.push(`scrolled away: ${first.textContent}`);
  if (rect(first).right > rect(last).left + 1) found.push(`covered: ${last.textContent}`);
  box.scrollLeft = 0;
  return found;
})
"""
OVERFLOW = "document.documentElement.scrollWidth - document.documentElement.clientWidth"


async def check_tables(tab: Tab, count: int) -> None:
    """Check the tables of the view that is shown at several widths."""
    for width in WIDTHS:
        await tab.size(width, 900)
        assert await tab.evaluate(FAULTS) == [], width
        assert await tab.evaluate(OVERFLOW) == 0, width
    shown = "document.querySelectorAll('.view:not([hidden]) table').length"
    assert await tab.evaluate(shown) == count


def test_runs_with_long_and_short_names_can_be_read(tmp_path: Path) -> None:
    for number, name in enumerate(("a", "quickstart-1", LONG, f"{LONG}-again-{LONG}")):
        run = make_run(tmp_path / name, 3, learning_rate=10.0 ** -(number + 2))
        config = (run / "config.toml").read_text()
        long = "an explanation of many words " * 4 if number % 2 else "short"
        config += f"seed = {number}\nmicro_batch_size = {number + 1}\n"
        (run / "config.toml").write_text(config.replace("{ api", f'{{ note = "{long}", api'))

    async def check(tab: Tab) -> None:
        await tab.until("document.querySelector('.runs .setting')")
        await tab.evaluate("document.querySelector('details.more').open = true")
        await check_tables(tab, 2)
        assert await tab.evaluate("document.querySelectorAll('.runs tbody th').length") == 4
        titles = "[...document.querySelectorAll('.runs tbody th .clip')].map(e => e.title)"
        assert f"{LONG}-again-{LONG}" in await tab.evaluate(titles)

    live([tmp_path], tmp_path, check, "#/overview")


def test_one_run_and_its_settings_can_be_read(tmp_path: Path) -> None:
    run = make_run(tmp_path / LONG, 3)

    async def check(tab: Tab) -> None:
        await tab.until("document.querySelector('details.more')")
        await tab.evaluate("document.querySelector('details.more').open = true")
        await check_tables(tab, 2)

    live([run], tmp_path, check, "#/overview")


def test_evaluations_with_long_and_short_names_can_be_read(tmp_path: Path) -> None:
    folders = []
    for name in ("a", f"calculator-{LONG}", f"calculator-{LONG}-again"):
        traces = [scored(task, float(i % 2)) for i, task in enumerate("aabb")]
        folders.append(results(tmp_path / name, traces))

    async def check(tab: Tab) -> None:
        await tab.until("document.querySelectorAll('.whisker').length > 3")
        await check_tables(tab, 3)  # evaluations, differences, failures

    live(folders, tmp_path, check, "#/evaluations")

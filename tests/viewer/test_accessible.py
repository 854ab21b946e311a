"""The live page and its traces have no serious fault by axe-core (vendored: Deque, MPL 2.0)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from chromium import Tab

from tests.viewer.pages import make_run
from tests.viewer.test_evaluations import results, scored
from tests.viewer.test_page_browser import live

pytestmark = pytest.mark.browser

AXE = (Path(__file__).parent / "axe" / "axe.min.js").read_text(encoding="utf-8")
# An inner page is checked when it is opened by itself: a frame needs axe-core of its own.
# A row whose colour is in transition has neither scheme's contrast, so wait first.
RUN = """
new Promise((drawn) => requestAnimationFrame(() => setTimeout(drawn, 300)))
.then(() => axe.run({iframes: false})).then(({violations}) => violations
  .filter(({impact}) => impact === 'serious' || impact === 'critical')
  .flatMap(({id, nodes}) => nodes.map((node) => `${id}: ${node.target} ${node.failureSummary}`)))
"""


async def faults(tab: Tab) -> list[str]:
    """Return the serious faults of what is shown, in the light and in the dark scheme."""
    await tab.evaluate(f"{AXE}; undefined")
    found = []
    for scheme in ("light", "dark"):
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        await tab.send("Emulation.setEmulatedMedia", features=features)
        found += [f"{scheme}: {fault}" for fault in await tab.evaluate(RUN)]
    return found


def make_paths(folder: Path) -> list[Path]:
    """Make two runs and an evaluation."""
    return [
        make_run(folder / "slow", 5),
        make_run(folder / "fast", 5, learning_rate=1e-2),
        results(folder / "results", [scored(t, float(i % 2)) for i, t in enumerate("aabb")]),
    ]


@pytest.mark.parametrize(
    ("view", "shown"),
    [("overview", ".chart[data-ends]"), ("evaluations", ".whisker"), ("traces", "iframe")],
)
def test_no_view_has_a_serious_fault(tmp_path: Path, view: str, shown: str) -> None:
    async def check(tab: Tab) -> None:
        await tab.until(f"document.querySelector({json.dumps(shown)})")
        assert await faults(tab) == []

    live(make_paths(tmp_path), tmp_path, check, f"#/{view}")


@pytest.mark.slow
def test_no_tab_of_a_trace_has_a_serious_fault(tmp_path: Path) -> None:
    async def check(tab: Tab) -> None:
        await tab.until("document.querySelector('#rows .row')")
        found = await faults(tab)
        await tab.evaluate("document.querySelector('#rows .row').click()")
        await tab.until("document.querySelector('.tabs')")
        tabs = "[...document.querySelectorAll('[role=tab]')]"
        for number in range(await tab.evaluate(f"{tabs}.length")):
            await tab.evaluate(f"{tabs}[{number}].click()")
            name = await tab.evaluate(f"{tabs}[{number}].textContent")
            found += [f"{name} {fault}" for fault in await faults(tab)]
        assert found == []

    live([make_run(tmp_path / "one", 3)], tmp_path, check, "traces")

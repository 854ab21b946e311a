"""The settings and metrics that the guides name exist by that name."""

from __future__ import annotations

import re

import pytest

from tests.docs.blocks import ROOT
from vf.trainer.settings.config import TrainerArgs
from vf.trainer.settings.loop_args import LoopArgs
from vf.trainer.watching.step_clock import PARTS

GUIDES = ["guide-training.md", "loop.md", "watching.md", "losses.md"]
SOURCES = "".join(
    path.read_text(encoding="utf-8")
    for folder in ("trainer", "traces", "environments", "rubrics")
    for path in sorted((ROOT / folder).rglob("*.py"))
)
METRIC = re.compile(
    r"(?:eval/)?(?:reward|rollouts|groups|groups_per_s|tokens|tokens_per_s|turns|tool_calls|ratio"
    r"|staleness|tasks|alarm|time|sandbox|overlong)/\w+|\w+_fraction|kl_\w+_v\d"
)


def code(guide: str) -> list[str]:
    """Return what a guide shows as code within its lines."""
    text = (ROOT / "docs" / guide).read_text(encoding="utf-8")
    return re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```$", "", text, flags=re.S | re.M))


@pytest.mark.parametrize("guide", GUIDES)
def test_metrics_are_written_by_that_name(guide: str) -> None:
    found = {name.removeprefix("eval/") for name in code(guide) if METRIC.fullmatch(name)}
    known = {f"time/{part}" for part in (*PARTS, "total")}
    assert found
    assert {name for name in found - known if f'"{name}"' not in SOURCES} == set()


def test_every_knob_is_a_setting() -> None:
    text = (ROOT / "docs" / "guide-training.md").read_text(encoding="utf-8")
    table = text.partition("## Knobs")[2].partition("## ")[0]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    names = {name.partition(" ")[0] for row in rows for name in re.findall(r"`([^`]+)`", row)}
    assert len(names) > 15
    assert names - set(TrainerArgs.model_fields) == {"max_turns"}  # the environment's


def test_the_loop_names_every_setting_of_the_loop() -> None:
    """What it leaves out stands elsewhere: the run's own limits, and how much is shown."""
    said = set(re.findall(r"\w+", " ".join(code("loop.md"))))
    assert set(LoopArgs.model_fields) - said == {"sample_steps", "learned_groups"}

"""Every reward says its range, formula, source and weak spots, and the page has it all."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from docs.make_rewards_page import KINDS, LABELS, PAGE, document, is_reward, page, public, rewards
from vf.rubrics.rubric import Penalty
from vf.traces.trace import Trace

REWARDS = [(module, member) for module, member in public() if is_reward(member)]


def test_the_page_is_what_the_script_writes() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run python docs/make_rewards_page.py"


@pytest.mark.parametrize(
    ("module", "member"), REWARDS, ids=lambda value: getattr(value, "__name__", "")
)
def test_every_reward_is_fully_documented(module: str, member: Any) -> None:
    found = document(module, member)
    assert [label for label in LABELS if not found.labels.get(label)] == []
    assert found.summary
    assert f"### `{member.__name__}`" in page()


def test_every_kind_has_some_and_those_we_know_are_among_them() -> None:
    names = {(each.kind, each.name) for each in rewards()}
    assert {kind for kind, _ in names} == set(KINDS)
    assert names >= {
        ("Outcomes", "episode_return"),
        ("Outcomes", "exact"),
        ("Process penalties", "verbosity"),
        ("Gates", "keeps_policy"),
        ("Group rewards", "pairwise"),
    }


def test_a_reward_is_known_by_what_it_returns_or_takes() -> None:
    def makes() -> Penalty: ...  # type: ignore[empty-body]
    def scores(trace: Trace) -> float: ...  # type: ignore[empty-body]
    def reads(trace: Trace) -> str: ...  # type: ignore[empty-body]

    assert is_reward(makes)
    assert is_reward(scores)
    assert not is_reward(reads)
    assert not is_reward(inspect.getdoc)

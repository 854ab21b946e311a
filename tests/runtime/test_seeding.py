"""Derived seeds and nearest-name suggestions."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from vf.runtime.errors import did_you_mean
from vf.runtime.seeding import derive_seed

PARTS = st.lists(st.integers() | st.text(), max_size=4)


def test_seeds_never_change_between_versions_and_machines() -> None:
    assert derive_seed(0, "train", 3, "task-7") == 1053526451037233853


@given(PARTS, PARTS)
@settings(deadline=None, max_examples=60)
def test_seeds_are_a_pure_function_of_all_parts(a: list[int | str], b: list[int | str]) -> None:
    assert 0 <= derive_seed(*a) < 2**63
    typed_a, typed_b = ([(type(part), part) for part in parts] for parts in (a, b))
    assert (derive_seed(*a) == derive_seed(*b)) is (typed_a == typed_b)


def test_order_type_and_grouping_matter() -> None:
    seeds = [
        derive_seed(1, 2),
        derive_seed(2, 1),
        derive_seed("1", 2),
        derive_seed(12),
        derive_seed("1", "2"),
        derive_seed("12"),
        derive_seed(1, 2, ""),
    ]
    assert len(set(seeds)) == len(seeds)


def test_near_names_are_suggested_nearest_first() -> None:
    known = ["calculator", "guess-number", "reverse-text"]
    assert did_you_mean("calcluator", known) == " Did you mean 'calculator'?"
    near = did_you_mean("rewards", ["rewind", "rewarded", "reward"])
    assert near == " Did you mean 'reward' or 'rewarded'?"


def test_no_suggestion_where_nothing_is_near() -> None:
    assert did_you_mean("zzz", ["calculator"]) == ""
    assert did_you_mean("calculator", []) == ""

"""What `benchmarks/self_play.py` measures a strategy of Kuhn poker by."""

from __future__ import annotations

import pytest
from self_play import IDEAL, asked, exploitability, value


def test_an_equilibrium_is_worth_what_kuhn_found_and_cannot_be_exploited() -> None:
    assert value(IDEAL) == pytest.approx(-1 / 18)
    assert exploitability(IDEAL) == pytest.approx(0.0)


def test_random_play_loses_what_is_known() -> None:
    """11/24, as in the tables of other implementations."""
    assert exploitability(dict.fromkeys(IDEAL, 0.5)) == pytest.approx(11 / 24)


def test_it_is_asked_as_in_a_game() -> None:
    [rules, said, reply, heard] = asked("first", "J", True)
    assert rules["content"].startswith("Kuhn poker. You act first.")
    assert said["content"] == "You hold J."
    assert reply == {"role": "assistant", "content": "pass"}
    assert heard["content"] == "The other player bets. You hold J."
    assert asked("second", "K", False)[-1]["content"] == "The other player passes. You hold K."

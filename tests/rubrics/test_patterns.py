"""Regular expressions with a time limit: ordinary ones pass, endless ones are refused."""

from __future__ import annotations

import threading
import time
from typing import Any, cast

import pytest

import vf
from vf.rubrics.penalties.patterns import Pattern, compiled

ORDINARY = [
    r"Answer:\s*(-?\d+)",
    r"(?s)<think>.*?</think>\s*<answer>.*?</answer>",
    r"(\d+,)*\d+",
    r"^\s*(?:[-*]\s+.+\n?)+$",
    r"rm\s+-[rf]+\s+/",
    r"\b[\w.+-]+@[\w-]+\.[\w.]+\b",
    r"(?i)\bpassword\b.*=",
    r"```(?:python)?\n(.*?)```",
    r"(a++)+$",
    r"(?:https?://)?(?:[\w-]+\.)+\w{2,}(?:/\S*)?",
    "",
]
ENDLESS = [
    r"(a|aa)+$",
    r"((a|aa)b?)+$",
    r"Answer: (x|xx)+!",
    r"<think>(a|b|ab|ba)+(?<=c)</think>",
    r"(foo|foofoo)*$",
    r"(\w+\s?)*$",
    r"([a-z]+)*\d+$",
]


@pytest.mark.parametrize("pattern", ORDINARY)
def test_ordinary_patterns_are_accepted(pattern: str) -> None:
    Pattern(pattern, "owner")


@pytest.mark.parametrize("pattern", ENDLESS)
def test_patterns_that_backtrack_for_ever_are_refused_when_made(
    pattern: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vf.rubrics.penalties.patterns._PROBE_TIMEOUTS", (0.02, 0.05))
    with pytest.raises(vf.ConfigError, match=r"'owner': the pattern .* backtracks: on") as caught:
        Pattern(pattern, "owner")
    assert "possessive" in str(caught.value)


def test_found_and_matches() -> None:
    pattern = Pattern("b+", "owner")
    assert pattern.found_in("abbc")
    assert not pattern.matches("abbc")
    assert pattern.matches("bb")
    assert not Pattern("B", "owner").found_in("b")
    assert Pattern("B", "owner", ignore_case=True).found_in("b")


@pytest.mark.slow
def test_a_text_that_takes_too_long_counts_against_its_model_and_holds_up_nobody() -> None:
    """As an error it would leave the rollout unscored. Other threads run meanwhile."""
    pattern = Pattern(r".*.*.*.*\d", "owner")
    begun, found = threading.Event(), list[bool]()

    def search() -> None:
        begun.set()
        found.append(pattern.found_in("a" * 20_000))

    def goes_on_beside_others() -> bool:
        thread = threading.Thread(target=search)
        thread.start()
        begun.wait()
        for _ in range(100):
            time.sleep(0)  # where the search held the interpreter's lock, it would end here
        searches = thread.is_alive()
        thread.join()
        return searches

    with pytest.warns(UserWarning, match=r"took longer than 1 s on a text of 20000 characters"):
        assert goes_on_beside_others()
    assert found == [True]
    with pytest.warns(UserWarning, match="took longer than 1 s"):
        assert not pattern.matches("a" * 20_000)


def test_what_is_no_pattern_is_a_config_error() -> None:
    with pytest.raises(vf.ConfigError, match=r"'owner': 'a\(' is not a regular expression: miss"):
        Pattern("a(", "owner")
    with pytest.raises(vf.ConfigError, match="'owner': 3 is not a regular expression"):
        Pattern(cast(Any, 3), "owner")
    with pytest.raises(vf.ConfigError, match="'owner': there is no pattern"):
        compiled([], "owner", ignore_case=False)

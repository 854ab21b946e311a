"""What is read from the files that tests write, and from what pytest prints."""

from __future__ import annotations

import pytest

from vf.bridges.harbor.verdict import Verdict, combine, read_pytest, read_rewards


@pytest.mark.parametrize(
    ("text", "table", "rewards"),
    [
        (b"1\n", None, {"reward": 1.0}),
        (b" 0.25 ", None, {"reward": 0.25}),
        (b"0", b'{"reward": 1}', {"reward": 1.0}),
        (None, b'{"reward": true, "seconds": 3}', {"reward": 1.0, "seconds": 3.0}),
        (None, b'{"score": 0.5}', {"score": 0.5}),
    ],
)
def test_a_number_or_a_table_of_numbers(
    text: bytes | None, table: bytes | None, rewards: dict[str, float]
) -> None:
    assert read_rewards(text, table) == Verdict(rewards)


@pytest.mark.parametrize(
    ("text", "table", "said"),
    [
        (None, None, "neither reward.txt nor reward.json"),
        (b"", None, "holds no number: ''"),
        (b"1 1", None, "holds no number"),
        (b"nan", None, "holds no number"),
        (b"\xff", None, "holds no number"),
        (b"1", b"", "is not JSON"),
        (b"1", b"[1]", "no table of rewards"),
        (b"1", b"{}", "no table of rewards"),
        (b"1", b'{"reward": "1"}', "'reward' is not a number"),
        (b"1", b'{"reward": Infinity}', "'reward' is not a number"),
        (b"1", b'{"reward": 1' + b"0" * 400 + b"}", "'reward' is not a number"),
        (b"1", b"[" * 100_000, "is not JSON"),
        (b"1", b'{"a": 1, "b": 1}', "no key 'reward', but a, b; choose one by env.args.reward_key"),
    ],
)
def test_anything_else_is_worth_nothing_and_says_why(
    text: bytes | None, table: bytes | None, said: str
) -> None:
    verdict = read_rewards(text, table)
    assert said in verdict.problem
    assert verdict.reward() == 0.0


def test_a_reward_is_bounded_but_recorded_as_it_was() -> None:
    assert (Verdict({"reward": 3.0}).reward(), Verdict({"reward": -1.0}).reward()) == (1.0, 0.0)
    assert read_rewards(b"3", None).rewards == {"reward": 3.0}
    assert read_rewards(None, b'{"a": 0.5, "b": 1}', "a").reward("a") == 0.5
    assert Verdict({"score": 0.5}).reward() == 0.5


def test_a_step_falls_short_where_a_key_is_below_its_threshold_or_missing() -> None:
    verdict = Verdict({"reward": 0.5})
    assert verdict.reaches({})
    assert verdict.reaches({"reward": 0.5})
    assert not verdict.reaches({"reward": 0.6})
    assert not verdict.reaches({"style": 0.0})


def test_steps_that_were_not_begun_are_worth_nothing() -> None:
    half = Verdict({"reward": 0.5})
    assert combine([half, Verdict({"reward": 1.0})], 2, "mean") == 0.75
    assert combine([half], 2, "mean") == 0.25
    assert combine([half], 2, "final") == 0.0
    assert combine([half, half], 2, "final") == 0.5


SUMMARY = "=== short test summary info ===\n"


@pytest.mark.parametrize(
    ("printed", "reward"),
    [
        (f"{SUMMARY}PASSED tests/a.py::one\nPASSED tests/a.py::two\n=== 2 passed ===", 1.0),
        (f"{SUMMARY}PASSED tests/a.py::one\nFAILED tests/a.py::two - x\n", 0.0),
        (f"{SUMMARY}ERROR tests/a.py\n", 0.0),
        (f"{SUMMARY}FAILED a\n{SUMMARY}PASSED a\n", 1.0),
    ],
)
def test_pytests_last_summary_counts(printed: str, reward: float) -> None:
    assert read_pytest(printed).rewards == {"reward": reward}


@pytest.mark.parametrize("printed", ["", "PASSED a::b\n1 passed", f"{SUMMARY}3 passed"])
def test_without_a_summary_nothing_passed(printed: str) -> None:
    assert read_pytest(printed).problem
    assert read_pytest(printed).reward() == 0.0

"""A limit ends a rollout, which is scored and marked truncated."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.evaluation.commands import call, results, traces
from tests.evaluation.stand_in import MODEL, standing

CENT = f'[prices."{MODEL}"]\ninput = 500.0\noutput = 0.0\n'  # 0.01 for the 20 tokens of a prompt


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with standing(calls=True) as (base, _):
        yield base


def evaluate(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], *argv: str
) -> dict[str, Any]:
    folder = tmp_path / "out"
    code, _, err = call(
        capsys, "calculator", "-m", MODEL, "-b", url, "-n", "2", "-o", str(folder), *argv
    )
    assert code == 0, err
    found = results(folder)
    assert (found["scored"], found["failed"], found["truncated"]) == (2, 0, 2)
    assert found["reward"]["mean"] == 0.0
    assert all(trace.truncated and trace.score is not None for trace in traces(folder))
    return found


def test_turns(url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = evaluate(url, tmp_path, capsys, "--max-turns", "3")
    assert (found["stop_reasons"], found["turns"]) == ({"max_turns": 2}, 6)


def test_tokens(url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = evaluate(url, tmp_path, capsys, "--max-total-tokens", "8")  # 5 an answer
    assert (found["stop_reasons"], found["turns"]) == ({"max_tokens": 2}, 4)


def test_cost(url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prices = tmp_path / "prices.toml"
    prices.write_text(CENT)
    found = evaluate(url, tmp_path, capsys, "--prices", str(prices), "--max-cost", "0.035")
    assert (found["stop_reasons"], found["turns"]) == ({"max_cost": 2}, 8)
    assert found["cost"] == pytest.approx(0.08)


def test_a_cost_is_unknown_where_tokens_are_not_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "prices.toml").write_text(CENT)
    with standing(uncounted=True) as (url, _):
        argv = ["reverse-text", "-m", MODEL, "-b", url, "-n", "2"]
        argv += ["--prices", str(tmp_path / "prices.toml"), "-o"]
        limited, free = str(tmp_path / "limited"), tmp_path / "free"
        code, _, err = call(capsys, *argv, limited, "--max-cost", "1")
        assert code != 0
        assert err.splitlines()[-1].startswith("vf-rl eval: limits.max_cost cannot hold")
        code, out, err = call(capsys, *argv, str(free))
    assert code == 0, err
    assert "cost unknown: the API reports no tokens" in out
    assert results(free)["cost"] is None


@pytest.mark.slow
def test_wall_time_ends_an_answer_that_is_under_way(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with standing(calls=True, delay=1.5) as (url, _):
        found = evaluate(url, tmp_path, capsys, "--max-seconds", "0.5")
    assert (found["stop_reasons"], found["turns"]) == ({"max_seconds": 2}, 0)
    assert found["silent"] == 2


@pytest.mark.slow
def test_wall_time_is_not_spent_by_waiting_for_a_place(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with standing(delay=0.6) as (url, _):
        argv = ["reverse-text", "-m", MODEL, "-b", url, "-n", "4", "-c", "1"]
        argv += ["--max-seconds", "2.0", "-o", str(tmp_path / "out")]
        assert call(capsys, *argv)[0] == 0
    assert results(tmp_path / "out")["truncated"] == 0

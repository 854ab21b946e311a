"""What a simulated user takes is counted, and shown apart from what the policy takes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import vf
from tests.evaluation.commands import call, results, traces
from tests.evaluation.stand_in import MODEL, standing
from vf.runtime.errors import UserFailure
from vf.traces.simulated_users import KEY
from vf.traces.trace import Failure
from vf.trainer.run.group import Group
from vf.trainer.watching.metrics import rollout_metrics

USER = "customer"
# 0.01 and 0.02 for the 20 tokens of a prompt.
PRICES = (
    f'[prices."{MODEL}"]\ninput = 500.0\noutput = 0.0\n'
    f'[prices."{USER}"]\ninput = 1000.0\noutput = 0.0\n'
)


@pytest.mark.slow
@pytest.mark.gate
def test_evaluation_tells_the_users_cost_from_the_policys(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prices, folder = tmp_path / "prices.toml", tmp_path / "out"
    prices.write_text(PRICES)
    with standing(models=[MODEL, USER]) as (url, _):
        user = json.dumps({"user": {"model": USER, "base_url": url}})
        argv = ["support-desk", "-m", MODEL, "-b", url, "-n", "2", "--max-turns", "2"]
        argv += ["--args", user, "--prices", str(prices), "-o", str(folder)]
        code, out, err = call(capsys, *argv)
    assert code == 0, err
    found = results(folder)
    assert (found["scored"], found["turns"], found["prompt_tokens"]) == (2, 4, 80)
    assert found["cost"] == pytest.approx(0.04)
    assert found["user"].pop("seconds") > 0
    assert found["user"].pop("cost") == pytest.approx(0.08)
    assert found["user"] == {
        "requests": 4,
        "prompt_tokens": 80,
        "completion_tokens": 20,
        "unanswered": 0,
    }
    said = "simulated user, not in these figures: requests 4, prompt tokens 80, sampled tokens 20"
    assert f"{said}, cost 0.0800" in out
    assert [trace.info["eval"]["user_cost"] for trace in traces(folder)] == [0.04, 0.04]


def test_a_wrong_address_of_the_user_is_reported_before_anything_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = {"model": USER, "base_url": "http://127.0.0.1:9/v1", "max_retries": 0}
    with standing() as (url, _):
        argv = ["support-desk", "-m", MODEL, "-b", url, "-n", "1", "-o", str(tmp_path / "out")]
        code, _, err = call(capsys, *argv, "--args", json.dumps({"user": table}))
    assert code == 2
    assert "user.base_url" in err
    assert not (tmp_path / "out").exists()


def test_a_step_of_training_counts_the_users_of_failed_rollouts_too() -> None:
    record = {
        "played_by": USER,
        "requests": 3,
        "prompt_tokens": 60,
        "completion_tokens": 15,
        "ended": None,
        "messages": [],
    }
    failure = Failure.of(UserFailure("down"))
    group = Group(vf.Task("t", "Go."))
    for info, seconds in (({KEY: record}, 4.0), ({KEY: record}, 2.0), ({}, 0.0)):
        trace = vf.Trace("e", group.task, 0, info=info, error=failure, timing={"user": seconds})
        group.failed.append(trace)
    metrics = rollout_metrics([group])
    found = {name: value for name, value in metrics.items() if name.startswith("user/")}
    assert found == {
        "user/requests": 6,
        "user/prompt_tokens": 120,
        "user/completion_tokens": 30,
        "user/wait_s_mean": 3.0,
    }
    group.failed = group.failed[2:]
    assert not [name for name in rollout_metrics([group]) if name.startswith("user/")]

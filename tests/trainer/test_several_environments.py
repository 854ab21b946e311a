"""Several environments in one run, with the tiny model."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

import vf
from tests.trainer.saving.comparing import comparable
from vf.trainer.rl_trainer import RLTrainer

pytestmark = pytest.mark.slow

DIGITS = "test-digits"
MIXED = [
    {"id": DIGITS, "name": "plain", "ratio": 2},
    {"id": DIGITS, "name": "hot: a/b", "ratio": 1, "temperature": 2.0, "top_k": 0},
    {"id": DIGITS, "name": "noise", "ratio": 1, "args": {"shuffled": True}, "max_tokens": 4},
]
SHARES = {"plain": 16, "hot: a/b": 8, "noise": 8}


def traces_of(trainer: RLTrainer, step: int) -> list[vf.Trace]:
    return list(trainer.folder.step_traces(step))


def test_each_has_its_share_its_settings_and_its_metrics(make_trainer: Any) -> None:
    again = {"num_iterations": 2, "loss_fn": "ppo", "importance_sampling_mode": "token_truncate"}
    evaluated = {"eval_strategy": "steps", "eval_examples": 4}
    envs = [MIXED[0] | {"eval_examples": 6, "eval_rollouts_per_example": 2}, *MIXED[1:]]
    trainer: RLTrainer = make_trainer(
        env=envs, batch_size=32, max_steps=2, learning_rate=1e-6, **again, **evaluated
    )
    trainer.train()
    first, *lines = trainer.folder.read_metrics()
    for step, line in enumerate(lines, 1):
        traces = traces_of(trainer, step)
        assert Counter(trace.environment for trace in traces) == SHARES
        kinds: dict[int, set[tuple[str, str]]] = {}
        for trace in traces:
            assert trace.origin is not None
            kinds.setdefault(trace.origin.group, set()).add((trace.environment, trace.task.id))
        assert all(len(kind) == 1 for kind in kinds.values()), "no group is mixed"
        assert len(kinds) == 4
        means = [line[f"env/{name}/reward/mean"] for name in SHARES]
        assert line["reward/mean"] == pytest.approx(means[0] / 2 + means[1] / 4 + means[2] / 4)
        for name, count in SHARES.items():
            own = [trace.reward for trace in traces if trace.environment == name]
            assert line[f"env/{name}/rollouts/scored"] == count
            assert line[f"env/{name}/reward/mean"] == pytest.approx(sum(map(float, own)) / count)  # type: ignore[arg-type]
            assert line[f"env/{name}/tasks/resting"] == 0
            assert f"env/{name}/alarm/length" in line
        # A temperature that did not reach all of them would be far off in all three.
        assert abs(line["kl_sample_train_v1"]) < 1e-4
        assert abs(line["kl_sample_old_v1"]) < 1e-4
        assert line["ratio/max"] < 1.02
        most = Counter[str]()
        for trace in traces:
            most[trace.environment] = max(most[trace.environment], trace.completion_tokens)
        assert most["noise"] == 4 < most["plain"] <= 8
    assert {name for name in first if name.endswith("eval/rollouts/scored")} == {
        "eval/rollouts/scored",
        *(f"env/{name}/eval/rollouts/scored" for name in SHARES),
    }
    counts = [first[f"env/{name}/eval/rollouts/scored"] for name in SHARES]
    assert counts == [12, 4, 4]
    total = sum(first[f"env/{n}/eval/reward/mean"] * c for n, c in zip(SHARES, counts, strict=True))
    assert first["eval/reward/mean"] == pytest.approx(total / 20)
    assert "env/plain/eval/pass@2" in first


def test_a_run_of_one_has_no_metrics_by_environment(make_trainer: Any) -> None:
    trainer: RLTrainer = make_trainer(max_steps=1)
    assert [name for name in trainer.step() if name.startswith("env/")] == []
    assert {trace.environment for trace in traces_of(trainer, 1)} == {DIGITS}


STATEFUL: dict[str, Any] = {
    "env": [
        {"id": DIGITS, "token_ratio": 2, "curriculum": "success_rate", "rest_easy": 1},
        {"id": DIGITS, "name": "hot", "token_ratio": 1, "temperature": 2.0, "easy_outcome": 0.3},
        {"id": DIGITS, "token_ratio": 1, "rest_hard": 1, "hard_outcome": 0.2},
    ],
    "batch_size": 16,
    "rollouts_per_example": 2,
    "easy_outcome": 0.3,
    "rest_easy": 1,
}


def test_a_resumed_run_equals_the_unbroken_one(make_trainer: Any) -> None:
    settings = STATEFUL | {"save_steps": 2, "max_steps": 4, "max_concurrent": 1}
    unbroken: RLTrainer = make_trainer("unbroken", **settings)
    unbroken.train()
    unbroken.close()
    stopped: RLTrainer = make_trainer("stopped", **settings)
    stopped.args.max_steps = 2
    stopped.train()
    state = json.loads((stopped.folder.checkpoints / "step-2" / "progress.json").read_text())
    assert list(state["queue"]["cursor"]["environments"]) == [DIGITS, "hot", f"{DIGITS}-2"]
    assert state["queue"]["cursor"]["environments"][DIGITS]["curriculum"]["seen"]
    stopped.close()
    resumed: RLTrainer = make_trainer("stopped", **settings)
    assert resumed.resume({"trainer.args.max_steps"}) == 2
    resumed.train()
    assert comparable(resumed.folder) == comparable(unbroken.folder)
    for step in range(1, 5):
        ids = [
            sorted((t.environment, t.task.id, str(t.origin)) for t in traces_of(run, step))
            for run in (unbroken, resumed)
        ]
        assert ids[0] == ids[1]
    final = [run.policy.weights.trainable_state() for run in (unbroken, resumed)]
    assert all(torch.equal(final[0][name], final[1][name]) for name in final[0])


AHEAD = STATEFUL | {"max_steps_off_policy": 1}


def groups_ahead(make_trainer: Any) -> list[dict[str, Any]]:
    """Train a step, and save; return what the checkpoint says of the groups of the next."""
    trainer: RLTrainer = make_trainer(**AHEAD)
    trainer.step()
    saved = trainer.save() / "progress.json"
    trainer.close()
    steps = json.loads(saved.read_text())["queue"]["steps"]
    [groups] = [step["groups"] for step in steps if step["step"] == 2]
    return list(groups)


def test_what_ran_ahead_is_resumed_in_its_environments(make_trainer: Any) -> None:
    ahead = groups_ahead(make_trainer)
    resumed: RLTrainer = make_trainer(**AHEAD)
    assert resumed.resume() == 1
    resumed.step()
    found = {
        (trace.origin.group, trace.environment, trace.task.id)
        for trace in traces_of(resumed, 2)
        if trace.origin is not None
    }
    assert found == {(group["number"], group["environment"], group["task"]) for group in ahead}
    numbers = Counter(
        trace.origin.group for step in (1, 2) for trace in traces_of(resumed, step) if trace.origin
    )
    assert set(numbers.values()) == {2}, "no rollout is lost, and none is there twice"


def test_groups_that_ran_ahead_in_a_removed_environment_are_replaced(make_trainer: Any) -> None:
    ahead = groups_ahead(make_trainer)
    kept = {group["number"] for group in ahead if group["environment"] != "hot"}
    assert len(kept) < len(ahead)
    env = [member for member in STATEFUL["env"] if member.get("name") != "hot"]
    resumed: RLTrainer = make_trainer(**AHEAD | {"env": env})
    assert resumed.resume({"env"}) == 1
    resumed.step()
    traces = traces_of(resumed, 2)
    assert {trace.environment for trace in traces} == {DIGITS, f"{DIGITS}-2"}
    groups = Counter(trace.origin.group for trace in traces if trace.origin)
    assert kept < groups.keys(), "the others' groups are resumed"
    assert [*groups.values()] == [2] * len(ahead)


FILE = '''
import vf


class Digits(vf.Environment):
    """Reply with even digits."""

    max_turns = 1
    rubric = vf.Rubric(outcome=lambda trace: min(1.0, sum(c in "02468" for c in trace.reply) / 9))

    def tasks(self, split):
        for index in range(8):
            yield vf.Task(f"{split}-{index}", f"Say {index}.")


class Ranked(Digits):
    """The longest reply of a group is the best."""

    rubric = vf.Rubric(
        outcome=lambda trace: 0.0,
        group_rewards=[vf.GroupReward(lambda group: [len(t.reply) / 99 for t in group])],
    )
'''


def test_worker_processes_have_all_environments(make_trainer: Any, tmp_path: Path) -> None:
    path = tmp_path / "with space" / "two envs.py"
    path.parent.mkdir()
    path.write_text(FILE)
    envs = [{"id": f"{path}:Digits"}, {"id": f"{path}:Ranked", "max_tokens": 5}, {"id": DIGITS}]
    trainer: RLTrainer = make_trainer(
        env=envs,
        rollouts={"workers": 2},
        max_steps=2,
        batch_size=12,
        rollouts_per_example=4,
        max_steps_off_policy=1,
        eval_strategy="steps",
        eval_examples=2,
    )
    trainer.train()
    names = ["two envs:Digits", "two envs:Ranked", DIGITS]
    for step in (1, 2):
        traces = traces_of(trainer, step)
        assert Counter(trace.environment for trace in traces) == dict.fromkeys(names, 4)
        assert all(trace.reward is not None for trace in traces)
    ranked = [trace for trace in traces if trace.environment == names[1]]
    assert max(trace.completion_tokens for trace in ranked) == 5
    assert any(trace.score is not None and trace.score.parts for trace in ranked)
    last = trainer.folder.read_metrics()[-1]
    assert all(f"env/{name}/eval/reward/mean" in last for name in names)

"""Rollouts beside training: streamed, ahead by so many steps, trained on again."""

from __future__ import annotations

import gc
import random
from itertools import combinations, product
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import torch

import vf
from tests.trainer.configs import configured
from tests.trainer.conftest import Digits
from vf.runtime.errors import TrainingError
from vf.traces.trace import Branch
from vf.trainer.commands.main import main
from vf.trainer.learning.batches.batch import Sample
from vf.trainer.learning.batches.normalisation import scale
from vf.trainer.learning.policy import Policy
from vf.trainer.rl_trainer import RLTrainer
from vf.trainer.run.display import Display


def versions(trainer: RLTrainer, step: int) -> set[int]:
    """Return the versions of the weights that a step's tokens were sampled with."""
    found = {
        version
        for trace in trainer.folder.step_traces(step)
        for branch in trace.branches
        for version in branch.weight_version
    }
    return found - {-1}


@pytest.mark.slow
@pytest.mark.gate
def test_zero_steps_off_policy_is_exactly_on_policy(make_trainer: Any) -> None:
    trainer: RLTrainer = make_trainer(max_steps=2, batch_size=8, learning_rate=1e-4)
    trainer.train()
    lines = trainer.folder.read_metrics()
    assert [versions(trainer, step) for step in (1, 2)] == [{0}, {1}]
    assert all(line["staleness/max"] == 0 for line in lines)
    assert all(abs(line["kl_sample_train_v1"]) < 1e-5 for line in lines)
    assert all(line["ratio/max"] == pytest.approx(1.0, abs=0.01) for line in lines)


@pytest.mark.slow
@pytest.mark.parametrize("ahead", [1, 2])
def test_no_token_is_older_than_allowed_and_none_of_a_step_is_lost(
    make_trainer: Any, ahead: int
) -> None:
    trainer: RLTrainer = make_trainer(
        max_steps=6, max_steps_off_policy=ahead, eval_examples=4, learning_rate=1e-4
    )
    trainer.train()
    lines = trainer.folder.read_metrics()
    assert [line["rollouts/scored"] for line in lines] == [16] * 6
    assert max(line["staleness/max"] for line in lines) == ahead
    for step in range(1, 7):
        assert min(versions(trainer, step)) >= step - 1 - ahead
        assert max(versions(trainer, step)) <= step - 1
    trained = [
        t.origin.group for s in range(1, 7) for t in trainer.folder.step_traces(s) if t.origin
    ]
    assert sorted(trained) == sorted([*range(12)] * 8), "each draw once, eight rollouts of each"


def samples(seed: int, groups: int = 4) -> list[list[Sample]]:
    """Return the samples of groups, of different lengths."""
    generator = torch.Generator().manual_seed(seed)

    def sample() -> Sample:
        length = int(torch.randint(6, 40, (1,), generator=generator))
        ids = torch.randint(500, (length,), generator=generator).tolist()
        mask = [0, 0, *torch.randint(2, (length - 3,), generator=generator).tolist(), 1]
        zeros = [0] * length
        advantage = float(torch.randn(1, generator=generator))
        return Sample(Branch(ids, mask, [-6.0 * m for m in mask], zeros, zeros), advantage)

    return [[sample() for _ in range(3)] for _ in range(groups)]


def policy(**args: Any) -> Policy:
    usual = {"max_seq_len": 64, "max_prompt_len": 16, "micro_batch_tokens": 96}
    torch.manual_seed(0)
    return Policy("tiny", configured(usual | args).args)


# Each loss with both kinds of weights, and each normalisation.
QUICK = {
    ("importance_sampling", "token", True),
    ("importance_sampling", "sequence", False),
    ("gspo", "sequence", True),
    ("gspo", "fixed", False),
    ("dro", "fixed", True),
    ("dro", "token", False),
}


@pytest.mark.parametrize(
    ("loss_fn", "normalisation", "use_lora"),
    [
        pytest.param(*case, marks=[] if case in QUICK else pytest.mark.slow)
        for case in product(
            ("importance_sampling", "gspo", "dro"), ("token", "sequence", "fixed"), (True, False)
        )
    ],
)
def test_a_streamed_gradient_is_the_whole_steps(
    loss_fn: str, normalisation: str, use_lora: bool
) -> None:
    args = {"loss_normalisation": normalisation, "loss_fn": loss_fn, "use_lora": use_lora}
    found, groups = [], samples(1)
    made = policy(**args, learning_rate=1e-12, max_grad_norm=1e9)  # it hardly moves
    for parts in ([[0, 1, 2, 3]], [[2], [0], [3], [1]], [[3, 1], [0, 2]]):
        for part in parts:
            made.accumulate([sample for group in part for sample in groups[group]])
        factor = scale(made.accumulated, made.args)
        named = made.model.named_parameters()
        gradients = {name: p.grad * factor for name, p in named if p.grad is not None}
        found.append((made.finish(), gradients))
    (whole, gradient), *others = found
    assert gradient
    for stats, other in others:
        assert stats.loss == pytest.approx(whole.loss, rel=1e-5)
        assert stats.grad_norm == pytest.approx(whole.grad_norm, rel=1e-4)
        assert stats.tokens == whole.tokens
        assert other.keys() == gradient.keys()
        largest = max(float(g.abs().max()) for g in gradient.values())
        for name, expected in gradient.items():
            assert torch.allclose(other[name], expected, rtol=1e-4, atol=1e-5 * largest), name


@pytest.mark.parametrize("num_substeps", [1, 2])
@pytest.mark.slow
def test_streaming_trains_what_the_step_would_have(make_trainer: Any, num_substeps: int) -> None:
    lines = []
    for stream in (False, True):
        settings = {"batch_size": 32, "max_steps": 1, "num_substeps": num_substeps}
        settings["micro_batch_size"] = 8  # a group fills it
        trainer: RLTrainer = make_trainer(f"{stream}", stream_minibatches=stream, **settings)
        accumulated: list[int] = []
        accumulate = trainer.learner.accumulate

        def counted(samples: Any, accumulate: Any = accumulate, counts: Any = accumulated) -> None:
            counts.append(len(samples))
            accumulate(samples)

        trainer.learner.accumulate = counted  # type: ignore[assignment, method-assign]
        lines.append(trainer.step())
        trainer.close()
        assert sum(accumulated) == 8 * lines[-1]["groups/effective"]
        assert (len(accumulated) > num_substeps) is stream, "groups are trained on one by one"
    plain, streamed = lines
    same = ["reward/mean", "tokens/trained", *(["loss", "grad_norm"] if num_substeps == 1 else [])]
    for name in same:
        assert streamed[name] == pytest.approx(plain[name], rel=1e-4)


@pytest.mark.slow
@pytest.mark.gate
def test_a_batch_can_be_trained_on_several_times(make_trainer: Any) -> None:
    trainer: RLTrainer = make_trainer(
        num_iterations=3, num_substeps=2, loss_fn="ppo", max_steps=2, lr_scheduler_type="linear"
    )
    steps = 0
    optim_step = trainer.learner.optim_step

    def counted(learning_rate: float) -> Any:
        nonlocal steps
        steps += 1
        return optim_step(learning_rate)

    trainer.learner.optim_step = counted  # type: ignore[method-assign]
    first = trainer.step()
    assert steps == 6
    assert first["tokens/trained"] == 3 * first["tokens/sampled"]
    assert first["ratio/max"] > 1.01, "later passes train with weights that have moved"
    trainer.step()
    left = 1 - steps / 12  # the schedule counts every optimizer step
    assert trainer.policy.learning_rate == pytest.approx(5e-3 * left)


@pytest.mark.slow
@pytest.mark.gate
def test_the_learning_rate_falls_on_steps_that_teach_nothing(make_trainer: Any) -> None:
    class Once(vf.Environment):
        """One of four tasks tells its rollouts apart."""

        max_turns = 1
        rubric = vf.Rubric(
            outcome=lambda trace: random.Random(trace.seed).random() if trace.task.id == "0" else 1
        )

        def tasks(self, split: Any) -> Any:
            return [vf.Task(str(index), f"Say {index}.") for index in range(4)]

    vf.register("test-once", Once)
    trainer: RLTrainer = make_trainer(
        env="test-once", batch_size=8, num_iterations=2, lr_scheduler_type="linear"
    )
    lines = [trainer.step() for _ in range(4)]
    assert sum(line["tokens/trained"] > 0 for line in lines) == 1
    left = [0.75, 0.5, 0.25, 0.0]
    assert [line["learning_rate"] for line in lines] == pytest.approx([5e-3 * x for x in left])


def broken_at(path: Path, steps: set[int]) -> dict[str, Any]:
    """Return the settings of a loss that is NaN in some training steps of one micro-batch each."""
    path.write_text(
        "import itertools\n"
        "steps = itertools.count(1)\n"
        "def loss(arrays):\n"
        f"    factor = float('nan') if next(steps) in {steps} else 1.0\n"
        "    return -factor * arrays.log_ratio.exp() * arrays.advantages\n"
    )
    return {"loss_fn": "custom", "import_path": f"{path}:loss"}


@pytest.mark.slow
def test_a_step_that_is_not_finite_is_skipped_and_counted(
    make_trainer: Any, tmp_path: Path
) -> None:
    trainer: RLTrainer = make_trainer(max_steps=4, **broken_at(tmp_path / "bad.py", {2, 3}))
    trainer.train()
    lines = trainer.folder.read_metrics()
    assert [line["updates/skipped"] for line in lines] == [0, 1, 1, 0]
    assert [line["tokens/trained"] > 0 for line in lines] == [True, False, False, True]
    assert "step 2" in trainer.folder.trainer_log.read_text()
    assert trainer.policy.optimizer_steps == 2


@pytest.mark.slow
def test_a_run_whose_steps_are_not_finite_in_a_row_ends_with_what_it_has(
    make_trainer: Any, tmp_path: Path
) -> None:
    trainer: RLTrainer = make_trainer(max_steps=9, **broken_at(tmp_path / "bad.py", {2, 3, 4, 5}))
    with pytest.raises(TrainingError, match="3 training steps in a row"):
        trainer.train()
    assert trainer.summary().checkpoint.name == "step-3", "the weights are still those of step 3"


def test_training_again_without_a_clip_is_warned_of(capsys: pytest.CaptureFixture[str]) -> None:
    config = str(vf_config())
    args = [config, "--dry-run", "--set", "env.id=no-such", "--set", "num_iterations=2"]
    assert main(args) == 2
    said = " ".join(capsys.readouterr().out.split())
    assert "num_iterations = 2 trains on each batch again" in said
    assert main([*args, "--set", "loss_fn=ppo"]) == 2
    assert "num_iterations" not in capsys.readouterr().out


def vf_config() -> Any:
    from pathlib import Path

    return Path(__file__).parents[2] / "configs" / "quickstart.toml"


def test_garbage_is_collected_less_often_until_the_trainer_is_closed(make_trainer: Any) -> None:
    before = gc.get_threshold()
    trainer: RLTrainer = make_trainer()
    assert gc.get_threshold()[0] > before[0]
    trainer.close()
    assert gc.get_threshold() == before


def test_refilled_groups_are_trained_on(make_trainer: Any) -> None:
    class Half(vf.Environment):
        """Every second task has the same reward for everyone."""

        max_turns = 1
        rubric = vf.Rubric(
            outcome=lambda trace: (
                0.5 if int(trace.task.id) % 2 else random.Random(trace.seed).random()
            )
        )

        def tasks(self, split: Any) -> Any:
            return [vf.Task(str(index), f"Say {index}.") for index in range(64)]

    vf.register("test-half", Half)
    trainer: RLTrainer = make_trainer(env="test-half", max_refill=4.0, batch_size=32)
    line = trainer.step()
    assert line["groups/effective"] == 4
    assert line["groups/count"] > 4
    assert line["groups_per_s/effective"] == pytest.approx(4 / line["time/total"])
    assert line["rollouts/scored"] == 8 * line["groups/count"]


@pytest.mark.slow
@pytest.mark.gate
def test_an_evaluation_of_several_rollouts_reports_pass_at_k(make_trainer: Any) -> None:
    """pass@k against counting all choices of k of a task's rollouts; the reward stays the mean."""
    trainer: RLTrainer = make_trainer(
        env="test-lucky",
        eval_strategy="steps",
        eval_examples=6,
        eval_rollouts_per_example=6,
        eval_temperature=0.5,
    )
    metrics = trainer.evaluate()
    traces = list(trainer.folder.eval_traces(0))
    by_task: dict[str, list[float]] = {}
    for trace in traces:
        by_task.setdefault(trace.task.id, []).append(trace.reward or 0.0)
    assert {len(rewards) for rewards in by_task.values()} == {6}
    assert 0 < sum(map(sum, by_task.values())) < 36
    assert metrics["eval/rollouts/scored"] == 36
    assert metrics["eval/reward/mean"] == pytest.approx(sum(map(sum, by_task.values())) / 36)
    assert {name for name in metrics if "pass@" in name} == {f"eval/pass@{k}" for k in (1, 2, 4, 6)}
    for k in (1, 2, 4, 6):
        shares = [fmean(map(max, combinations(rewards, k))) for rewards in by_task.values()]
        assert metrics[f"eval/pass@{k}"] == pytest.approx(fmean(shares))


@pytest.mark.slow
@pytest.mark.gate
def test_time_is_put_down_to_its_parts(make_trainer: Any) -> None:
    trainer: RLTrainer = make_trainer(
        max_steps=2, batch_size=8, eval_strategy="steps", eval_examples=4
    )
    summary = trainer.train()
    lines = [line for line in trainer.folder.read_metrics() if line["step"]]
    for line in lines:
        parts = {name: value for name, value in line.items() if name.startswith("time/")}
        total = parts.pop("time/total")
        assert sum(parts.values()) == pytest.approx(total)
        assert line["time/train"] > 0
    assert lines[1]["time/generate"] > 0
    assert lines[0]["time/evaluate"] > 0, "the first evaluation was waited for in the first step"
    assert sum(line["time/total"] for line in lines) < summary.seconds


class Lucky(Digits):
    """Succeeds by the rollout's seed alone, in a third of the cases."""

    def __init__(self) -> None:
        self.rubric = vf.Rubric(outcome=lambda trace: float(trace.seed % 3 == 0))


vf.register("test-lucky", Lucky)


class Order(Display):
    """Remembers which rollouts ended when."""

    def __init__(self) -> None:
        self.ended: list[str] = []

    def rollouts(self, done: int, total: int, *, evaluating: bool = False) -> None:
        self.ended.append("evaluation" if evaluating else "training")


@pytest.mark.slow
def test_evaluation_and_the_next_steps_rollouts_share_the_engine(make_trainer: Any) -> None:
    trainer: RLTrainer = make_trainer(
        max_steps=2, eval_strategy="steps", eval_steps=1, eval_examples=16, max_concurrent=8
    )
    display = Order()
    trainer.collector._display = display
    trainer.train()
    first = display.ended[: display.ended.index("training") + 16]
    assert first.count("evaluation") < 16, "the first step did not wait for the evaluation's end"
    assert display.ended.count("evaluation") == 3 * 16
    assert display.ended.count("training") == 2 * 16
    # Still, what is evaluated are the weights as they were: none changed meanwhile.
    for step in range(3):
        found = {
            version
            for trace in trainer.folder.eval_traces(step)
            for branch in trace.branches
            for version in branch.weight_version
        }
        assert found == {-1, step}

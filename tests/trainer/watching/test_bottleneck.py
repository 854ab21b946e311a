"""The bottleneck of a run, and settings that exist and would help."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.configs import configured
from vf.inference.settings import EmbeddedSettings, VllmSettings
from vf.sandbox.hosting.settings import DOCKER
from vf.trainer.run.metrics import Metrics
from vf.trainer.settings.config import Config, TrainerArgs, TrainerConfig
from vf.trainer.settings.load_config import load_config
from vf.trainer.watching.bottleneck import STEPS, verdict
from vf.trainer.watching.bottleneck_advice import MOST
from vf.trainer.watching.step_clock import PARTS

VLLM = {"engine": "vllm"}


def make(inference: dict[str, Any] | None = None, env: Any = None, **args: Any) -> Config:
    env = {"id": "calculator", "args": env or {}}
    return configured(args, env=env, inference=inference or {})


def steps(count: int = 6, *, first: int = 1, more: Metrics | None = None, **times: float) -> Any:
    """Return lines of steps that each spent these seconds."""
    spent = {f"time/{part}": seconds for part, seconds in times.items()}
    total = {"time/total": sum(times.values())}
    return [{"step": first + i, **spent, **total, **(more or {})} for i in range(count)]


def said(lines: Sequence[Metrics], config: Config | None = None) -> str:
    return " ".join(verdict(lines, config or make()).advice)


def test_shares_are_of_the_last_steps_and_sum_to_one() -> None:
    old = steps(100, train=50.0)
    recent = steps(STEPS, first=101, generate=6.0, environment=1.0, train=2.0, wait=1.0)
    found = verdict([*old, *recent], make())
    assert found.steps == STEPS
    assert found.seconds == pytest.approx(10.0)
    assert found.shares == pytest.approx(
        {"generate": 0.6, "environment": 0.1, "train": 0.2, "wait": 0.1}
    )
    assert found.bottleneck == "generate"
    assert found.advice[0] == "Generating takes 60% of a step's 10 s."


def test_the_first_step_is_warm_up_once_there_are_others() -> None:
    first = steps(1, train=100.0)
    later = steps(3, first=2, generate=1.0)
    assert verdict([*first, *later[:2]], make()).bottleneck == "train"
    assert verdict([*first, *later], make()).shares == {"generate": 1.0}


def test_lines_without_times_or_with_holes_are_passed_over() -> None:
    assert verdict([], make()).bottleneck is None
    assert verdict([{"step": 0, "eval/reward/mean": 0.5}], make()).advice == []
    lines: list[Any] = [
        {"step": 1, "reward/mean": 0.5},
        {"step": 2, "time/generate": 3.0, "time/train": 1.0, "time/publish": None},
        {"step": 2, "eval/reward/mean": 0.5},
    ]
    found = verdict(lines, make())
    assert (found.steps, found.shares) == (1, {"generate": 0.75, "train": 0.25})


def test_advice_fits_the_settings() -> None:
    generating = steps(generate=9.0, train=1.0)
    many = make(batch_size=128, max_concurrent=128)
    assert "inference.args.max_requests = 32 of up to 128" in said(generating, many)
    assert "max_requests" not in said(generating), "the README's run.toml"
    on_vllm = said(generating, make(VLLM, max_concurrent=8))
    assert "max_requests" not in on_vllm
    assert "trainer.args.max_concurrent = 8 towards batch_size = 64" in on_vllm
    assert "trainer.args.max_concurrent" not in said(generating, make(VLLM))
    theirs = said(generating, make({**VLLM, "base_url": "http://gpu:8000/v1"}))
    assert "gpu_memory_utilization" not in theirs

    training = steps(train=9.0, generate=1.0, more={"tokens/trained": 100_000})
    assert "gradient_checkpointing" not in said(training)
    assert "gradient_checkpointing = true" in said(training, make(gradient_checkpointing=True))
    assert "micro_batch_tokens = 8192" in said(training)
    assert "micro_batch_tokens" not in said(training, make(micro_batch_tokens=200_000))
    assert "use_lora = true" in said(training, make(use_lora=False))

    saving = said(steps(save=3.0, train=1.0), make(save_steps=1))
    assert "trainer.args.save_steps = 1" in saving
    evaluating = steps(evaluate=3.0, train=1.0)
    assert "trainer.args.eval_steps = 50" in said(evaluating, make(max_steps=100))
    assert "eval_steps" not in said(evaluating, make(max_steps=50)), "the last is always measured"
    sleeping = make({**VLLM, "sleep": True})
    assert "inference.sleep = true" in said(steps(publish=3.0, train=1.0), sleeping)


def test_metrics_sharpen_the_advice() -> None:
    waits = steps(environment=9.0, train=1.0, more={"sandbox/wait_s_mean": 4.0})
    config = make(env={"sandbox": {"pool": 2}})
    assert "waits 4 s for its sandbox: raise env.args.sandbox.pool = 2" in said(waits, config)
    assert "sandbox.pool" not in said(steps(environment=9.0, more={"sandbox/wait_s_mean": 0.1}))
    fails = steps(environment=9.0, more={"tool_calls/mean": 2.0, "tool_calls/error_rate": 0.5})
    assert "50% of the tool calls fail" in said(fails)
    wasted = steps(generate=9.0, more={"groups/uniform_fraction": 0.75})
    assert "75% of the groups had no learning signal" in said(wasted)
    cut = steps(generate=9.0, more={"truncated_fraction": 0.5})
    assert "50% of the rollouts or turns run into a limit" in said(cut)
    forks = {"turns/mean": 11.0, "forks_per_rollout": 9.0, "tokens/context_mean": 5e4}
    for slow in (steps(generate=9.0, more=forks), steps(train=9.0, more=forks)):
        assert "90% of the agent's calls begin a new context" in said(slow)
        assert "50,000 tokens a rollout" in said(slow)
    sampled_again = steps(train=9.0, more=forks | {"forks/parallel": 8.0})
    assert "begin a new context" not in said(sampled_again)


def test_a_healthy_recorded_run_shows_no_alarm_of_failures() -> None:
    """It is the quickstart's, whose rollouts are all in flight and decoded at once."""
    root = Path(__file__).parents[3]
    config = load_config(root / "configs" / "quickstart.toml")[0]
    recorded = Path(__file__).parent / "recorded" / "quickstart-metrics.jsonl"
    lines = [json.loads(line) for line in recorded.read_text().splitlines()]
    found = verdict(lines, config)
    assert found.bottleneck == "generate"
    waiting = verdict([line | {"time/wait": 60.0} for line in lines], config)
    assert waiting.bottleneck == "wait"
    text = " ".join([*found.advice, *waiting.advice])
    for word in ("max_requests", "max_concurrent", "server", "retried", "logs/"):
        assert word not in text


def test_waiting_is_laid_on_failures_and_outages_only_where_there_were_some() -> None:
    assert "logs/" not in said(steps(wait=9.0))
    assert "3 rollouts of a step fail" in said(steps(wait=9.0, more={"rollouts/failed": 3.0}))
    assert "logs/inference.log says why the server went down" in said(steps(outage=9.0))


def test_overlap_is_advised_where_there_is_none_and_something_to_win() -> None:
    both = steps(generate=5.0, train=4.0)
    name = "trainer.args.max_steps_off_policy = 1"
    vllm = {**VLLM, "base_url": "http://gpu:8000/v1"}
    assert name in said(both, make(vllm, max_steps_off_policy=0))
    assert name not in said(both, make(vllm, max_steps_off_policy=1))
    assert name not in said(steps(generate=9.0, train=0.1), make(vllm, max_steps_off_policy=0))


def known(name: str) -> bool:
    """Tell whether a setting exists by the name that it has in the TOML."""
    if name.startswith("trainer.args."):
        return name.removeprefix("trainer.args.") in TrainerArgs.model_fields
    if name.startswith("trainer."):
        return name.removeprefix("trainer.") in TrainerConfig.model_fields
    if name.startswith("env.args.sandbox."):
        return name.removeprefix("env.args.sandbox.") in DOCKER
    inference, _, argument = name.removeprefix("inference.").partition(".")
    fields = {**VllmSettings.model_fields, **EmbeddedSettings.model_fields}
    flags = {"max_requests", "gpu_memory_utilization", "tensor_parallel_size"}  # the last two: vLLM
    return inference in fields and (not argument or argument in flags)


CONFIGS = [
    make(),
    make(max_concurrent=4, gradient_checkpointing=True),
    make(use_lora=False, optim="adamw_offload"),
    make(bf16=True, kl_penalty_coef=0.1),
    make({**VLLM, "sleep": True}, use_lora=False),
    make({**VLLM, "publish": "disk"}, max_concurrent=4),
    make({**VLLM, "base_url": "http://gpu:8000/v1"}),
]
WORST: Metrics = {
    "sandbox/wait_s_mean": 9.0,
    "tool_calls/mean": 1.0,
    "tool_calls/error_rate": 0.9,
    "groups/uniform_fraction": 0.9,
    "truncated_fraction": 0.9,
    "tokens/trained": 1e9,
}


def test_every_bottleneck_has_advice_and_every_setting_it_names_exists() -> None:
    named: set[str] = set()
    for part, config, more in itertools.product(PARTS, CONFIGS, ({}, WORST)):
        advice = verdict([line | {f"time/{part}": 9.0} for line in steps(more=more)], config).advice
        assert 2 <= len(advice) <= 1 + MOST
        assert all(sentence.endswith(".") and "  " not in sentence for sentence in advice)
        named |= set(
            re.findall(r"(?<!/)\b(?:trainer|inference|env)(?:\.[a-z\d_]+)+", " ".join(advice))
        )
    assert len(named) > 10
    assert {name for name in named if not known(name)} == set()
    assert known("trainer.args.nonsense") is False

"""What is found wrong before a model is loaded, and what is left of looking for it."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import vf
from tests.trainer.configs import configured
from tests.trainer.learning.families import BY_NAME
from vf.environments.environment import Split
from vf.inference.model import Conversation, Sampling
from vf.inference.vllm.adapter_formats import FORMATS
from vf.trainer.preflight import check_adapter, empty_model, preflight
from vf.trainer.run import first_prompts
from vf.trainer.run.first_prompts import AT_ONCE, MOST, FirstPrompts
from vf.trainer.run.plan import Plan
from vf.trainer.watching.plan_text import describe

TASKS = 5


class Session:
    """What an episode opens when it is reset."""

    opened = 0

    def __init__(self) -> None:
        Session.opened += 1

    def close(self) -> None:
        Session.opened -= 1


class Sessions(vf.Environment):
    """Each episode holds a session; ``ends_badly`` fails in its close."""

    rubric = vf.Rubric(outcome=lambda trace: 1.0)

    def __init__(self, ends_badly: bool = False) -> None:
        self.ends_badly = ends_badly

    def tasks(self, split: Split) -> Iterator[vf.Task]:
        for index in range(TASKS):
            yield vf.Task(f"{split}-{index}", "Hello.")

    def reset(self, task: vf.Task) -> str:
        self.hold("session", Session)
        return "Hello."

    def close(self) -> None:
        if self.ends_badly:
            raise OSError("the server hung up")


vf.register("test-sessions", Sessions)


def checked(name: str = "test-sessions", args: dict[str, Any] | None = None, **tables: Any) -> Plan:
    """Preflight a run whose prompts are short; ``args`` are those of the environment."""
    limits = {"max_prompt_len": 192, "max_seq_len": 384} | tables.pop("limits", {})
    return preflight(configured(limits, **{"env": {"id": name, "args": args or {}}} | tables))


def test_what_an_episode_holds_is_closed_after_its_prompt_was_measured() -> None:
    checked()
    assert Session.opened == 0


def test_an_episode_that_cannot_be_closed_is_reported_and_holds_nothing() -> None:
    said = "environment 'test-sessions': close raised OSError: the server hung up"
    with pytest.raises(vf.ConfigError, match=said):
        checked(args={"ends_badly": True})
    assert Session.opened == 0


class Slow(vf.Environment):
    """Counts resets; ``hangs`` after so many, and then waits until it is cancelled."""

    rubric = vf.Rubric(outcome=lambda trace: 1.0)
    resets = inside = most_inside = closed = 0

    def __init__(self, hangs: int = 10**6, task_count: int = 40, expensive: bool = False) -> None:
        self.hangs, self.task_count, self.expensive_reset = hangs, task_count, expensive

    def tasks(self, split: Split) -> Iterator[vf.Task]:
        for index in range(self.task_count if split == "train" else 1):
            yield vf.Task(f"{split}-{index}", "word " * (30 if index == self.task_count - 1 else 1))

    async def reset(self, task: vf.Task) -> str:
        Slow.resets += 1
        Slow.inside += 1
        Slow.most_inside = max(Slow.inside, Slow.most_inside)
        if Slow.resets > self.hangs:
            await asyncio.Event().wait()
        for _ in range(3):
            await asyncio.sleep(0)
        Slow.inside -= 1
        return f"It is: {task.prompt}"

    async def close(self) -> None:
        Slow.closed += 1

    @vf.tool
    def known(self) -> str:
        """Be known without a reset, which would look for tools."""
        return ""


vf.register("test-slow-reset", Slow)


@pytest.fixture(autouse=True)
def _unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """How many tasks are reset is not for a busy machine to say."""
    monkeypatch.setattr(first_prompts, "BEGIN_SECONDS", 120.0)
    monkeypatch.setattr(first_prompts, "END_SECONDS", 120.0)


def first_prompts_of(**env_args: object) -> FirstPrompts:
    Slow.resets = Slow.inside = Slow.most_inside = Slow.closed = 0
    limits = {"max_prompt_len": 512, "max_seq_len": 768}
    found = checked("test-slow-reset", env_args, limits=limits).environments[0].prompts
    assert found is not None
    assert Slow.closed == Slow.resets
    return found


def test_resets_run_concurrently() -> None:
    found = first_prompts_of()
    assert (Slow.resets, Slow.most_inside) == (41, AT_ONCE)
    assert (found.task.id, found.exact) == ("train-39", True)


@pytest.mark.slow
@pytest.mark.gate
def test_of_many_tasks_those_with_the_longest_prompts_are_reset() -> None:
    found = first_prompts_of(task_count=MOST + 200)
    assert (Slow.resets, found.task.id) == (MOST, f"train-{MOST + 199}")


@pytest.mark.parametrize("hangs", [0, 3])
def test_a_reset_that_hangs_does_not_hold_up_the_run(
    hangs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(first_prompts, "END_SECONDS", 0.2)
    found = first_prompts_of(hangs=hangs)
    assert found.exact == (hangs > 0)
    expected = "of 3 tasks" if hangs else "reset of task 'train-0' takes longer than 0.2 s"
    assert expected in found.how


def test_an_expensive_reset_is_not_called() -> None:
    found = first_prompts_of(expensive=True)
    assert (Slow.resets, found.exact, found.task.id) == (0, False, "train-39")
    assert "declared expensive" in found.how


def overlong(**args: object) -> Plan:
    """Preflight 600 tasks of which the last one's prompt is over the limit."""
    limits = {"max_prompt_len": 120, "max_seq_len": 384} | args
    return checked("test-slow-reset", {"task_count": 600}, limits=limits)


def test_an_overlong_prompt_is_left_out_and_counted() -> None:
    [found] = overlong().environments
    assert found.overlong == ["train-599"]
    assert len(found.tasks) == 600, "the order of the others does not depend on what was measured"
    assert "1 of 600 train tasks" in found.left_out


def test_an_overlong_prompt_is_refused_where_it_is_an_error() -> None:
    with pytest.raises(vf.ConfigError, match=r"max_prompt_len = 120, but .* task 'train-599'"):
        overlong(overlong_prompts="error")


def test_prompts_that_are_all_overlong_are_refused() -> None:
    with pytest.raises(vf.ConfigError, match="max_prompt_len = 4, but the first prompt of task"):
        overlong(max_prompt_len=4)


class Simulated(vf.Environment):
    """Its first message is another model's, whose server is down."""

    rubric = vf.Rubric(outcome=lambda trace: 1.0)

    def tasks(self, split: Split) -> Iterator[vf.Task]:
        yield vf.Task(f"{split}-0", "Hello.")

    async def reset(self, task: vf.Task) -> str:
        user = vf.ChatModel("user", base_url="http://127.0.0.1:9/v1", max_retries=0)
        conversation = Conversation(messages=[vf.Message("user", "Begin.")])
        return (await user.respond(conversation, Sampling())).message.content


vf.register("test-simulated", Simulated)


def test_a_reset_that_asks_a_server_that_is_down_is_reported_with_its_url() -> None:
    with pytest.raises(vf.ConfigError) as error:
        checked("test-simulated")
    said = str(error.value)
    for part in ("'test-simulated'", "'train-0'", "http://127.0.0.1:9/v1/", "expensive_reset"):
        assert part in said


def test_a_close_that_hangs_is_reported_with_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    async def hang(self: vf.Environment) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(Slow, "close", hang)
    monkeypatch.setattr(first_prompts, "CLOSE_TIMEOUT", 0.05)
    with pytest.raises(vf.ConfigError, match=r"close took longer than 0\.05 s"):
        first_prompts_of()


def test_auto_takes_the_precision_of_the_launchers_settings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert checked().config.args.bf16 is False
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    plan = checked()
    assert plan.config.args.bf16 is True
    assert "LoRA rank 16 in bfloat16" in dict(describe(plan))["training"]


def test_the_plan_says_what_is_adapted() -> None:
    assert dict(describe(checked()))["adapted"] == (
        "attention (q_proj, k_proj, v_proj, o_proj), MLP (gate_proj, up_proj, down_proj); "
        "0.18 M trained"
    )
    assert "adapted" not in dict(describe(checked(limits={"use_lora": False})))


@pytest.mark.parametrize(
    ("workers", "said"),
    [
        (0, "in the trainer's process, as rollouts.workers = 0 says; at most 64 at once"),
        (1, "in 1 worker process: as rollouts.workers says; at most 64 at once"),
        (3, "in 3 worker processes: as rollouts.workers says; at most 64 at once"),
    ],
)
def test_the_plan_says_where_rollouts_run(workers: int, said: str) -> None:
    plan = checked(rollouts={"workers": workers})
    assert dict(describe(plan))["rollouts"] == said


@pytest.mark.parametrize(
    ("family", "settings", "message"),
    [
        ("DeepSeek-V3, Kimi-K2", {}, "no adapter to kv_b_proj of deepseek_v3"),
        ("Llama 4", {}, "no adapter to k_proj, q_proj, experts.down_proj, experts.gate_up_proj of"),
        ("Qwen2.5", {"train_unembed": True}, "no adapter to lm_head of qwen2"),
    ],
)
def test_an_adapter_that_vllm_would_leave_out_is_refused_with_one_that_it_takes(
    family: str, settings: dict[str, Any], message: str, tmp_path: Path
) -> None:
    made = BY_NAME[family].config()
    made.save_pretrained(tmp_path)
    served = {"model": str(tmp_path), "inference": {"engine": "vllm"}}
    with pytest.raises(vf.ConfigError, match=message) as caught:
        check_adapter(configured(settings, **served), empty_model(made))
    assert check_adapter(configured(settings, model=str(tmp_path)), empty_model(made))
    advice = dict(re.findall(r"(lora_target_\w+) = (\[.*?\])", str(caught.value)))
    kept = {name: json.loads(names) for name, names in advice.items()}
    assert check_adapter(configured(kept, **served), empty_model(made))


@pytest.mark.parametrize("family", ["Mixtral", "Qwen3.5", "Qwen3.5-MoE", "gpt-oss"])
def test_adapters_of_experts_and_of_composites_are_published(family: str, tmp_path: Path) -> None:
    made = BY_NAME[family].config()
    made.save_pretrained(tmp_path)
    served = configured(model=str(tmp_path), inference={"engine": "vllm"})
    assert check_adapter(served, empty_model(made))


def test_an_adapter_of_a_composite_whose_names_are_not_known_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = BY_NAME["Qwen3.5"].config()
    made.save_pretrained(tmp_path)
    monkeypatch.delitem(FORMATS, "qwen3_5")
    served = configured(model=str(tmp_path), inference={"engine": "vllm"})
    with pytest.raises(vf.ConfigError, match=r"composite \(qwen3_5\).*use_lora = false"):
        check_adapter(served, empty_model(made))


VLLM = {"engine": "vllm", "base_url": "http://127.0.0.1:9/v1"}
DRAFTING = {"engine": "vllm", "executable": "true", "args": {"speculative_config.method": "ngram"}}
HOT = {"id": "reverse-text", "temperature": 2.5}
REFUSED: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({}, {"env": {"id": "calculater"}}, "Did you mean 'calculator'"),
    (
        {},
        {"env": {"id": "calculator", "args": {"max_operations": "many"}}},
        "a whole number, not 'many'",
    ),
    (
        {"max_seq_len": 4096, "micro_batch_tokens": 8192},
        {},
        "more than the model's context",
    ),
    (
        {"temperature": 2.5},
        {"inference": VLLM},
        "trainer.args.temperature = 2.5, but vLLM",
    ),
    (
        {"eval_temperature": 2.5},
        {"inference": VLLM},
        "trainer.args.eval_temperature = 2.5",
    ),
    ({}, {"inference": VLLM, "env": HOT}, "env.0.temperature = 2.5, but vLLM samples at 2 at most"),
    (
        {"min_p": 0.1},
        {"inference": DRAFTING},
        "trainer.args.min_p = 0.1, but vLLM has no min_p with speculative decoding",
    ),
    (
        {"router_aux_loss_coef": 0.01},
        {},
        "router_aux_loss_coef: LlamaForCausalLM has no routers",
    ),
    ({"router_replay": "replay"}, {}, "router_replay = 'replay', but LlamaForCausalLM has no rou"),
]


@pytest.mark.parametrize(("args", "tables", "words"), REFUSED)
def test_what_cannot_work_is_refused_before_anything_is_loaded(
    args: dict[str, Any], tables: dict[str, Any], words: str
) -> None:
    with pytest.raises(vf.ConfigError) as error:
        checked(limits=args, **tables)
    assert words in str(error.value)


class Elsewhere(vf.Environment):
    """What it needs is on the machines of its workers."""

    def tasks(self, split: Split) -> Iterator[vf.Task]:
        yield vf.Task(f"{split}-0", "Hello.")

    def check(self) -> None:
        raise vf.ConfigError("no container engine answers here")


vf.register("test-elsewhere", Elsewhere)


@pytest.mark.parametrize(("backend", "workers"), [("ray", 2), ("ray", 0), ("local", 2)])
def test_what_workers_on_other_machines_need_is_not_looked_for_here(
    backend: str, workers: int
) -> None:
    where: dict[str, Any] = {"rollouts": {"workers": workers}, "cluster": {"backend": backend}}
    if (backend, workers) == ("ray", 2):
        assert checked("test-elsewhere", **where).workers == 2
        return
    with pytest.raises(vf.ConfigError, match="no container engine answers here"):
        checked("test-elsewhere", **where)

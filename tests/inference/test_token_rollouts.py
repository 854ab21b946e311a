"""Whole rollouts with token ids, through the runner, the server, the engine and the model."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

import vf
from tests.inference.chat_templates import tokenizer
from tests.inference.tiny_serving import load_model, plain_logprobs, running_engine, running_server
from vf.inference.embedded.embedded_engine import EmbeddedEngine
from vf.inference.models.token_model import TokenModel
from vf.inference.rendering.renderer import Renderer
from vf.inference.token_client import TokenClient
from vf.traces.trace import Branch, StopReason, Trace

RENDERER = Renderer(tokenizer())
WILD = 30.0  # a temperature at which whatever the model has learnt hardly matters


class Chatter(vf.Environment):
    """Says something after every answer, and never ends by itself."""

    max_turns = 4

    def step(self, reply: vf.Message) -> vf.Step:
        return vf.Step(f"You said {len(reply.content)} characters. Go on.", reward=0.25)


@pytest.fixture(scope="module")
def engine() -> Iterator[EmbeddedEngine]:
    with running_engine(load_model(), max_seq_len=640) as running:
        yield running


@pytest.fixture(scope="module")
def url(engine: EmbeddedEngine) -> Iterator[str]:
    with running_server(engine, RENDERER) as base_url:
        yield base_url


def roll(
    url: str,
    environment: vf.Environment,
    tasks: list[vf.Task],
    sampling: vf.Sampling,
    *,
    max_seq_len: int = 640,
    max_prompt_len: int | None = None,
) -> list[Trace]:
    """Run all rollouts at once."""

    async def main() -> list[Trace]:
        client = TokenClient.to(url, "tiny", max_retries=0)
        model = TokenModel(
            client,
            RENDERER,
            max_seq_len=max_seq_len,
            max_prompt_len=max_prompt_len,
        )
        try:
            return await asyncio.gather(
                *(
                    vf.rollout(environment, task, model, sampling=sampling, seed=seed)
                    for seed, task in enumerate(tasks)
                )
            )
        finally:
            await client.close()

    return asyncio.run(main())


def assert_branch_is_true(
    engine: EmbeddedEngine, branch: Branch, trace: Trace, temperature: float
) -> None:
    """Check the branch against a plain forward pass over the whole of it."""
    assert len(branch.loss_mask) == len(branch.logprobs) == len(branch)
    assert len(branch.turn_index) == len(branch.weight_version) == len(branch)
    assert sum(branch.loss_mask) == trace.completion_tokens
    ids = branch.token_ids
    plain = [0.0, *plain_logprobs(engine, ids[:1], ids[1:], temperature)]
    for place, sampled in enumerate(branch.loss_mask):
        expected = plain[place] if sampled else 0.0
        assert branch.logprobs[place] == pytest.approx(expected, abs=1e-3)
        assert branch.weight_version[place] == (engine.version if sampled else -1)
    assert branch.turn_index == sorted(branch.turn_index)


def test_the_tools_of_each_episode_are_rendered_for_it(url: str) -> None:
    class Shops(vf.Environment):
        def reset(self, task: vf.Task) -> str | list[dict[str, Any]]:
            def tool() -> str:
                """Buy it."""
                return "bought"

            tool.__name__ = f"buy_{task.id}"
            self.tools = [tool]
            return task.prompt

    tasks = [vf.Task(id, "Buy it.") for id in ("tea", "rice")]
    for trace, task in zip(roll(url, Shops(), tasks, vf.Sampling(8)), tasks, strict=True):
        assert trace.error is None
        text = RENDERER.decode(trace.branches[0].token_ids)
        assert [f"buy_{each.id}" in text for each in tasks] == [each is task for each in tasks]


@pytest.mark.parametrize("temperature", [1.0, WILD])
def test_calculator_rollouts_hold_the_logprobs_of_the_model(
    url: str, engine: EmbeddedEngine, temperature: float
) -> None:
    environment = vf.make("calculator")
    tasks = list(environment.tasks("train"))[:6]
    for trace in roll(url, environment, tasks, vf.Sampling(40, temperature)):
        assert trace.error is None
        assert trace.reward is not None
        assert trace.forks == []
        (branch,) = trace.branches
        assert_branch_is_true(engine, branch, trace, temperature)
        first = RENDERER.prompt(trace.messages[:2], environment.toolbox.schemas())
        assert branch.token_ids[: len(first)] == first


def test_many_turns_are_one_branch_that_grows(url: str, engine: EmbeddedEngine) -> None:
    for trace in roll(url, Chatter(), [vf.Task("t", "Talk.")] * 4, vf.Sampling(24, WILD)):
        assert trace.stop_reason is StopReason.MAX_TURNS
        assert trace.reward == 1.0
        (branch,) = trace.branches
        assert_branch_is_true(engine, branch, trace, WILD)
        starts = [branch.turn_index.index(turn) for turn in range(4)]
        for turn, (start, record) in enumerate(zip(starts, trace.turns, strict=True)):
            end = [*starts[1:], len(branch)][turn]
            sampled = branch.loss_mask[start:end]
            assert record.prompt_tokens == end - record.completion_tokens
            assert sampled == sorted(sampled)
            assert sum(sampled) == record.completion_tokens <= 24
            text = RENDERER.decode(branch.token_ids[start : end - record.completion_tokens])
            assert ("Go on." if turn else "Talk.") in text


def test_the_seed_of_a_rollout_gives_the_same_tokens_again(url: str) -> None:
    tasks = [vf.Task("t", "Talk.")] * 3
    first, second = (roll(url, Chatter(), tasks, vf.Sampling(12, WILD)) for _ in range(2))
    ids = [[trace.branches[0].token_ids for trace in traces] for traces in (first, second)]
    assert ids[0] == ids[1]
    assert len({tuple(one) for one in ids[0]}) == 3


def test_a_full_context_ends_the_rollout_within_its_limit(url: str) -> None:
    chatter = Chatter()
    chatter.max_turns = 100
    (trace,) = roll(url, chatter, [vf.Task("t", "Talk.")], vf.Sampling(24, WILD), max_seq_len=200)
    assert trace.stop_reason is StopReason.MAX_SEQ_LEN
    assert trace.truncated
    assert trace.error is None
    (branch,) = trace.branches
    assert len(branch) <= 200
    assert branch.loss_mask[-1] == 1
    assert len(trace.turns) > 1


def test_a_prompt_over_its_limit_is_a_failure_with_a_boundary_of_its_own(url: str) -> None:
    (trace,) = roll(
        url, Chatter(), [vf.Task("t", "Talk. " * 50)], vf.Sampling(4), max_prompt_len=60
    )
    assert trace.error is not None
    assert trace.error.boundary == "prompt"
    assert "over max_prompt_len = 60" in trace.error.message
    assert trace.stop_reason is StopReason.ERROR
    assert trace.reward is None


def test_a_refusing_server_is_a_failure_and_never_a_reward(url: str) -> None:
    (trace,) = roll(
        url, Chatter(), [vf.Task("t", "Talk. " * 900)], vf.Sampling(4), max_seq_len=10**6
    )
    assert trace.error is not None
    assert trace.error.boundary == "model"
    assert "maximum context length is 640" in trace.error.message
    assert trace.reward is None
    assert trace.branches == []


def test_traces_with_tokens_survive_json(url: str) -> None:
    (trace,) = roll(url, Chatter(), [vf.Task("t", "Talk.")], vf.Sampling(8, WILD))
    assert Trace.from_json(trace.to_json()) == trace

"""Episodes that are longer than a context: summaries, and results that are left out."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

import vf
from tests.inference.chat_templates import tokenizer
from tests.inference.tiny_serving import load_model, plain_logprobs, running_engine, running_server
from vf.environments.bundled.calculator import Calculator
from vf.environments.contexts import INSTRUCTION, INTRODUCTION, LEFT_OUT
from vf.inference.completions import Completion
from vf.inference.embedded.embedded_engine import EmbeddedEngine
from vf.inference.models.token_model import TokenModel
from vf.inference.rendering.renderer import Renderer
from vf.inference.token_client import TokenClient
from vf.traces.trace import StopReason
from vf.trainer.learning.advantages.turn_credit import turn_rewards

RENDERER = Renderer(tokenizer())
TASK = vf.Task("t", "Talk.")
STORY = "The ship sailed on, and the log said so. "


class Chatter(vf.Environment):
    """Says something after every answer, and never ends by itself."""

    max_turns = 8
    context: str | vf.Compact | vf.DropToolResults = "compact"
    turns: tuple[int, ...] = ()

    def step(self, reply: vf.Message) -> vf.Step:
        self.turns = (*self.turns, self.turn)
        return vf.Step(3 * STORY + "Go on.", reward=0.125)

    def close(self) -> None:
        self.trace_info["turns"] = [*self.turns]


class Insists(Calculator):
    """Answers with a long result of a tool, whatever was called."""

    max_turns = 8
    context = vf.DropToolResults(keep=1)

    async def step(self, reply: vf.Message) -> vf.Step:
        await self.run_tools(reply)
        calls = [call.id for call in reply.tool_calls] or ["none"]
        return vf.Step([vf.Message("tool", 2 * STORY, tool_call_id=call) for call in calls])


@dataclass
class Recorder:
    """Asks the engine's server, and keeps what it was asked and what it said."""

    client: TokenClient
    said: list[tuple[list[int], Completion]] = field(default_factory=list)

    async def complete(self, prompt_ids: list[int], *rest: Any) -> Completion:
        completion = await self.client.complete(prompt_ids, *rest)
        self.said.append(([*prompt_ids], completion))
        return completion


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
    task: vf.Task = TASK,
    *,
    sampling: vf.Sampling | None = None,
    size: int = 480,
    **limits: Any,
) -> tuple[vf.Trace, list[tuple[list[int], Completion]]]:
    async def main() -> tuple[vf.Trace, list[tuple[list[int], Completion]]]:
        recorder = Recorder(TokenClient.to(url, "tiny", max_retries=0))
        model = TokenModel(recorder, RENDERER, max_seq_len=size, **limits)
        try:
            trace = await vf.rollout(
                environment, task, model, sampling=sampling or vf.Sampling(24, 1.5), seed=1
            )
        finally:
            await recorder.client.close()
        assert vf.Trace.from_json(trace.to_json()) == trace
        return trace, recorder.said

    return asyncio.run(main())


def assert_exact(
    engine: EmbeddedEngine, trace: vf.Trace, said: list[tuple[list[int], Completion]], heat: float
) -> None:
    """Each turn's tokens are those that were sent and sampled, and each is trained once."""
    assert sum(sum(branch.loss_mask) for branch in trace.branches) == trace.completion_tokens
    assert len(said) == len(trace.turns)
    for turn, (prompt, completion) in enumerate(said):
        [branch] = [each for each in trace.branches if turn in each.turn_index]
        places = [
            place
            for place, (index, mask) in enumerate(
                zip(branch.turn_index, branch.loss_mask, strict=True)
            )
            if index == turn and mask
        ]
        assert branch.token_ids[: places[0]] == prompt
        assert [branch.token_ids[place] for place in places] == completion.token_ids
        assert [branch.logprobs[place] for place in places] == completion.logprobs
        plain = plain_logprobs(engine, prompt, completion.token_ids, heat)
        assert completion.logprobs == pytest.approx(plain, abs=1e-3)


def test_a_full_context_is_summarised_in_the_models_own_tokens(
    url: str, engine: EmbeddedEngine
) -> None:
    trace, said = roll(url, Chatter())
    assert trace.error is None
    assert trace.stop_reason is StopReason.MAX_TURNS
    assert_exact(engine, trace, said, 1.5)

    summaries = len(trace.branches) - 1
    assert summaries >= 2
    assert [fork.kind for fork in trace.forks] == ["compacted"] * summaries
    assert len(trace.turns) == 8 + summaries  # a summary uses up no turn
    for place, (before, after) in enumerate(zip(trace.lineages, trace.lineages[1:], strict=False)):
        asked, summary = before.messages[-2:]
        assert asked.content.endswith(INSTRUCTION)
        assert before.answers[-1] == len(before.messages) - 1  # sampled, and so trained
        [first] = after.messages[: after.prompt_messages]
        text = summary.content.strip() or "(It is empty.)"
        assert first.content == f"Talk.\n\n{INTRODUCTION}\n\n{text}"
        assert trace.forks[place].turn == after.turns[0] == before.turns[-1] + 1
    assert trace.messages == trace.lineages[-1].messages
    assert [each.branches for each in trace.lineages] == [[n] for n in range(summaries + 1)]


@pytest.mark.slow
@pytest.mark.gate
def test_turns_and_rewards_keep_their_places_beside_summaries(url: str) -> None:
    trace, _ = roll(url, Chatter())
    summaries = {each.turns[-1] for each in trace.lineages[:-1]}
    expected = [0.0 if n in summaries else 0.125 for n in range(len(trace.turns))]
    assert trace.step_rewards == expected
    assert turn_rewards(trace) == pytest.approx(expected)
    assert trace.info["turns"] == [*range(8)]


def test_without_the_service_the_same_episode_ends_where_the_context_does(url: str) -> None:
    class Grows(Chatter):
        context = "grow"

    trace, _ = roll(url, Grows())
    assert trace.stop_reason is StopReason.MAX_SEQ_LEN
    assert len(trace.branches) == 1
    assert trace.lineages == []


def test_a_summary_does_not_make_the_first_prompt_too_long(url: str) -> None:
    trace, _ = roll(url, Chatter(), max_prompt_len=20)
    assert trace.error is None
    assert len(trace.branches) > 1


def test_old_results_are_left_out_and_nothing_is_trained_twice(
    url: str, engine: EmbeddedEngine
) -> None:
    environment = Insists()
    task = next(iter(environment.tasks("train")))
    trace, said = roll(url, environment, task, sampling=vf.Sampling(40), size=600)
    assert trace.error is None
    assert_exact(engine, trace, said, 1.0)
    assert [fork.kind for fork in trace.forks] == ["dropped"] * (len(trace.branches) - 1)
    assert len(trace.branches) > 1
    before, after = trace.lineages[:2]
    assert after.parent == 0
    results = [
        each.content for each in after.messages[: after.prompt_messages] if each.role == "tool"
    ]
    assert results[-1].startswith(STORY)
    assert set(results[:-1]) == {LEFT_OUT}
    whole = [each.content for each in before.messages if each.role == "tool"]
    assert all(each.startswith((STORY, "Error")) for each in whole)
    assert set(before.turns).isdisjoint(after.turns)
    assert {event.turn for event in trace.tool_events} <= {*range(len(trace.turns))}


@pytest.mark.parametrize(
    ("context", "words"),
    [
        ("compct", "context = 'compct': write 'grow', 'compact', .* Did you mean 'compact'"),
        (3, "context = 3: write 'grow'"),
    ],
)
def test_a_wrong_context_is_named(context: Any, words: str) -> None:
    environment = Chatter()
    environment.context = context
    with pytest.raises(vf.ConfigError, match=words):
        asyncio.run(vf.rollout(environment, TASK, vf.ScriptedModel(["a"])))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: vf.Compact(at=1.5), "vf.Compact: at = 1.5 must be a share"),
        (lambda: vf.Compact(summary_tokens=0), "summary_tokens = 0 must be"),
        (lambda: vf.Compact(instruction=" "), "instruction is empty"),
        (lambda: vf.DropToolResults(keep=-1), "keep = -1 must not be negative"),
        (lambda: vf.DropToolResults(tokens=0), "vf.DropToolResults: tokens = 0 must be"),
    ],
)
def test_a_wrong_setting_is_named(make: Any, words: str) -> None:
    with pytest.raises(vf.ConfigError, match=re.escape(words).replace(r"\ ", " ")):
        make()


def test_a_context_without_room_for_a_summary_is_named(url: str) -> None:
    class Wide(Chatter):
        context = vf.Compact(summary_tokens=300)

    with pytest.raises(vf.ConfigError, match="no room for an answer of 200 and a summary of 300"):
        roll(url, Wide(), sampling=vf.Sampling(200))


def test_several_roles_and_agents_have_no_such_service() -> None:
    class Roles(vf.MultiAgentEnvironment):
        roles = {"ann": vf.Role()}
        context = "compact"

    async def work(task: vf.Task, endpoint: vf.Endpoint) -> str | None:
        return None

    agent = vf.AgentEnvironment(work, tasks=[{"prompt": "x"}])
    agent.context = "drop_tool_results"
    for environment in (Roles(), agent):
        with pytest.raises(vf.ConfigError, match=r"context = .*leave it out"):
            environment.check_settings()

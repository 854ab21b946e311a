"""An episode whose prompts are handed out: what the cookbook's loop does, without the cookbook."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

import vf
from vf.bridges.tinker_cookbook.played import PlayedEpisode
from vf.inference.model_files import resolve_model
from vf.inference.rendering.renderer import Renderer
from vf.runtime.errors import ConfigError


@pytest.fixture(scope="module")
def renderer() -> Renderer:
    return Renderer.from_pretrained(resolve_model("tiny"))


def _text(reply: Any) -> str:
    """Return a scripted reply as the model writes it."""
    if isinstance(reply, str):
        return reply
    [(name, arguments)] = reply.items()
    call = json.dumps({"name": name, "arguments": arguments})
    return f"<tool_call>\n{call}\n</tool_call>"


def test_turns_and_tool_calls_extend_the_tokens_and_the_reward_is_the_rubrics(
    renderer: Renderer,
) -> None:
    environment: Any = vf.make("calculator")
    task = next(iter(environment.tasks("train")))
    replies = [_text(reply) for reply in environment.oracle(task)]

    async def play() -> vf.Trace:
        episode = PlayedEpisode(environment, task, renderer, max_prompt_len=1000, seed=1)
        prompt = await episode.begin()
        for reply in replies:
            assert prompt is not None
            answer = renderer.tokenizer.encode(reply, add_special_tokens=False)
            answer.append(renderer.stop_token_ids[0])
            following = await episode.answer(answer, cut=False)
            if following is not None:
                assert following[: len(prompt) + len(answer)] == prompt + answer
            prompt = following
        assert prompt is None
        assert episode.trace is not None
        return episode.trace

    trace = asyncio.run(play())
    assert trace.reward == 1.0
    assert len(trace.turns) == len(replies)


def test_an_episode_that_is_given_up_closes_its_environment(renderer: Renderer) -> None:
    closed = []

    class Waits(vf.Environment):
        rubric = vf.Rubric(outcome=lambda trace: 1.0)

        def tasks(self, split: str) -> list[vf.Task]:
            return [vf.Task("one", "Say one.")]

        def close(self) -> None:
            closed.append(self)

    async def give_up() -> None:
        environment = Waits()
        episode = PlayedEpisode(
            environment, environment.tasks("train")[0], renderer, max_prompt_len=500, seed=1
        )
        assert await episode.begin()
        await episode.stop()
        await episode.stop()

    asyncio.run(give_up())
    assert len(closed) == 1


def test_without_the_cookbook_it_says_what_to_install() -> None:
    with pytest.raises(ConfigError, match=r"docs/tinker-cookbook\.md"):
        vf.to_tinker(vf.make("calculator"), "tiny")

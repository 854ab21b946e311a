"""A real model judges, through the real server: it is far too small to keep to the form."""

from __future__ import annotations

import asyncio

import pytest

from tests.inference.tiny_serving import load_model, running_engine, running_server
from tests.rubrics.one_answer import answered
from tests.rubrics.scripted_judge import judge_at
from vf.rubrics.judge import Judge
from vf.runtime.errors import RubricError


@pytest.mark.slow
@pytest.mark.gate
def test_a_model_that_cannot_judge_is_an_error_that_shows_what_it_said() -> None:
    async def run(url: str) -> Judge:
        judge = judge_at(url, retries=1, max_tokens=8)
        judge.model = "tiny"
        with pytest.raises(
            RubricError, match=r"tiny gave no usable verdict in 2 attempts"
        ) as error:
            await judge(answered("4", "4"))
        assert "It begins with" in str(error.value)
        await judge.close()
        return judge

    with running_engine(load_model(), max_seq_len=4096) as engine, running_server(engine) as url:
        judge = asyncio.run(run(url))
    assert judge.usage.requests == 4  # and two about an answer that anyone can judge
    assert judge.usage.prompt_tokens > 0
    assert 0 < judge.usage.completion_tokens <= 32

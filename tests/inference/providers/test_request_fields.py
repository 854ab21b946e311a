"""What an API does not take of a request: learned once, said, or refused."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import vf
from tests.inference.providers.fake import standing
from tests.inference.providers.shapes import Body, Refusal, error_of
from tests.inference.providers.table import PROVIDERS
from vf.inference.model import Conversation, Sampling
from vf.runtime.errors import ModelError

GOOD = 200, PROVIDERS["openai"].answer("Hello!")


def ask(
    refuses: dict[str, str], sampling: Sampling, times: int = 1, **settings: Any
) -> tuple[list[Body], vf.ChatModel]:
    """Ask an API that refuses fields, each with these words; return what it accepted."""
    accepted: list[Body] = []
    requests = 0

    def answer(body: Body) -> Refusal:
        nonlocal requests
        requests += 1
        for name, words in refuses.items():
            if name in body:
                return 400, error_of(words)
        accepted.append(body)
        return GOOD

    async def main(url: str) -> vf.ChatModel:
        model = vf.ChatModel("m", base_url=url, max_retries=0, **settings)
        conversation = Conversation([vf.Message("user", "x")], options=settings.pop("options", {}))
        for _ in range(times):
            await model.respond(conversation, sampling)
        await model.close()
        return model

    with standing(answer) as url:
        model = asyncio.run(main(url))
    assert requests == times + len(model.notes)  # each refusal is met once
    return accepted, model


WORDS = [
    "Unsupported parameter: '{}' is not supported with this model.",
    "{}: Extra inputs are not permitted",
    'Unknown name "{}": Cannot find field.',
    "property '{}' is unsupported",
    "Unrecognized request argument supplied: {}",
    "`{}` is deprecated for this model.",
    "This model does not support the parameter {}",
]


@pytest.mark.parametrize("words", WORDS)
def test_fields_that_change_no_answer_are_left_out_and_it_is_said(words: str) -> None:
    refused = {name: words.format(name) for name in ("seed", "top_p", "temperature")}
    accepted, model = ask(refused, Sampling(64, seed=1), times=3)
    assert [body.keys() & {"seed", "top_p", "temperature"} for body in accepted] == [set()] * 3
    assert sorted(note.split()[6].strip(",") for note in model.notes) == sorted(refused)


@pytest.mark.parametrize("words", WORDS)
def test_max_tokens_has_another_name(words: str) -> None:
    accepted, model = ask({"max_tokens": words.format("max_tokens")}, Sampling(64), times=2)
    assert [body["max_completion_tokens"] for body in accepted] == [64, 64]
    assert len(model.notes) == 1
    assert "max_completion_tokens" in model.notes[0]


@pytest.mark.parametrize(
    ("sampling", "name"),
    [
        (Sampling(temperature=0.5), "temperature"),
        (Sampling(top_p=0.9), "top_p"),
        (Sampling(top_k=5), "top_k"),
        (Sampling(min_p=0.1), "min_p"),
        (Sampling(repetition_penalty=1.1), "repetition_penalty"),
        (Sampling(stop=("x",)), "stop"),
    ],
)
@pytest.mark.parametrize("words", WORDS)
def test_what_changes_the_measurement_is_refused(words: str, sampling: Sampling, name: str) -> None:
    hint = rf"{name} = .*request_fields = \{{ {name} = false \}}"
    with pytest.raises(ModelError, match=hint):
        ask({name: words.format(name)}, sampling)


def test_a_setting_renames_and_leaves_out() -> None:
    refused = {"temperature": "temperature is not supported", "max_tokens": "unknown: max_tokens"}
    fields = {"max_tokens": "max_new_tokens", "temperature": False, "seed": "random_seed"}
    accepted, model = ask(refused, Sampling(64, 0.5, seed=3), request_fields=fields)
    (body,) = accepted
    assert (body["max_new_tokens"], body["random_seed"]) == (64, 3)
    assert not body.keys() & {"max_tokens", "temperature", "seed"}
    assert model.notes == []


def test_too_many_tokens_are_said_with_the_option() -> None:
    with pytest.raises(ModelError, match=r"max_tokens = 4096 was sent: lower it \(--max-tokens\)"):
        ask({"max_tokens": "max_tokens is too large: 4096"}, Sampling(4096))


def test_a_value_out_of_range_is_not_taken_for_a_field_that_is_unknown() -> None:
    with pytest.raises(ModelError, match="must be at most 1") as caught:
        ask({"temperature": "temperature must be at most 1"}, Sampling())
    assert "request_fields" not in str(caught.value)


def test_reasoning_that_an_api_refuses_is_left_out() -> None:
    """Reasoning that came from elsewhere, by a name that this API does not know."""
    words = "messages.1: property 'reasoning_content' is unsupported"
    bodies: list[Body] = []

    def answer(body: Body) -> Refusal:
        bodies.append(body)
        refused = any("reasoning_content" in message for message in body["messages"])
        return (400, error_of(words)) if refused else GOOD

    async def main(url: str) -> list[str]:
        model = vf.ChatModel("m", base_url=url, max_retries=0)
        before = [vf.Message("user", "x"), vf.Message("assistant", "y", reasoning="hm")]
        await model.respond(Conversation([*before, vf.Message("user", "z")]), Sampling())
        await model.close()
        return model.notes

    with standing(answer) as url:
        (note,) = asyncio.run(main(url))
    assert "reasoning" in note
    assert bodies[1]["messages"][1] == {"role": "assistant", "content": "y"}

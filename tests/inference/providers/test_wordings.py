"""Words of providers that none of the recorded shapes has."""

from __future__ import annotations

import pytest

from tests.inference.providers.shapes import Refusal
from tests.inference.providers.table import PROVIDERS
from tests.inference.providers.test_readers import chat, respond
from vf.inference.model import ContextFull


@pytest.mark.parametrize(
    "text",
    [
        "`inputs` tokens + `max_new_tokens` must be <= 8192. Given: 9000 `inputs` tokens",
        "The total number of tokens in the prompt is 9000 which exceeds the limit of 8192",
        "This request would exceed the model's limit of 131072 tokens",
        "Input tokens exceed the configured limit of 272000 tokens",
        "Expected maxLength: 1048576, but got string with length 2000000",
        "Conversation too long",
        "sequence length 9000 is larger than the model's 8192",
    ],
)
def test_other_words_for_a_full_context_are_read(text: str) -> None:
    refusals: list[Refusal] = [(400, {"error": {"message": text}})] * 9
    with pytest.raises(ContextFull):
        respond(chat, *refusals)


@pytest.mark.parametrize(
    "reason", ["malformed_tool_use", "UNEXPECTED_TOOL_CALL", "too_many_tool_calls"]
)
def test_an_unreadable_call_ends_an_answer(reason: str) -> None:
    answer = PROVIDERS["openai"].answer("Hello!", reason=reason)
    assert respond(chat, (200, answer))[0].finish_reason == "stop"

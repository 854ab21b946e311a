"""A judge behind real HTTP that answers what a test tells it to."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

from vf.rubrics.judge import Judge
from vf.testing import Request, Response, chat_completion


def nonce_of(body: dict[str, Any]) -> str:
    """Return the nonce that a request asks for."""
    found = re.search(r"VERDICT (\w+) <criterion>", body["messages"][0]["content"])
    assert found is not None
    return found[1]


def chat(text: str, finish_reason: str = "stop", **message: Any) -> Response:
    """Return a chat completion that cost 100 and 10 tokens."""
    return chat_completion(text, finish_reason, (100, 10), **message)


def saying(*replies: str | Callable[[dict[str, Any]], str]) -> Callable[[Request], Response]:
    """Answer with the replies in turn, the last one for ever; ``NONCE`` becomes the nonce."""
    script = iter(replies)
    last = replies[-1]

    def answer(request: Request) -> Response:
        reply = next(script, last)
        text = reply(request.body) if callable(reply) else reply
        return chat(text.replace("NONCE", nonce_of(request.body)))

    return answer


def verdicts(*choices: str, name: str = "correct") -> Iterable[str]:
    """Return a well-formed reply for each choice."""
    return [f"I looked at it.\nVERDICT NONCE {name}: {choice}" for choice in choices]


def judge_at(base_url: str, **settings: Any) -> Judge:
    """Return a judge that asks a local server, which needs no key."""
    return Judge("judge", **{"base_url": base_url, "api_key_env": None, "timeout": 30.0} | settings)

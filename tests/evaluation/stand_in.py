"""A chat API without a model, in a process of its own::

    python -m tests.evaluation.stand_in '{"delay": 0.02}'

It reverses the text of a `reverse-text` prompt, or gets it wrong, as the request's seed has it:
the same request always gets the same answer. Prints its address, and then every request's seed.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from vf.inference.models.scripted_model import Line
from vf.testing import FakeServer, Request, Response, chat_completion

ROOT = Path(__file__).parents[2]

MODEL = "stand-in"
RIGHT = 0.6  # of the answers
PROMPT_TOKENS = 20


def reversed_or_not(text: str, seed: int) -> str:
    """Return the text backwards, or with its ends swapped back."""
    backwards = text[::-1]
    if random.Random(f"{seed}{text}").random() < RIGHT:
        return backwards
    return backwards[-1] + backwards[1:-1] + backwards[0]


class StandIn:
    """The server.

    Args:
        how: ``delay``: seconds to an answer; ``key``: the one it wants; ``models``: those that it
            knows (it refuses others); ``lists``: those that it lists, if not these; ``fails``:
            words in a prompt that it answers with an error, as long as the file ``fixed`` does not
            exist; ``calls``: answers with a call of ``calculate``, without end; ``context``: how
            many tokens prompt and answer may have, refused as vLLM does, and ``lists_context``:
            whether it lists them; ``uncounted``: answers without ``usage``; ``busy``: the statuses
            of its first answers, whatever is asked.
    """

    def __init__(self, how: dict[str, Any]) -> None:
        self.how = how
        self.models = how.get("models", [MODEL])

    def fixed(self) -> bool:
        return Path(self.how["fixed"]).exists()

    async def answer(self, request: Request) -> Line | Response:
        if request.path not in ("/v1/models", "/v1/chat/completions"):
            return Response(b"404: Not Found", 404)
        body = request.body or {}
        if request.method == "POST":
            print(json.dumps([body.get("seed"), body["messages"][-1]["content"]]), flush=True)
        if self.how.get("busy"):
            status = self.how["busy"].pop(0)
            return Response("come back later", status, {"Retry-After": "0.01"})
        key = self.how.get("key")
        if key is not None and request.headers.get("Authorization") != f"Bearer {key}":
            return Response("no such key", 401)
        return await self.chat(body) if request.method == "POST" else self.list_models()

    def list_models(self) -> Response:
        card = {"max_model_len": self.how["context"]} if self.how.get("lists_context") else {}
        names = self.how.get("lists", self.models)
        return Response({"object": "list", "data": [card | {"id": name} for name in names]})

    async def chat(self, body: dict[str, Any]) -> Line | Response:
        context, most = self.how.get("context"), body.get("max_tokens", 1)
        if context is not None and (room := context - PROMPT_TOKENS) < most:
            return Response(
                f"'max_tokens' or 'max_completion_tokens' is too large: {most}. This model's "
                f"maximum context length is {context} tokens and your request has "
                f"{PROMPT_TOKENS} input tokens ({most} > {room}).",
                400,
            )
        if body["model"] not in self.models:
            return Response(f"the model {body['model']!r} does not exist", 404)
        await asyncio.sleep(self.how.get("delay", 0.0))
        prompt = body["messages"][-1]["content"]
        for word in self.how.get("fails", ()):
            if word in prompt and not self.fixed():
                return Response(f"{word} cannot be answered", 400)
        if self.how.get("calls"):
            return {"calculate": {"op": "+", "a": 1, "b": 2}}
        text = reversed_or_not(prompt.rpartition(" ")[2], body.get("seed") or 0)
        if not self.how.get("uncounted"):
            return text
        answer = chat_completion(text)
        del answer.body["usage"]
        return answer


@contextmanager
def standing(**how: Any) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Run it in a process; yields its base URL, and the process."""
    command = [sys.executable, "-m", "tests.evaluation.stand_in", json.dumps(how)]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": str(ROOT)}
    )
    try:
        assert process.stdout is not None
        yield f"{process.stdout.readline().strip()}/v1", process
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def main() -> None:
    with FakeServer(StandIn(json.loads(sys.argv[1])).answer, models=None) as server:
        print(server.url, flush=True)
        threading.Event().wait()


if __name__ == "__main__":
    main()

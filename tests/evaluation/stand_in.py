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
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from aiohttp import web

from tests.inference.local_server import chat_completion, listening, tool_call

ROOT = Path(__file__).parents[2]

MODEL = "stand-in"
RIGHT = 0.6  # of the answers
PROMPT_TOKENS = 20


def answer(text: str, seed: int) -> str:
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
            whether it lists them; ``busy``: the statuses of its first answers, whatever is asked.
    """

    def __init__(self, how: dict[str, Any]) -> None:
        self.how = how
        self.models = how.get("models", [MODEL])

    def problem(self, status: int, message: str) -> web.Response:
        return web.json_response({"error": {"message": message}}, status=status)

    def fixed(self) -> bool:
        return Path(self.how["fixed"]).exists()

    def busy(self) -> web.Response | None:
        if not self.how.get("busy"):
            return None
        refusal = self.problem(self.how["busy"].pop(0), "come back later")
        refusal.headers["Retry-After"] = "0.01"
        return refusal

    def unauthorized(self, request: web.Request) -> bool:
        key = self.how.get("key")
        return key is not None and request.headers.get("Authorization") != f"Bearer {key}"

    async def list_models(self, request: web.Request) -> web.Response:
        if busy := self.busy():
            return busy
        if self.unauthorized(request):
            return self.problem(401, "no such key")
        names = self.how.get("lists", self.models)
        card: dict[str, Any] = {"object": "model"}
        if self.how.get("lists_context"):
            card["max_model_len"] = self.how["context"]
        return web.json_response(
            {"object": "list", "data": [card | {"id": name} for name in names]}
        )

    async def chat(self, request: web.Request) -> web.Response:
        try:
            body = await request.json()
        except ConnectionResetError:  # its sender was killed meanwhile
            return self.problem(400, "gone")
        print(json.dumps([body.get("seed"), body["messages"][-1]["content"]]), flush=True)
        if busy := self.busy():
            return busy
        if self.unauthorized(request):
            return self.problem(401, "no such key")
        context, most = self.how.get("context"), body.get("max_tokens", 1)
        if context is not None and (room := context - PROMPT_TOKENS) < most:
            return self.problem(
                400,
                f"'max_tokens' or 'max_completion_tokens' is too large: {most}. This model's "
                f"maximum context length is {context} tokens and your request has "
                f"{PROMPT_TOKENS} input tokens ({most} > {room}).",
            )
        if body["model"] not in self.models:
            return self.problem(404, f"the model {body['model']!r} does not exist")
        await asyncio.sleep(self.how.get("delay", 0.0))
        prompt = body["messages"][-1]["content"]
        for word in self.how.get("fails", ()):
            if word in prompt and not self.fixed():
                return self.problem(400, f"{word} cannot be answered")
        content = answer(prompt.rpartition(" ")[2], body.get("seed") or 0)
        if self.how.get("calls"):
            endless = tool_call("calculate", '{"op": "+", "a": 1, "b": 2}')
            return web.json_response(chat_completion(None, tool_calls=[endless]))
        return web.json_response(chat_completion(content))


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
    stand_in = StandIn(json.loads(sys.argv[1]))

    async def run() -> None:
        app = web.Application()
        app.router.add_get("/v1/models", stand_in.list_models)
        app.router.add_post("/v1/chat/completions", stand_in.chat)
        async with listening(app) as address:
            print(address, flush=True)
            await asyncio.Event().wait()

    asyncio.run(run())


if __name__ == "__main__":
    main()

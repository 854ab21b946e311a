"""Both ends of many requests at once, each for a process of its own.

``many_requests.py ask URL COUNT`` prints, as JSON, how they ended; ``many_requests.py serve``
prints the URL of the embedded server's HTTP side, with an app that has no model.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from collections import Counter

SECONDS = 0.1  # for one answer


async def ask(url: str, count: int) -> None:
    from vf.inference.model import Sampling
    from vf.inference.token_client import TokenClient
    from vf.runtime.errors import ModelError

    client = TokenClient.to(url, "m")
    ends: Counter[str] = Counter()

    async def one(seed: int) -> None:
        try:
            await client.complete([1], Sampling(max_tokens=8, seed=seed), [0])
            ends["answered"] += 1
        except ModelError as error:
            ends[str(error)] += 1

    await asyncio.gather(*(one(seed) for seed in range(count)))
    await client.close()
    print(json.dumps(ends))


def serve() -> None:
    sys.modules["uvloop"] = None  # type: ignore[assignment]  # not everyone has it
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import JSONResponse
    from starlette.routing import Route

    from vf.inference.embedded.server_thread import ServerThread

    async def answer(request: Request) -> JSONResponse:
        await asyncio.sleep(SECONDS)
        choice = {"token_ids": [5], "logprobs": {"token_logprobs": [-0.5]}, "finish_reason": "stop"}
        return JSONResponse({"choices": [choice]})

    server = ServerThread(Starlette(routes=[Route("/v1/completions", answer, methods=["POST"])]))
    server.start()
    print(server.base_url, flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve()
    else:
        asyncio.run(ask(sys.argv[2], int(sys.argv[3])))

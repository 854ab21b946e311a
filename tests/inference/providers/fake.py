"""A provider behind real HTTP that works out the tasks of `calculator`, in its own words."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.inference.providers.shapes import Body, Provider, Refusal
from vf.environments.bundled.calculator import Calculator
from vf.traces.task import Task


class Fake:
    """What a provider answers to a request.

    Args:
        provider: Its shapes.
        first: What it answers before it answers what it was asked.
        owner: Who its list of models says has made them.
        turns: After how many calls in one conversation its context is full; None for never.

    Attributes:
        bodies: The requests.
        refused: Its refusals.
        keys: The headers that requests came with.
        url: Up to and including ``/v1``.
    """

    def __init__(
        self,
        provider: Provider,
        first: Iterable[Refusal] = (),
        turns: int | None = None,
        owner: str = "somebody",
    ) -> None:
        self.provider = provider
        self.first = [*first]
        self.turns = turns
        self.owner = owner
        self.bodies: list[Body] = []
        self.refused: list[Refusal] = []
        self.url = ""

    def answer(self, body: Body) -> Refusal:
        """Return a status and a body."""
        self.bodies.append(body)
        refusal = self.provider.refuses(body)
        if refusal is not None:
            self.refused.append(refusal)
            return refusal
        if self.first:
            return self.first.pop(0)
        messages = body["messages"]
        prompt = next(str(each["content"]) for each in messages if each["role"] == "user")
        found = re.search(r"Compute (.*)\.$", prompt)
        if found is None:
            return 200, self.provider.answer("Hello!")
        task = Task(found[1], prompt)
        calls = Calculator().plan(task)
        done = sum(each["role"] == "tool" for each in messages)
        if self.turns is not None and done >= self.turns:
            return self.provider.full[0]
        if done < len(calls):
            said = self.provider.answer("", json.dumps(calls[done]), number=len(self.bodies))
            return 200, said
        return 200, self.provider.answer(f"Answer: {messages[-1]['content']}")


@contextmanager
def standing(fake: Fake | Callable[[Body], Refusal]) -> Iterator[str]:
    """Serve it from a thread; yields its URL, up to and including ``/v1``."""
    answer = fake.answer if isinstance(fake, Fake) else fake
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            owner = fake.owner if isinstance(fake, Fake) else "somebody"
            card = {"id": "m", "object": "model", "owned_by": owner}
            self.send(200, {"object": "list", "data": [card]})

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with lock:
                status, said = answer(body)
            self.send(status, said)

        def send(self, status: int, said: Any) -> None:
            text = said if isinstance(said, str) else json.dumps(said)
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text.encode())))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, format: str, *args: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()

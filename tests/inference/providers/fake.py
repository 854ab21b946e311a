"""A provider behind real HTTP that works out the tasks of `calculator`, in its own words."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from tests.inference.providers.shapes import Body, Provider, Refusal
from vf.environments.bundled.calculator import Calculator
from vf.testing import FakeServer, Request, Response
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
    owner = fake.owner if isinstance(fake, Fake) else "somebody"

    def respond(request: Request) -> Response:
        status, said = answer(request.body)
        return Response(said.encode() if isinstance(said, str) else said, status)

    with FakeServer(respond, models=[{"id": "m", "owned_by": owner}]) as server:
        yield server.base_url

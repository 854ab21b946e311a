"""A server of the Tinker API in this process, and a client that speaks plain JSON to it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from tests.inference.tiny_serving import load_model
from vf.inference.embedded.embedded_engine import EmbeddedEngine
from vf.inference.embedded.server_thread import ServerThread
from vf.inference.model_files import resolve_model
from vf.inference.rendering.renderer import Renderer
from vf.trainer.tinker_api.app import build_app
from vf.trainer.tinker_api.checkpoints import Checkpoints
from vf.trainer.tinker_api.registry import Registry

LENGTH = 256


@dataclass
class ApiClient:
    """Asks a server, and waits for the results of what it begins.

    Attributes:
        registry: The server's.
        http: The connection.
        numbers: The next sequence number of each model.
    """

    registry: Registry
    http: httpx.Client
    numbers: dict[str, int] = field(default_factory=dict)

    def post(self, path: str, body: dict[str, Any], status: int = 200) -> Any:
        """Post, and check the status."""
        answer = self.http.post(f"/api/v1/{path}", json=body)
        assert answer.status_code == status, answer.text
        return answer.json()

    def refused(self, path: str, body: dict[str, Any], status: int = 400) -> str:
        """Return the message with which a request is refused."""
        message: str = self.post(path, body, status)["error"]["message"]
        return message

    def result(self, request_id: str) -> Any:
        """Return the result of a request."""
        while True:
            answer = self.http.post("/api/v1/retrieve_future", json={"request_id": request_id})
            if answer.status_code != 408:
                assert answer.status_code == 200, answer.text
                return answer.json()

    def done(self, path: str, body: dict[str, Any]) -> Any:
        """Post, and return the result."""
        return self.result(self.post(path, body)["request_id"])

    def session(self) -> str:
        """Begin a session."""
        session_id: str = self.post("create_session", {})["session_id"]
        return session_id

    def model(self, session: str | None = None, seq: int = 0, **lora: Any) -> str:
        """Create a model."""
        body = {
            "session_id": session or self.session(),
            "model_seq_id": seq,
            "base_model": "tiny",
            "lora_config": {"rank": 4, "seed": 1} | lora,
        }
        model_id: str = self.done("create_model", body)["model_id"]
        return model_id

    def begin(self, path: str, model: str, /, **body: Any) -> str:
        """Begin the next request of a model; return its id."""
        number = self.numbers.get(model, 0) + 1
        self.numbers[model] = number
        answer = self.post(path, {"model_id": model, "seq_id": number} | body)
        request_id: str = answer["request_id"]
        return request_id

    def pass_(self, model: str, data: list[Any], loss: str = "cross_entropy", **more: Any) -> Any:
        """Run forward and backward."""
        body = {"data": data, "loss_fn": loss} | more
        return self.result(self.begin("forward_backward", model, forward_backward_input=body))

    def forward(self, model: str, data: list[Any]) -> list[list[float]]:
        """Return log-probabilities."""
        body = {"data": data, "loss_fn": "cross_entropy"}
        result = self.result(self.begin("forward", model, forward_input=body))
        return [one["logprobs"]["data"] for one in result["loss_fn_outputs"]]

    def step(self, model: str, rate: float = 0.01, **adam: Any) -> Any:
        """Take an optimizer step."""
        params = {"learning_rate": rate} | adam
        return self.result(self.begin("optim_step", model, adam_params=params))


def tensor(values: Sequence[float], dtype: str = "float32") -> dict[str, Any]:
    """Return numbers as the API writes them."""
    return {"data": list(values), "dtype": dtype, "shape": [len(values)]}


def datum(ids: Sequence[int], **inputs: Sequence[float]) -> dict[str, Any]:
    """Return a sequence in which each token is to be predicted from those before."""
    given = {name: tensor(values) for name, values in inputs.items()}
    targets = {"target_tokens": tensor(ids[1:], "int64")}
    return {"model_input": prompt(ids[:-1]), "loss_fn_inputs": targets | given}


def prompt(ids: Sequence[int]) -> dict[str, Any]:
    """Return token ids as a model's input."""
    return {"chunks": [{"type": "encoded_text", "tokens": list(ids)}]}


@contextmanager
def running_api(
    folder: Path, key: str | None = None, *, name: str = "tiny", **engine: Any
) -> Iterator[ApiClient]:
    """Serve the shipped model by a name, and give a client."""
    renderer = Renderer.from_pretrained(resolve_model("tiny"))
    served = EmbeddedEngine(load_model(), **{"max_seq_len": LENGTH, "max_requests": 8} | engine)
    served.start()
    try:
        registry = Registry((name, resolve_model("tiny")), served, Checkpoints(folder))
        server = ServerThread(build_app(registry, renderer, key, "127.0.0.1", _nothing))
        server.start()
        headers = {} if key is None else {"X-API-Key": key}
        base = server.base_url.removesuffix("/v1")
        try:
            with httpx.Client(base_url=base, headers=headers, timeout=60) as http:
                yield ApiClient(registry, http)
        finally:
            server.stop()
            registry.close()
    finally:
        served.stop()


async def _nothing(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 404, "headers": []})
    await send({"type": "http.response.body", "body": b""})

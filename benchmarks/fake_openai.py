"""An OpenAI-compatible server without a model: answers of one tool call each, at once."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

import vf.inference

TINY = Path(vf.inference.__file__).parent / "tiny" / "tokenizer.json"
MODEL = "fake"
ANSWERS = 256  # different ones, in turn


def serve(pipe: Connection, calls: Synchronized[int], received: Synchronized[int]) -> None:
    """Answer every POST with a completion, as fast as Python can; a GET with the list of models.

    The path says in which form: ``/chat/completions``, ``/completions`` with token ids, or
    ``/inference/v1/generate``.

    Args:
        pipe: Where to send the port that it listens on.
        calls: A shared number: how many requests came.
        received: A shared number: how many bytes their bodies had.
    """
    forms = {
        b"/chat/completions": itertools.cycle(chat_answers()),
        b"/completions": itertools.cycle(http_answers(as_completion)),
        b"/generate": itertools.cycle(http_answers(as_generated)),
    }
    models = http_answer({"object": "list", "data": [{"id": MODEL, "object": "model"}]})

    class Instant(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            assert isinstance(transport, asyncio.Transport)
            self.transport, self.buffer, self.path = transport, b"", b""

        def data_received(self, data: bytes) -> None:
            self.buffer += data
            while (end := self.buffer.find(b"\r\n\r\n")) >= 0:
                if self.buffer.startswith(b"GET "):
                    self.buffer = self.buffer[end + 4 :]
                    self.transport.write(models)
                    continue
                self.path = self.buffer[: self.buffer.index(b" HTTP")]
                lowered = self.buffer[:end].lower()
                start = lowered.index(b"content-length:") + len(b"content-length:")
                length = int(lowered[start:].split(b"\r\n")[0])
                if len(self.buffer) < end + 4 + length:
                    return
                self.buffer = self.buffer[end + 4 + length :]
                calls.value += 1
                received.value += length
                path = self.path
                self.transport.write(
                    next(next(forms[form] for form in forms if path.endswith(form)))
                )

    async def run() -> None:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(Instant, "127.0.0.1", 0, backlog=1024)
        pipe.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(run())


def http_answers(form: Callable[[int, str, list[int]], dict[str, Any]]) -> list[bytes]:
    tokenizer = Tokenizer.from_file(str(TINY))
    answers = []
    for number in range(ANSWERS):
        arguments = call_arguments(number)
        call = f'<tool_call>{{"name": "calculate", "arguments": {arguments}}}</tool_call>'
        text = call + "<|im_end|>"
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        answers.append(http_answer(form(number, text, ids)))
    return answers


def as_completion(number: int, text: str, ids: list[int]) -> dict[str, Any]:
    logprobs = {
        "token_logprobs": [logprob(place) for place in range(len(ids))],
        "tokens": [f"token_id:{index}" for index in ids],
        "top_logprobs": None,
        "text_offset": list(range(len(ids))),
    }
    choice = {
        "index": 0,
        "text": text,
        "token_ids": ids,
        "finish_reason": "stop",
        "logprobs": logprobs,
    }
    usage = {"prompt_tokens": 1, "completion_tokens": len(ids), "total_tokens": 1 + len(ids)}
    answer = {"id": f"cmpl-{number}", "object": "text_completion", "created": 0}
    return {**answer, "model": MODEL, "choices": [choice], "usage": usage}


def as_generated(number: int, text: str, ids: list[int]) -> dict[str, Any]:
    content = [
        {"token": f"token_id:{index}", "logprob": logprob(place), "top_logprobs": []}
        for place, index in enumerate(ids)
    ]
    choice = {
        "index": 0,
        "token_ids": ids,
        "finish_reason": "stop",
        "logprobs": {"content": content},
    }
    return {"request_id": f"gen-{number}", "choices": [choice]}


def logprob(place: int) -> float:
    return -0.1234567 - place / 7


def chat_answers() -> list[bytes]:
    answers = []
    for number in range(ANSWERS):
        function = {"name": "calculate", "arguments": call_arguments(number)}
        call = {"id": f"call-{number}", "type": "function", "function": function}
        message = {"role": "assistant", "content": None, "tool_calls": [call]}
        choice = {"index": 0, "finish_reason": "tool_calls", "message": message}
        usage = {"prompt_tokens": 100, "completion_tokens": 25, "total_tokens": 125}
        answer = {"id": f"chat-{number}", "object": "chat.completion", "created": 0}
        answers.append(http_answer({**answer, "model": MODEL, "choices": [choice], "usage": usage}))
    return answers


def call_arguments(number: int) -> str:
    return json.dumps({"op": "+-*"[number % 3], "a": number % 100, "b": number // 3})


def http_answer(content: dict[str, Any]) -> bytes:
    body = json.dumps(content)
    head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: "
    return f"{head}{len(body)}\r\n\r\n{body}".encode()

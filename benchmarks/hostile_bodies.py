"""Requests that no honest client sends: `hostile_requests.py` sends 500 of each kind at once."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

# What a client does when its bytes are sent: wait for the answer, close the connection at once,
# keep it open and never finish the request, or send more of the body for as long as it is read.
Then = Literal["wait", "leave", "hold", "continue"]


@dataclass(frozen=True, slots=True)
class Door:
    """Where requests go.

    Attributes:
        host: The server's address.
        port: Its port.
        path: The path of the OpenAI-compatible API, as ``/v1``.
        key: The API key; empty for none.
        model: The model's name.
        most: Bytes that a body may have there.
        pid: The process that serves it.
    """

    host: str
    port: int
    path: str
    key: str
    model: str
    most: int
    pid: int

    def request(self, body: bytes, **headers: str) -> bytes:
        """Return a request of this body; an empty header is left out."""
        named = {
            "Host": f"{self.host}:{self.port}",
            "Authorization": f"Bearer {self.key}",
            "Content-Type": "application/json",
            "Content-Length": str(len(body)),
            **{name.replace("_", "-"): value for name, value in headers.items()},
        }
        head = "".join(f"{name}: {value}\r\n" for name, value in named.items() if value)
        return f"POST {self.path}/chat/completions HTTP/1.1\r\n{head}\r\n".encode() + body

    def ask(self, content: object, **fields: object) -> bytes:
        """Return a request with one message of the user's, and other fields."""
        body = {
            "model": self.model,
            "max_tokens": 1,
            "messages": [{"role": "user", "content": content}],
        }
        return self.request(json.dumps(body | fields).encode())


PART = {"type": "text", "text": "a"}
USER = {"role": "user", "content": "a"}


def _room(door: Door) -> int:
    """Return about how many bytes of text fit into a body."""
    return door.most - 1000


def _raw(door: Door, before: bytes, filling: bytes, after: bytes) -> bytes:
    count = (_room(door) - len(before) - len(after)) // len(filling)
    return door.request(before + filling * count + after)


def _nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


def _tool(schema: dict[str, Any], name: str = "look") -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": schema}}


KINDS: dict[str, tuple[Then, Callable[[Door], bytes]]] = {
    "nothing hostile, for comparison": ("wait", lambda door: door.ask("Tea?")),
    "a body announced as 1 GB": (
        "wait",
        lambda door: door.request(b" " * 2**16, Content_Length=str(10**9)),
    ),
    "an endless body": (
        "continue",
        lambda door: door.request(b"", Content_Length="", Transfer_Encoding="chunked"),
    ),
    "a body that never comes": ("hold", lambda door: door.request(b"{", Content_Length="1000")),
    "a connection without a request": ("hold", lambda door: b""),
    "no HTTP": ("wait", lambda door: b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 100),
    "1,000 headers": (
        "wait",
        lambda door: door.request(b"{}", **{f"x_{number}": "a" * 60 for number in range(1000)}),
    ),
    "the wrong key, and a web page's Origin": (
        "wait",
        lambda door: door.request(b"{}", Authorization="Bearer no", Origin="https://evil.example"),
    ),
    "brackets, as many as fit": ("wait", lambda door: _raw(door, b'{"messages":', b"[", b"")),
    "a number of as many digits as fit": (
        "wait",
        lambda door: _raw(door, b'{"seed":', b"9", b"}"),
    ),
    "bytes that are not UTF-8": ("wait", lambda door: _raw(door, b'{"model":"', b"\xff", b'"}')),
    "half characters, escaped": (
        "wait",
        lambda door: _raw(door, b'{"messages":[{"role":"user","content":"', b"\\ud83d", b'"}]}'),
    ),
    "50,000 unknown fields": (
        "wait",
        lambda door: door.ask("a", **{f"field{number}": 1 for number in range(50_000)}),
    ),
    "9,999 messages": ("wait", lambda door: door.ask("a", messages=[USER] * 9_999)),
    "messages of 1,000 parts": (
        "wait",
        lambda door: door.ask(
            "a", messages=[{"role": "user", "content": [PART] * 1000}] * (_room(door) // 40_000)
        ),
    ),
    "512 tools": (
        "wait",
        lambda door: door.ask("a", tools=[_tool(_nested(1), f"t{n}") for n in range(512)]),
    ),
    "a tool's schema 200 levels deep": (
        "wait",
        lambda door: door.ask("a", tools=[_tool(_nested(200))]),
    ),
    "a tool call whose arguments fill the body": (
        "wait",
        lambda door: door.ask(
            "a",
            messages=[
                USER,
                {
                    "role": "assistant",
                    "tool_calls": [
                        {
                            "id": "c",
                            "type": "function",
                            "function": {"name": "look", "arguments": "[" * (_room(door) // 2)},
                        }
                    ],
                },
            ],
        ),
    ),
    "words that fill the body": ("wait", lambda door: door.ask("tea and " * (_room(door) // 8))),
    "one word that fills the body": ("wait", lambda door: door.ask("a" * _room(door))),
    "accents that fill the body": (
        "wait",
        lambda door: _raw(
            door,
            b'{"model":"%s","messages":[{"role":"user","content":"a' % door.model.encode(),
            "\u0301".encode(),
            b'"}]}',
        ),
    ),
    "16 stops of 50,000 characters": (
        "wait",
        lambda door: door.ask("a", stop=["ab" * 25_000] * 16),
    ),
    "the words of a template, 10,000 times": (
        "wait",
        lambda door: door.ask("<|im_end|><|im_start|>{{ x }}{% for %}" * 10_000),
    ),
    "long answers to nobody": (
        "leave",
        lambda door: door.ask("Count to a thousand.", max_tokens=400, stream=True),
    ),
}

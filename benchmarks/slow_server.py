"""A process that looks like a vLLM server from outside, and takes time instead of computing.

It answers with tokens of the tiny model's tokenizer: a tool call in each turn of a conversation,
and an answer in the last. A request waits for one of ``--max-num-seqs`` slots, and then for about
``--answer-seconds``, as on a GPU whose batch is full. Nothing else takes time here, so that eight
of them fit beside what is measured on two cores. Log-probabilities are made up.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
from collections import deque

from fake_openai import TINY, call_arguments
from tokenizers import Tokenizer

ANSWERS = 64  # different ones of each kind, in turn


def written(tokenizer: Tokenizer, text: str) -> bytes:
    """Return the HTTP answer that holds a completion."""
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    logprobs = {"token_logprobs": [-0.5] * len(ids)}
    choice = {"index": 0, "token_ids": ids, "logprobs": logprobs, "finish_reason": "stop"}
    return framed(json.dumps({"object": "text_completion", "choices": [choice]}))


def framed(text: str, status: str = "200 OK") -> bytes:
    """Return an HTTP answer."""
    body = text.encode()
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


class Model:
    """What all connections share: the slots, the answers and the adapters' names.

    Args:
        args: The flags.
    """

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        tokenizer = Tokenizer.from_file(str(TINY))
        [self.header] = tokenizer.encode("assistant", add_special_tokens=False).ids
        call = '<tool_call>{{"name": "calculate", "arguments": {}}}</tool_call><|im_end|>'
        numbers = range(ANSWERS)
        self.calls = [written(tokenizer, call.format(call_arguments(n))) for n in numbers]
        self.ends = [written(tokenizer, f"Answer: {n}<|im_end|>") for n in numbers]
        self.names = [args.served_model_name or args.model]
        self.busy = 0
        self.answered = 0
        self.waiting: deque[Connection] = deque()
        self._random = random.Random(args.port)

    def ask(self, connection: Connection) -> None:
        """Give a connection's request a slot as soon as there is one."""
        if self.busy == self.args.max_num_seqs:
            self.waiting.append(connection)
            return
        self.busy += 1
        seconds = self.args.answer_seconds * self._random.uniform(0.5, 1.5)
        asyncio.get_running_loop().call_later(seconds, self._finish, connection)

    def _finish(self, connection: Connection) -> None:
        self.busy -= 1
        self.answered += 1
        turn = connection.prompt.count(self.header) - 1
        answers = self.ends if turn >= self.args.turns - 1 else self.calls
        connection.send(answers[self.answered % ANSWERS])
        while self.waiting and self.busy < self.args.max_num_seqs:
            waiting = self.waiting.popleft()
            if not waiting.transport.is_closing():
                self.ask(waiting)

    def control(self, path: str, body: bytes) -> bytes:
        """Answer what is no completion."""
        match path:
            case "/v1/models":
                length = self.args.max_model_len
                cards = [{"id": name, "max_model_len": length} for name in self.names]
                return framed(json.dumps({"data": cards}))
            case "/metrics":
                return framed(self._metrics())
            case "/v1/load_lora_adapter":
                self.names.append(json.loads(body)["lora_name"])
            case "/v1/unload_lora_adapter":
                self.names.remove(json.loads(body)["lora_name"])
            case "/health":
                pass
            case _:
                return framed('{"error": {"message": "Not Found"}}', "404 Not Found")
        return framed("{}")

    def _metrics(self) -> str:
        values = {
            "num_requests_running": self.busy,
            "num_requests_waiting": len(self.waiting),
            "kv_cache_usage_perc": 0.5 * self.busy / self.args.max_num_seqs,
            "num_preemptions_total": 0,
            "generation_tokens_total": self.answered,
        }
        label = f'{{engine="0",model_name="{self.names[0]}"}}'
        return "".join(f"vllm:{name}{label} {float(value)}\n" for name, value in values.items())


class Connection(asyncio.Protocol):
    """One connection; a client sends its next request when it has its answer.

    Args:
        model: What answers.
    """

    transport: asyncio.Transport

    def __init__(self, model: Model) -> None:
        self.model = model
        self.prompt: list[int] = []
        self._buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        end = self._buffer.find(b"\r\n\r\n") + 4
        if end < 4:
            return
        head = self._buffer[:end].lower()
        start = head.find(b"content-length:")
        length = int(head[start:].split(b"\r\n")[0].split(b":")[1]) if start >= 0 else 0
        if len(self._buffer) < end + length:
            return
        body, path = self._buffer[end : end + length], head.split(b" ")[1].decode().split("?")[0]
        self._buffer = b""
        if path == "/v1/completions":
            self.prompt = json.loads(body)["prompt"]
            self.model.ask(self)
        else:
            self.send(self.model.control(path, body))

    def send(self, answer: bytes) -> None:
        if not self.transport.is_closing():
            self.transport.write(answer)


def parse() -> argparse.Namespace:
    """Read the flags that matter here; others of vLLM's are ignored."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("--model", default="tiny")
    add("--served-model-name")
    add("--host", default="127.0.0.1")
    add("--port", type=int, default=8000)
    add("--max-model-len", type=int, default=1024)
    add("--max-num-seqs", type=int, default=64, help="requests answered at once")
    add("--answer-seconds", type=float, default=1.0, help="of one answer, on average")
    add("--turns", type=int, default=4, help="of a conversation")
    return parser.parse_known_args()[0]


async def serve(args: argparse.Namespace) -> None:
    """Serve until ended."""
    model = Model(args)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Connection(model), args.host, args.port, backlog=4096)
    await server.serve_forever()


def main() -> None:
    """Serve until ended."""
    from vf.runtime.open_files import raise_limit

    raise_limit()
    asyncio.run(serve(parse()))


if __name__ == "__main__":
    main()

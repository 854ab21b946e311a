"""A process that looks like a vLLM server from outside: its flags, its paths, its errors.

Its "weights" are a number, read from ``number.txt`` in the folder of an adapter or a model, or 0
if there is none. Every token that it samples is that number, so an answer tells which weights it
came from. Its controls work only where the real server's would: with the right flag and
environment. Standard library only. Two environment variables:

``STAND_IN_JOURNAL`` names the file to which every start and every request is written as JSON;
``{port}`` in it is the server's port.
``STAND_IN`` is a JSON table of ways to misbehave, all off by default; see ``WAYS``.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

WAYS = {
    "last_words": "",  # printed at its start, of which it then dies
    "last_life": 1,  # the first of its lives that begins like that
    "well_again": 1000,  # the first life after these that begins well
    "exit_code": 1,  # with which it dies of that
    "starting": 0.0,  # seconds until it listens
    "unhealthy": False,
    "ignore_sigterm": False,
    "grandchild": False,  # start a process that sleeps and ignores SIGTERM
    "models": None,  # what /v1/models answers
    "api_key": None,
    "max_model_len": None,
    "max_lora_rank": None,
    "shift_tokens": 0,  # by which its tokenizer differs
    "fail": {},  # path: message of a 500
    "refusing": "",  # file, its name with {port}, while which is there its first life fails
    "hide": [],  # paths that are not found
    "die_at": {},  # path: the last of its lives in which a request to it is fatal
    "dying": 0.0,  # seconds that takes; meanwhile it answers with errors
    "token_seconds": 0.0,  # for each token
    "cache": 0,  # requests that have room in its cache; with more, some are preempted
}
HOW = WAYS | json.loads(os.environ.get("STAND_IN", "{}"))
PORT = sys.argv[sys.argv.index("--port") + 1] if "--port" in sys.argv else ""
JOURNAL = Path(os.environ.get("STAND_IN_JOURNAL", os.devnull).replace("{port}", PORT))


class Failure(Exception):
    """An answer that is not 200."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def note(**entry: Any) -> None:
    """Write a line to the journal."""
    with JOURNAL.open("a") as file:
        file.write(json.dumps(entry) + "\n")


def parse() -> argparse.Namespace:
    """Read those of vLLM's flags that the tests use."""
    parser = argparse.ArgumentParser()
    toggle = argparse.BooleanOptionalAction
    texts = ("model", "tokenizer", "served-model-name", "host", "logprobs-mode", "dtype")
    for name in (*texts, "generation-config"):
        parser.add_argument(f"--{name}")
    parser.add_argument("--weight-transfer-config", type=json.loads)
    for name in ("data-parallel-size", "api-server-count"):
        parser.add_argument(f"--{name}", type=int)
    for name in ("port", "max-model-len", "max-loras", "max-cpu-loras"):
        parser.add_argument(f"--{name}", type=int)
    parser.add_argument("--max-lora-rank", type=int, choices=(8, 16, 32, 64, 128, 256, 320, 512))
    for name in ("enforce-eager", "enable-chunked-prefill", "enable-prefix-caching"):
        parser.add_argument(f"--{name}", action=toggle)
    for name in ("enable-lora", "enable-scale-out", "enable-sleep-mode"):
        parser.add_argument(f"--{name}", action=toggle, default=False)
    parser.add_argument("--gpu-memory-utilization", type=float)
    return parser.parse_args()


def number_in(folder: Path) -> int:
    """Return the number in the folder of an adapter or a model."""
    path = folder / "number.txt"
    return int(path.read_text()) if path.is_file() else 0


class Served:
    """What the server holds: a model, its adapters, and whether it runs."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.name = args.served_model_name or args.model
        self.number = number_in(Path(args.model or ""))
        self.version = "none"
        self.adapters: dict[str, int] = {}
        self.running = threading.Event()
        self.running.set()
        self.draining = False
        self.sampling = 0
        self.preemptions = 0
        self.step = threading.Lock()
        self.awake = True

    def number_of(self, model: str) -> int:
        """Return the number that a model samples now."""
        if not self.awake:
            raise Failure(500, "the engine is asleep")
        if model == self.name:
            return self.number
        if model not in self.adapters:
            raise Failure(404, f"The model `{model}` does not exist.")
        return self.adapters[model]

    def sample(self, model: str, count: int) -> tuple[list[int], list[dict[str, Any]]]:
        """Return tokens, and the spans of them that one version sampled."""
        with self.step:
            if self.draining:  # as vLLM 0.33 does
                raise Failure(503, "Generation is paused. Please retry after it resumes.")
            self.sampling += 1
        try:
            return self._sample(model, count)
        finally:
            with self.step:
                self.sampling -= 1

    def pause(self, mode: str) -> None:
        """Let requests under way pause, or end."""
        with self.step:
            self.draining = mode == "wait"
            if mode == "keep":
                self.running.clear()
        while self.draining and self.sampling:
            time.sleep(0.01)

    def resume(self) -> None:
        """Let requests run again."""
        self.draining = False
        self.running.set()

    def _sample(self, model: str, count: int) -> tuple[list[int], list[dict[str, Any]]]:
        tokens: list[int] = []
        spans: list[dict[str, Any]] = []
        while (place := len(tokens)) < count:
            time.sleep(HOW["token_seconds"])
            self.running.wait()
            with self.step:
                if not self.running.is_set():
                    continue
                tokens.append(self.number_of(model))
                if not place:
                    note(sampling=model)
                if not spans or spans[-1]["version"] != self.version:
                    spans.append({"version": self.version, "start": place, "end": place})
                spans[-1]["end"] = place + 1
        return tokens, spans

    def metrics(self) -> str:
        """Return how full the cache is, in which so many requests as ``cache`` says have room."""
        room = HOW["cache"] or 1000
        if self.sampling > room:
            self.preemptions += 1
        labels = '{engine="0",model_name="m"}'
        return (
            f"vllm:kv_cache_usage_perc{labels} {min(1.0, self.sampling / room)}\n"
            f"vllm:num_preemptions_total{labels} {float(self.preemptions)}\n"
        )

    def load_adapter(self, name: str, folder: Path) -> str:
        """Load an adapter from disk."""
        if not (folder / "adapter_config.json").is_file():
            raise Failure(404, f"Loading lora {name} failed: No adapter found for {folder}")
        rank = json.loads((folder / "adapter_config.json").read_text())["r"]
        most = HOW["max_lora_rank"] or self.args.max_lora_rank or 16
        if rank > most:
            raise Failure(400, f"LoRA rank {rank} is greater than max_lora_rank {most}.")
        if name in self.adapters:
            raise Failure(400, f"The lora adapter '{name}' has already been loaded.")
        self.adapters[name] = number_in(folder)
        return f"Success: LoRA adapter '{name}' added successfully."


def answer(served: Served, path: str, query: dict[str, str], body: Any) -> Any:
    """Answer one request."""
    development = os.environ.get("VLLM_SERVER_DEV_MODE") == "1"
    adapters = os.environ.get("VLLM_ALLOW_RUNTIME_LORA_UPDATING") == "1" and served.args.enable_lora
    match path:
        case "/v1/models":
            context = HOW["max_model_len"] or served.args.max_model_len
            names = [served.name, *served.adapters]
            cards = {"data": [{"id": name, "max_model_len": context} for name in names]}
            return cards if HOW["models"] is None else HOW["models"]
        case "/tokenize":
            return {"tokens": [ord(letter) + HOW["shift_tokens"] for letter in body["prompt"]]}
        case "/v1/completions":
            tokens, _ = served.sample(body["model"], body["max_tokens"])
            logprobs = {"token_logprobs": [-0.5] * len(tokens)}
            choice = {"token_ids": tokens, "logprobs": logprobs, "finish_reason": "length"}
            return {"choices": [choice]}
        case "/inference/v1/generate" if served.args.enable_scale_out:
            tokens, spans = served.sample(body["model"], body["sampling_params"]["max_tokens"])
            content = [{"logprob": -0.5} for _ in tokens]
            choice = {"token_ids": tokens, "logprobs": {"content": content}}
            return {"choices": [choice | {"weight_versions": spans, "finish_reason": "length"}]}
        case "/v1/load_lora_adapter" if adapters:
            return served.load_adapter(body["lora_name"], Path(body["lora_path"]))
        case "/v1/unload_lora_adapter" if adapters:
            if served.adapters.pop(body["lora_name"], None) is None:
                raise Failure(404, "no such adapter")
        case "/pause" if development:
            served.pause(query["mode"])
        case "/resume" if development:
            served.resume()
        case "/collective_rpc" if development:
            served.number = number_in(Path(body["kwargs"]["weights_path"]))
        case "/update_weight_version" if development:
            served.version = body["new_version"]
        case "/sleep" if development and served.args.enable_sleep_mode:
            served.awake = False
        case "/wake_up" if development and served.args.enable_sleep_mode:
            served.awake = True
        case "/reset_prefix_cache" if development:
            pass
        case "/metrics":
            return served.metrics()
        case _:
            raise Failure(404, "Not Found")
    return {"status": "ok"}


class Handler(BaseHTTPRequestHandler):
    """Takes a request, notes it and answers."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    served: Served
    life: int
    well = not HOW["unhealthy"]

    def do_GET(self) -> None:
        self._do(None)

    def do_POST(self) -> None:
        text = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self._do(json.loads(text) if text else None)

    def _do(self, body: Any) -> None:
        url = urlsplit(self.path)
        query = dict(parse_qsl(url.query))
        if url.path not in ("/health", "/metrics"):
            note(path=url.path, query=query, body=body)
        try:
            if url.path == "/health":
                return self._send(200 if Handler.well else 503, {})
            self._misbehave(url.path)
            return self._send(200, answer(self.served, url.path, query, body))
        except Failure as failure:
            error = {"message": str(failure), "code": failure.status}
            return self._send(failure.status, {"error": error})

    def _misbehave(self, path: str) -> None:
        if self.life <= HOW["die_at"].get(path, 0):
            print("RuntimeError: the device fell off the bus", flush=True)
            if not HOW["dying"]:
                os._exit(70)
            Handler.well = False
            threading.Timer(HOW["dying"], os._exit, [70]).start()
        if not Handler.well:
            raise Failure(400, "EngineCore encountered an issue.")
        refusing = Path(HOW["refusing"].replace("{port}", PORT))
        if HOW["refusing"] and self.life == 1 and refusing.exists():
            raise Failure(500, "CUDA error: an illegal memory access was encountered")
        if path in HOW["hide"]:
            raise Failure(404, "Not Found")
        if path in HOW["fail"]:
            raise Failure(500, HOW["fail"][path])
        key = HOW["api_key"]
        if key and path.startswith("/v1") and self.headers.get("Authorization") != f"Bearer {key}":
            raise Failure(401, "Unauthorized")

    def _send(self, status: int, content: Any) -> None:
        plain = isinstance(content, str)
        text = (content if plain else json.dumps(content)).encode()
        self.send_response(status)
        self.send_header("Content-Type", "text/plain" if plain else "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


def main() -> None:
    """Serve until ended."""
    args = parse()
    if HOW["ignore_sigterm"]:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    pids = [os.getpid()]
    if HOW["grandchild"]:
        sleeper = "import signal; signal.signal(15, signal.SIG_IGN); signal.pause()"
        pids.append(subprocess.Popen([sys.executable, "-S", "-c", sleeper]).pid)
    life = 1 + (JOURNAL.read_text().count('{"start"') if JOURNAL.is_file() else 0)
    named = ("CUDA_VISIBLE_DEVICES", "VLLM_NO_USAGE_STATS", "DO_NOT_TRACK")
    note(start=sys.argv[1:], pids=pids, env={name: os.environ.get(name) for name in named})
    if HOW["last_words"] and HOW["last_life"] <= life < HOW["well_again"]:
        print(HOW["last_words"], flush=True)
        sys.exit(HOW["exit_code"])
    print("Loading safetensors checkpoint shards: 50%", flush=True)
    time.sleep(HOW["starting"])
    Handler.served, Handler.life = Served(args), life
    server = ThreadingHTTPServer((args.host or "127.0.0.1", args.port), Handler)
    server.daemon_threads = True
    server.serve_forever()


if __name__ == "__main__":
    main()

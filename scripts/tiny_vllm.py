"""A process that looks like a vLLM server from outside, and samples from a small model on a CPU.

    [inference]
    engine = "vllm"
    executable = ".venv/bin/python scripts/tiny_vllm.py"

Its tokens and log-probabilities are real: those of the embedded engine. It starts in seconds and
needs no vLLM, so that checks can run several, and kill them. An adapter that is loaded is a model
of its own, so a request keeps the weights that it began with. Whole models are read again from the
disk while requests pause. Flags of vLLM that do not matter here are ignored.

``TINY_VLLM_JOURNAL`` names a folder: for every answer, a line of JSON in the process's file there
says which weights it is from. What a trace claims can be compared with that.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hashlib
import json
import os
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from vf.inference.completions import Completion
from vf.inference.embedded.answers import Job
from vf.inference.embedded.embedded_engine import EmbeddedEngine
from vf.inference.embedded.requests import CompletionRequest
from vf.inference.model_files import Checkpoint, load_module, resolve_model
from vf.inference.rendering.renderer import Renderer
from vf.runtime.errors import EngineError, VfError

FIRST = "none"  # what vLLM calls the version of the weights that it started with


class Refused(Exception):
    """An answer that is not 200."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Journal:
    """Says of every answer which weights it is from; keeps nothing where it has no folder."""

    def __init__(self, folder: str | None) -> None:
        self._file = None if folder is None else (Path(folder) / f"{os.getpid()}.jsonl").open("ab")

    def write(self, **entry: Any) -> None:
        """Append a line, whole, before the answer leaves."""
        if self._file is not None:
            self._file.write(json.dumps(entry).encode() + b"\n")
            self._file.flush()


class TinyVllm:
    """A base model, and the adapters that were loaded.

    Args:
        args: The flags.
    """

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.name = args.served_model_name or args.model
        self.renderer = Renderer.from_pretrained(resolve_model(args.tokenizer or args.model))
        self.version = FIRST
        self.versions = [FIRST]  # by the number that the engine knows them by
        self.requests: Counter[str] = Counter()  # under way, by model
        self.read = 0  # tokens of prompts
        self.sampled = 0
        self.journal = Journal(os.environ.get("TINY_VLLM_JOURNAL"))
        base = Path(resolve_model(args.model))
        self.engines: dict[str, EmbeddedEngine] = {self.name: self._engine(Checkpoint(str(base)))}
        self.weights = {self.name: digest(base)}
        self._held = contextlib.ExitStack()
        self._drained = asyncio.Condition()
        self._draining = False

    def _engine(self, checkpoint: Checkpoint) -> EmbeddedEngine:
        engine = EmbeddedEngine(
            checkpoint.load(),
            max_seq_len=self.args.max_model_len,
            max_requests=self.args.max_num_seqs,
        )
        engine.start()
        return engine

    async def complete(self, body: CompletionRequest) -> Completion:
        """Sample one completion."""
        if self._draining:  # as vLLM 0.33 does
            raise Refused(503, "Generation is paused. Please retry after it resumes.")
        engine, weights = self.engines.get(body.model), self.weights.get(body.model)
        if engine is None:
            raise Refused(404, f"The model `{body.model}` does not exist.")
        if not isinstance(body.prompt, list):
            raise Refused(400, "the prompt must be token ids")
        stops = body.stop_token_ids or self.renderer.stop_token_ids
        job = Job(engine, self.renderer, body, body.prompt, body.max_tokens, stops)
        self.requests[body.model] += 1
        self.read += len(body.prompt)
        try:
            [answer] = await job.answers()
            completion = answer.completion
            self.sampled += len(completion.token_ids)
            await asyncio.sleep(self.args.token_seconds * len(completion.token_ids))
        finally:
            async with self._drained:
                self.requests[body.model] -= 1
                self._drained.notify_all()
        self.journal.write(
            model=body.model,
            weights=weights,
            versions=[self.versions[number] for number in completion.versions],
            prompt=fingerprint(body.prompt),
            token_ids=completion.token_ids,
            logprobs=completion.logprobs,
        )
        return completion

    async def load_adapter(self, name: str, folder: Path) -> None:
        """Load an adapter under a name, beside the others."""
        if name in self.engines:
            raise Refused(400, f"The lora adapter '{name}' has already been loaded.")
        if not (folder / "adapter_config.json").is_file():
            raise Refused(404, f"Loading lora {name} failed: No adapter found for {folder}")
        rank = json.loads((folder / "adapter_config.json").read_text())["r"]
        if rank > self.args.max_lora_rank:
            most = self.args.max_lora_rank
            raise Refused(400, f"LoRA rank {rank} is greater than max_lora_rank {most}.")
        base = resolve_model(self.args.model)
        weights = digest(folder)
        engine = await asyncio.to_thread(self._engine, Checkpoint(base, folder, rank))
        self.engines[name], self.weights[name] = engine, weights
        self.journal.write(loaded=name, weights=weights)

    async def unload_adapter(self, name: str) -> None:
        """Forget an adapter; requests that still use it fail."""
        if name == self.name or name not in self.engines:
            raise Refused(404, f"The lora adapter '{name}' cannot be found.")
        self.weights.pop(name)
        await asyncio.to_thread(self.engines.pop(name).stop)

    async def pause(self, mode: str) -> None:
        """Let requests under way end (``wait``), or pause (``keep``)."""
        self._draining = mode == "wait"
        if self._draining:
            async with self._drained:
                await self._drained.wait_for(lambda: not self.requests.total())
        await asyncio.to_thread(self._held.enter_context, self.engines[self.name].paused())

    async def resume(self) -> None:
        """Let requests run again."""
        self._draining = False
        await asyncio.to_thread(self._held.close)

    async def reload(self, folder: Path) -> None:
        """Read the whole model again, into the module that is served."""

        def read() -> None:
            module = self.engines[self.name].model
            module.load_state_dict(load_module(str(folder), module.dtype).state_dict())

        await asyncio.to_thread(read)
        self.weights[self.name] = digest(folder)

    async def update_version(self, version: str) -> None:
        """Call what is sampled from now on by this version."""
        self.version = version
        self.versions.append(version)
        await asyncio.to_thread(self.engines[self.name].publish, len(self.versions) - 1)

    def metrics(self) -> str:
        """Return the counters that vLLM has by these names."""
        most = self.args.max_num_seqs
        running = {name: min(most, count) for name, count in self.requests.items()}
        values = {
            "num_requests_running": sum(running.values()),
            "num_requests_waiting": self.requests.total() - sum(running.values()),
            "kv_cache_usage_perc": max(running.values(), default=0) / most,
            "num_preemptions_total": 0,
            "prompt_tokens_total": self.read,
            "generation_tokens_total": self.sampled,
        }
        label = f'{{engine="0",model_name="{self.name}"}}'
        return "".join(f"vllm:{name}{label} {float(value)}\n" for name, value in values.items())


def fingerprint(ids: list[int]) -> str:
    """Return a short hash of token ids."""
    return hashlib.blake2b(json.dumps(ids).encode(), digest_size=8).hexdigest()


def digest(folder: Path) -> str:
    """Return a short hash of a folder's weights."""
    found = hashlib.blake2b(digest_size=8)
    for path in sorted(folder.glob("*.safetensors")):
        found.update(path.read_bytes())
    return found.hexdigest()


def build_app(served: TinyVllm) -> Starlette:
    """Return the paths of vLLM's server that a trainer uses."""

    async def health(request: Request) -> Response:
        served.engines[served.name].check()
        return Response()

    async def models(request: Request) -> Response:
        length = served.args.max_model_len
        cards = [
            {"id": name, "object": "model", "max_model_len": length} for name in served.engines
        ]
        return JSONResponse({"object": "list", "data": cards})

    async def metrics(request: Request) -> Response:
        return PlainTextResponse(served.metrics())

    async def tokenize(request: Request) -> Response:
        body = await request.json()
        ids = served.renderer.tokenizer.encode(body["prompt"], add_special_tokens=False)
        return JSONResponse({"tokens": ids, "count": len(ids)})

    async def completions(request: Request) -> Response:
        completion = await served.complete(CompletionRequest.model_validate(await request.json()))
        choice = {
            "index": 0,
            "token_ids": completion.token_ids,
            "logprobs": {"token_logprobs": completion.logprobs},
            "finish_reason": completion.finish_reason,
        }
        return JSONResponse({"object": "text_completion", "choices": [choice]})

    async def generate(request: Request) -> Response:
        asked = await request.json()
        given = {k: v for k, v in asked["sampling_params"].items() if k != "detokenize"}
        body = {"model": asked["model"], "prompt": asked["token_ids"], **given}
        completion = await served.complete(CompletionRequest.model_validate(body))
        spans: list[dict[str, Any]] = []
        for place, number in enumerate(completion.versions):
            version = served.versions[number]
            if not spans or spans[-1]["version"] != version:
                spans.append({"version": version, "start": place})
            spans[-1]["end"] = place + 1
        choice = {
            "index": 0,
            "token_ids": completion.token_ids,
            "logprobs": {"content": [{"logprob": value} for value in completion.logprobs]},
            "weight_versions": spans,
            "finish_reason": completion.finish_reason,
        }
        return JSONResponse({"choices": [choice]})

    async def load(request: Request) -> Response:
        body = await request.json()
        await served.load_adapter(body["lora_name"], Path(body["lora_path"]))
        return PlainTextResponse(f"Success: LoRA adapter '{body['lora_name']}' added successfully.")

    async def unload(request: Request) -> Response:
        await served.unload_adapter((await request.json())["lora_name"])
        return Response()

    async def pause(request: Request) -> Response:
        await served.pause(request.query_params.get("mode", "abort"))
        return JSONResponse({"status": "paused"})

    async def resume(request: Request) -> Response:
        await served.resume()
        return JSONResponse({"status": "resumed"})

    async def collective_rpc(request: Request) -> Response:
        await served.reload(Path((await request.json())["kwargs"]["weights_path"]))
        return JSONResponse({"results": [None]})

    async def update_weight_version(request: Request) -> Response:
        await served.update_version((await request.json())["new_version"])
        return JSONResponse({"success": True})

    async def nothing(request: Request) -> Response:
        return Response()

    gets = {"/health": health, "/v1/models": models, "/metrics": metrics}
    posts = {
        "/tokenize": tokenize,
        "/v1/completions": completions,
        "/v1/load_lora_adapter": load,
        "/v1/unload_lora_adapter": unload,
        "/inference/v1/generate": generate,
        "/pause": pause,
        "/resume": resume,
        "/collective_rpc": collective_rpc,
        "/reset_prefix_cache": nothing,
        "/update_weight_version": update_weight_version,
    }
    routes = [Route(path, guarded(handler)) for path, handler in gets.items()]
    routes += [Route(path, guarded(handler), methods=["POST"]) for path, handler in posts.items()]
    return Starlette(routes=routes)


Handler = Callable[[Request], Awaitable[Response]]


def guarded(handler: Handler) -> Handler:
    """Answer with vLLM's form of an error where a handler raises one."""

    async def answer(request: Request) -> Response:
        try:
            return await handler(request)
        except (Refused, VfError, ValueError, KeyError) as error:
            status = 500 if isinstance(error, EngineError) else 400
            code = error.status if isinstance(error, Refused) else status
            return JSONResponse({"error": {"message": str(error), "code": code}}, code)

    return answer


def parse() -> argparse.Namespace:
    """Read the flags that matter here."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("--model", default="tiny")
    add("--tokenizer", help="by default the model's")
    add("--served-model-name")
    add("--host", default="127.0.0.1")
    add("--port", type=int, default=8000)
    add("--max-model-len", type=int, default=1024)
    add("--max-num-seqs", type=int, default=64, help="requests sampled at once")
    add("--max-lora-rank", type=int, default=16)
    add("--token-seconds", type=float, default=0.0, help="added to an answer, for each token")
    return parser.parse_known_args()[0]


def main() -> None:
    """Serve until ended."""
    args = parse()
    app = build_app(TinyVllm(args))
    uvicorn.run(app, host=args.host, port=args.port, log_level="warning", backlog=2048)


if __name__ == "__main__":
    main()

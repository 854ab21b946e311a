"""Make every call that vf-rl makes of vLLM, against vLLM's own Python code and without a GPU.

Run by `check_vllm_calls.py`, with one version of vLLM and this repository on the path. Real are
vf-rl's engine and its HTTP requests; and of vLLM the server's routes, the classes of requests and
answers, the parser of flags, the packing of weights and the workers' side of their transfer. The
engine behind the routes is replaced by one that knows vLLM's signatures, NCCL by the store at which
its members meet, and CUDA's streams by nothing.
"""

from __future__ import annotations

import asyncio
import inspect
import shlex
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import create_autospec

import numpy as np
import torch
import uvicorn
from fastapi import FastAPI
from vllm import SamplingParams, envs
from vllm.config.weight_transfer import WeightTransferConfig
from vllm.distributed.device_communicators import pynccl
from vllm.distributed.weight_transfer.nccl_engine import NCCLWeightTransferEngine
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.entrypoints.openai.completion import protocol as completions
from vllm.entrypoints.openai.completion.api_router import attach_router as attach_completions
from vllm.entrypoints.openai.models.api_router import attach_router as attach_models
from vllm.entrypoints.openai.models.protocol import BaseModelPath
from vllm.entrypoints.openai.models.serving import OpenAIServingModels
from vllm.entrypoints.rl.factories import register_rl_api_routers
from vllm.entrypoints.scale_out.factories import register_scale_out_api_routers
from vllm.entrypoints.scale_out.token_in_token_out import protocol as tokens
from vllm.entrypoints.serve import (
    register_vllm_dev_api_routers,
    register_vllm_serve_api_routers,
)
from vllm.entrypoints.serve.tokenize.protocol import TokenizeResponse
from vllm.outputs import WeightVersionSpan
from vllm.utils.argparse_utils import FlexibleArgumentParser
from vllm.utils.serial_utils import numpy2base64
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.worker.gpu_model_runner import GPUModelRunner
from vllm.v1.worker.gpu_worker import Worker

try:  # it moved between 0.32 and 0.33; vf-rl itself starts the program
    from vllm.entrypoints.common.cli_args import make_arg_parser
except ModuleNotFoundError:
    from vllm.entrypoints.launchers.cli_args import make_arg_parser

from vf.inference.model import Sampling
from vf.inference.settings import VllmSettings
from vf.inference.vllm import nccl
from vf.inference.vllm.launch import flags, server_env
from vf.inference.vllm.publish_methods import FIXED, METHODS
from vf.inference.vllm.server_args import AS_HERE, Adapters, returning_experts, server_args
from vf.inference.vllm.vllm_engine import VllmEngine
from vf.inference.vllm.weight_store import WeightStore

MODEL = "org/model"
IDLE = [sys.executable, "-c", "import signal; signal.pause()"]  # in place of the server
# Nothing is neutral, so that each is sent.
ALL_SAMPLING = Sampling(4, 0.5, 0.5, 7, 0.5, 1.5, seed=1, experts_from=1)
# Of the second token of a prompt of two, and of the first of two sampled ones: one layer, two each.
EXPERTS = np.array([[[1, 2]], [[3, 4]]], np.uint8)


REAL = pynccl.PyNcclCommunicator


class ByStore:
    """A communicator that broadcasts through its group's store."""

    disabled = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        bound = inspect.signature(REAL).bind(*args, **kwargs)
        self.group, self.device = bound.arguments["group"], torch.device("cpu")
        self.rank = self.group.rank

    def broadcast(self, tensor: torch.Tensor, src: int, stream: Any = None) -> None:
        got = self.group.broadcast_obj(tensor if self.rank == src else None, src)
        tensor.copy_(got)

    def destroy(self) -> None:
        self.disabled = True


class NoStream:
    """A CUDA stream or event on a machine that has none."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **kwargs: None


def leave_out_cuda() -> None:
    """Replace NCCL and the streams."""
    for owner, name, stand_in in (
        (pynccl, "PyNcclCommunicator", ByStore),
        (torch, "Event", NoStream),
        (torch.cuda, "Stream", NoStream),
        (torch.cuda, "stream", lambda which: nullcontext()),
        (torch.cuda, "device", lambda which: nullcontext()),
        (torch.cuda, "synchronize", lambda: None),
        (torch.accelerator, "synchronize", lambda: None),
        (torch.accelerator, "current_device_index", lambda: 0),
        (torch.accelerator, "current_stream", NoStream),
        (torch.Tensor, "record_stream", lambda tensor, stream: None),
    ):
        setattr(owner, name, stand_in)


class Receiver(torch.nn.Module):
    """A model that keeps what it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.got: dict[str, torch.Tensor] = {}

    def load_weights(self, named: list[tuple[str, torch.Tensor]]) -> None:
        self.got |= {name: tensor.clone() for name, tensor in named}


class Replica:
    """One replica's worker, as far as weights are concerned."""

    def __init__(self, rank: int) -> None:
        parallel = SimpleNamespace(data_parallel_index=rank, world_size=1, rank=0)
        config = SimpleNamespace(parallel_config=parallel, model_config=None)
        self.model = Receiver()
        self.transfer = NCCLWeightTransferEngine(
            WeightTransferConfig(backend="nccl"), config, torch.device("cpu"), self.model
        )

    def call(self, method: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Do what a worker is asked to, after looking whether it could be asked so."""
        inspect.signature(getattr(Worker, method)).bind(self, *args, **kwargs)
        match method:
            case "reload_weights":
                inspect.signature(GPUModelRunner.reload_weights).bind(self, *args, **kwargs)
            case "init_weight_transfer_engine":
                info = self.transfer.parse_init_info(kwargs["init_info"])
                self.transfer.init_transfer_engine(info)
            case "start_weight_update":
                self.model.got.clear()
            case "update_weights":
                self.transfer.update_weights(kwargs["update_info"])
            case "finish_weight_update":
                pass
            case _:
                raise AssertionError(f"nobody looks at {method}")


class Engine:
    """Two replicas behind vLLM's routes."""

    def __init__(self) -> None:
        self.replicas = [Replica(0), Replica(1)]
        self.client = create_autospec(AsyncLLM, instance=True)
        self.client.model_config = SimpleNamespace(max_model_len=64)
        self.client.renderer = self.client.input_processor = None
        parallel = SimpleNamespace(world_size_across_dp=len(self.replicas), world_size=1)
        self.client.vllm_config = SimpleNamespace(parallel_config=parallel)
        self.client.collective_rpc.side_effect = self._all
        self.client.reset_prefix_cache.return_value = True
        self.client.wake_up.return_value = True
        for name in ("init_weight_transfer_engine", "update_weights"):
            self._really(name)
        for name in ("start_weight_update", "finish_weight_update"):
            self._really(name)

    def _really(self, name: str) -> None:
        async def run(*args: Any, **kwargs: Any) -> Any:
            return await getattr(AsyncLLM, name)(self.client, *args, **kwargs)

        getattr(self.client, name).side_effect = run

    async def _all(
        self,
        method: str,
        timeout: float | None = None,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> list[None]:
        works = [
            asyncio.to_thread(replica.call, method, args, kwargs or {}) for replica in self.replicas
        ]
        return list(await asyncio.gather(*works))


def known(body: dict[str, Any], fields: Any, where: str) -> None:
    """Refuse a field that vLLM would ignore."""
    unknown = set(body) - set(fields)
    if unknown:
        raise AssertionError(f"{where} has no {', '.join(sorted(unknown))}")


class Answers:
    """Answers requests for tokens, by vLLM's classes."""

    async def create_tokenize(self, request: Any, raw: Any) -> Any:
        known(await raw.json(), type(request).model_fields, "/tokenize")
        found = [ord(letter) for letter in request.prompt]
        return TokenizeResponse(count=len(found), max_model_len=64, tokens=found)

    async def create_completion(self, request: Any, raw: Any) -> Any:
        known(await raw.json(), type(request).model_fields, "/v1/completions")
        params = request.to_sampling_params(max_tokens=4, default_sampling_params={})
        assert (params.logprobs, params.seed) == (0, 1), params
        assert params.routed_experts_prompt_start == 1, params
        logprobs = completions.CompletionLogProbs(token_logprobs=[-0.5, -0.25])
        choice = completions.CompletionResponseChoice(index=0, text="", finish_reason="length")
        choice.token_ids, choice.logprobs = [5, 6], logprobs
        choice.routed_experts = numpy2base64(EXPERTS)
        usage = completions.UsageInfo()
        return completions.CompletionResponse(model=request.model, choices=[choice], usage=usage)

    async def serve_tokens(self, request: Any, raw: Any) -> Any:
        body = await raw.json()
        known(body, type(request).model_fields, "/inference/v1/generate")
        known(body["sampling_params"], SamplingParams.__struct_fields__, "SamplingParams")
        content = [tokens.GenerateLogProbsContent(token_id=t, logprob=-0.5) for t in (5, 6)]
        choice = tokens.GenerateTokensChoice(index=0, token_ids=[5, 6], finish_reason="length")
        choice.logprobs = tokens.GenerateLogProbs(content=content)
        choice.weight_versions = [WeightVersionSpan("1", 0, 1), WeightVersionSpan("2", 1, 2)]
        choice.routed_experts = numpy2base64(EXPERTS)
        return tokens.GenerateTokensResponse(choices=[choice])


class Numbers:
    """Weights of several shapes and types, which say whose they are."""

    step = 0

    def named_tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        for place, dtype in enumerate((torch.float32, torch.bfloat16, torch.float16)):
            for shape in ((3,), (2, 5), (40, 2), (1, 1, 1)):
                value = 10.0 * self.step + place
                yield (
                    f"layer.{place}.{len(shape)}.{shape[0]}",
                    torch.full(shape, value, dtype=dtype),
                )

    def save(self, folder: Path, *, untied: bool = False) -> None:
        folder.mkdir(parents=True)


def serve(engine: Engine, args: Any, port: int) -> None:
    """Serve vLLM's routes in a thread of their own."""
    app = FastAPI()
    app.state.args, app.state.engine_client = args, engine.client
    app.state.openai_serving_models = OpenAIServingModels(
        engine.client, [BaseModelPath(name=MODEL, model_path=MODEL)]
    )
    app.state.serving_tokens = app.state.openai_serving_completion = Answers()
    app.state.serving_tokenization = app.state.serving_tokens
    register_vllm_serve_api_routers(app)
    attach_models(app)
    attach_completions(app)
    register_vllm_dev_api_routers(app)
    register_rl_api_routers(app)
    register_scale_out_api_routers(app, ("generate",))
    server = uvicorn.Server(uvicorn.Config(app, port=port, log_level="error"))
    threading.Thread(target=server.run, daemon=True).start()
    while not server.started:
        time.sleep(0.01)


def parsed(settings: VllmSettings, method: str, *, cpu: bool, rank: int | None = None) -> Any:
    """Return the flags of a run as vLLM reads them."""
    words = flags(
        server_args(
            settings,
            method=method,
            model=MODEL,
            name=MODEL,
            host="127.0.0.1",
            port="1",
            max_seq_len=64,
            adapters=None if rank is None else Adapters(rank, 3),
            cpu=cpu,
            shared_gpu=not cpu,
            images=True,
        )
    )
    args = make_arg_parser(FlexibleArgumentParser()).parse_args(words)
    made = AsyncEngineArgs.from_cli_args(args)
    if method == "nccl":
        assert made.weight_transfer_config.backend == "nccl", made.weight_transfer_config
    if settings.gpus is not None:
        assert (made.data_parallel_size, args.api_server_count) == (len(settings.gpus), 1), words
    env = server_env(settings, {}, lora=True, cpu=cpu)
    known({n: 1 for n in env if n.startswith("VLLM_")}, envs.environment_variables, "vllm.envs")
    return args


def run(method: str) -> None:
    """Start an engine, publish twice, sample and let it sleep."""
    print(f"  {method}", flush=True)
    engine, weights = Engine(), Numbers()
    settings = VllmSettings(executable=shlex.join(IDLE), sleep=True, publish="auto")
    adapters = Adapters(8) if method == "lora" else None
    notes: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        ours = VllmEngine(
            settings,
            MODEL,
            weights,
            WeightStore(weights, Path(folder) / "published"),
            method=method,
            log_path=Path(folder) / "log",
            max_seq_len=64,
            adapters=adapters,
            cpu=False,
            shared_gpu=False,
            encoded=("ab", [97, 98]),
            note=notes.append,
        )
        args = parsed(settings, method, cpu=False, rank=8 if adapters else None)
        serve(engine, args, int(ours.base_url.split(":")[2].split("/")[0]))
        try:
            ours.start(lambda text: None)
            for version in (1, 2):
                weights.step = version
                ours.publish(version)
                assert not notes, notes
                if method == "nccl":
                    for replica in engine.replicas:
                        compare(dict(weights.named_tensors()), replica.model.got)
            with ours.training():
                engine.client.sleep.assert_awaited_once_with(1, "abort")
            engine.client.wake_up.assert_awaited_once_with(None)
            found = asyncio.run(sample(ours))
            assert found.token_ids == [5, 6], found
            assert found.experts == (bytes([1, 0, 2, 0]), bytes([3, 0, 4, 0])), found
            if method in ("disk", "nccl"):
                assert found.versions == [1, 2], found
                pauses = [call.kwargs["mode"] for call in engine.client.pause_generation.mock_calls]
                assert pauses == ["keep", "keep"], pauses
                engine.client.update_weight_version.assert_awaited_with("2")
                engine.client.reset_prefix_cache.assert_awaited_with(True, False)
            if method == "lora":
                loaded = [c.args[0].lora_name for c in engine.client.add_lora.mock_calls]
                assert loaded == [f"{MODEL}@1-1", f"{MODEL}@2-2"], loaded
                assert list(ours._admin.models()) == [MODEL, loaded[1]], ours._admin.models()
        finally:
            ours.stop()


def compare(sent: dict[str, torch.Tensor], got: dict[str, torch.Tensor]) -> None:
    """Refuse weights that changed on their way."""
    assert list(sent) == list(got), (list(sent), list(got))
    for name, tensor in sent.items():
        assert tensor.dtype == got[name].dtype, name
        assert torch.equal(tensor, got[name]), name


async def sample(ours: VllmEngine) -> Any:
    """Ask for a completion with all settings."""
    sampler = ours.sampler(30.0)
    try:
        return await sampler.complete([1, 2], ALL_SAMPLING, [0])
    finally:
        await sampler.close()


def main() -> None:
    """Make the calls."""
    print("  flags", flush=True)
    for method in (*METHODS, FIXED):
        for extra in ({}, {"sleep": True}, {"gpus": [0, 1, 2, 3]}):
            for cpu in (False, True):
                parsed(VllmSettings(**extra), method, cpu=cpu)
        args = parsed(returning_experts(VllmSettings(), cpu=False), method, cpu=False)
        assert args.enable_return_routed_experts
        assert (args.enable_scale_out, args.mm_processor_kwargs) == (True, AS_HERE), args
    assert tokens.GenerateRequest.model_fields.keys() >= {"content_parts", "return_token_ids"}
    assert "prompt_token_ids" in tokens.GenerateTokensResponse.model_fields
    for rank in (1, 9, 64, 300, 512):
        assert parsed(VllmSettings(), "lora", cpu=False, rank=rank).max_loras == 3
    leave_out_cuda()
    nccl.BUFFER_BYTES = 320  # so that there are several
    for method in METHODS:
        run(method)


if __name__ == "__main__":
    main()

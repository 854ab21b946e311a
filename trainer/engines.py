"""From ``[inference]`` to the engine that answers, and the check that it answers as it should."""

from __future__ import annotations

import asyncio
import logging
import math
from statistics import fmean
from typing import cast

import torch

from vf.inference.completions import Completion
from vf.inference.composite import composite_config
from vf.inference.embedded.embedded_server import EmbeddedServer
from vf.inference.engine import Engine
from vf.inference.model import Sampling
from vf.inference.reference_sample import ReferenceSample
from vf.inference.settings import EmbeddedSettings, VllmSettings
from vf.inference.token_client import TokenClient
from vf.inference.vllm.adapter_formats import adapter_format
from vf.inference.vllm.publish_methods import choose_method
from vf.inference.vllm.server_args import Adapters, returning_experts, returning_supports
from vf.inference.vllm.sites import LOOPBACKS
from vf.runtime.errors import ModelError, ServerDown, TrainingError
from vf.trainer.canary import Probed
from vf.trainer.learning.memory.server_memory import shares_gpu
from vf.trainer.learning.policy import Policy
from vf.trainer.preflight import read_model_config
from vf.trainer.processes.placement import gpus_of_server
from vf.trainer.run.setup import ProbePrompt, Setup
from vf.trainer.settings.config import Config
from vf.trainer.settings.determinism import batch_invariant
from vf.trainer.settings.overlap import steps_ahead
from vf.trainer.tinker_backend.engine import TinkerEngine
from vf.trainer.tinker_backend.policy import AnyPolicy, TinkerPolicy
from vf.trainer.tinker_backend.service import TinkerService

log = logging.getLogger(__name__)

PROBE_TOKENS = 16
TOKENIZER_TEXT = "\n\tfor i in range(1024): x += 3.14  # naïve — Straße 東京 🙂"


def build_policy(config: Config) -> Policy:
    """Return the model that learns: here, or on a server.

    The latter is a :class:`TinkerPolicy`, which has of a policy what a run calls.

    Raises:
        ConfigError: If it cannot be loaded or created.
        EngineError: If the server does not answer.
    """
    if config.trainer.backend == "local":
        return Policy(config.model, config.args)
    hidden_size = read_model_config(config.model).get_text_config().hidden_size
    return cast("Policy", TinkerPolicy(TinkerService(config), config.args, hidden_size))


def build_engine(setup: Setup, policy: AnyPolicy) -> Engine:
    """Return the engine that the settings ask for, not started.

    Args:
        setup: The settings, and what else it is made of.
        policy: The model that learns.

    Raises:
        ConfigError: If it is not installed here, or its settings do not fit the rest.
    """
    config, renderer = setup.config, setup.renderer
    args, settings = config.args, config.inference
    fleet = setup.fleet
    if isinstance(policy, TinkerPolicy):
        return TinkerEngine(policy.service, config.trainer.tinker.away_timeout)
    if isinstance(settings, EmbeddedSettings):
        if fleet is not None and settings.host in LOOPBACKS:
            settings = settings.model_copy(update={"host": fleet.host})
        return EmbeddedServer(
            settings,
            policy.weights.module,
            renderer,
            config.model,
            max_seq_len=args.max_seq_len,
            address=None if fleet is None else fleet.host,
            deterministic=args.deterministic,
            record_experts=args.router_replay != "off",
        )
    from vf.inference.vllm.replicated_engine import vllm_engine

    assert isinstance(settings, VllmSettings)
    cpu = not torch.cuda.is_available()
    if args.deterministic:
        settings = batch_invariant(settings, cpu=cpu)
    if args.router_replay != "off":
        settings = returning_experts(settings, cpu=cpu)
    settings = returning_supports(settings, [config.args_of(env).top_k for env in config.env])
    trainers = config.trainer.devices or [0]
    if fleet is not None:  # which gives each server GPUs of its own
        count = settings.replicas * gpus_of_server(settings, cpu=cpu)
        settings, trainers = settings.model_copy(update={"gpus": [*range(count)]}), []
    # A rollout may begin as many versions ahead of the training as generation may run ahead, and
    # its requests keep the adapter that they began with.
    adapters = None
    if args.use_lora:
        module = policy.weights.module
        form = adapter_format(composite_config(module) or module.config)
        adapters = Adapters(args.lora_rank, steps_ahead(config) + 1, form)
    text = renderer.decode(setup.probe.token_ids) + TOKENIZER_TEXT
    return vllm_engine(
        settings,
        config.model,
        policy.weights,
        method=choose_method(settings, use_lora=args.use_lora, cpu=cpu, trainer_gpus=trainers),
        folder=setup.published,
        log_path=setup.log_path,
        max_seq_len=args.max_seq_len,
        adapters=adapters,
        cpu=cpu,
        shared_gpu=not cpu and shares_gpu(config),
        encoded=(text, renderer.tokenizer.encode(text, add_special_tokens=False)),
        note=setup.note,
        vision=renderer.vision,
        fleet=fleet,
    )


async def probe(
    engine: Engine,
    policy: AnyPolicy,
    version: int,
    prompt: ProbePrompt,
    stops: list[int],
    *,
    timeout: float,
    tolerance: float,
) -> Probed:
    """Have the engine answer shortly, and compare its logprobs with the trainer's.

    The prompt is the same each time, so that a cached prefix of old weights would be found out,
    as would a wrong adapter or temperature. Of several servers, each is asked. One that comes back
    later has to give the first one's answer.

    Args:
        engine: Samples.
        policy: The policy that is trained.
        version: The version of its weights.
        prompt: The prompt.
        stops: Ids that end the answer.
        timeout: Seconds without progress after which a server is given up.
        tolerance: Nats by which a server that comes back may differ.

    Returns:
        The answer, and how far its logprobs are from the trainer's; of several servers, the
        farthest.

    Raises:
        ModelError: If all servers failed; an outage is waited out.
    """
    prompt_ids, images = prompt
    temperature = policy.args.temperature
    sampling = Sampling(PROBE_TOKENS, temperature=temperature, seed=0, images=images)
    while True:
        await engine.leases.available()
        samplers = engine.samplers(timeout)
        try:
            completions = await asyncio.gather(
                *(_answer(sampler, prompt_ids, sampling, stops) for sampler in samplers.values())
            )
        finally:
            for sampler in samplers.values():
                await sampler.close()
        for url, answer in zip(samplers, completions, strict=True):
            if isinstance(answer, ModelError):
                engine.leave_out(url, answer)
        answers = [answer for answer in completions if isinstance(answer, Completion)]
        if answers:
            break
    mine: dict[tuple[int, ...], list[float]] = {}  # most servers sample the same
    with engine.training():
        for ids in {tuple(answer.token_ids) for answer in answers}:
            mine[ids] = policy.logprobs(prompt_ids, [*ids], images)
    first = tuple(answers[0].token_ids)
    engine.remember(
        ReferenceSample(version, prompt_ids, sampling, stops, first, mine[first], tolerance)
    )
    gaps = [
        fmean(abs(q - p) for q, p in zip(a.logprobs, mine[tuple(a.token_ids)], strict=True))
        for a in answers
    ]
    return Probed(next(filter(math.isnan, gaps), max(gaps)), first)


async def _answer(
    sampler: TokenClient, prompt_ids: list[int], sampling: Sampling, stops: list[int]
) -> Completion | ModelError | None:
    """Return a server's answer to the probe, or why there is none; None if it went down."""
    try:
        return await sampler.complete(prompt_ids, sampling, stops)
    except ServerDown as error:
        log.warning("the probe is retried: %s", error)
        return None
    except ModelError as error:
        return error


def check_gap(gap: float, tolerance: float, version: int) -> None:
    """Raise TrainingError if the engine does not sample from the weights that are trained."""
    if gap <= tolerance:
        return
    raise TrainingError(
        f"after publishing version {version}, the engine's logprobs differ from the trainer's by "
        f"{gap:.3f} nats on average, over inference.logprob_tolerance = {tolerance:g}. It samples "
        "from other weights, at another temperature, or in a much lower precision: look at the "
        "server's dtype, quantisation and adapter, or raise the tolerance if you know why"
    )

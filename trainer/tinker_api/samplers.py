"""Sampling sessions, and what is asked of them."""

from __future__ import annotations

import uuid
from typing import Any

from vf.inference.rendering.renderer import Renderer
from vf.runtime.errors import ConfigError
from vf.runtime.http_door import Refused
from vf.trainer.tinker_api import requests as api
from vf.trainer.tinker_api.checkpoints import CheckpointPath
from vf.trainer.tinker_api.futures import Result
from vf.trainer.tinker_api.registry import Registry
from vf.trainer.tinker_api.results import SampleOutput
from vf.trainer.tinker_api.sampling import EngineSampler, check_prompt, prompt_logprobs
from vf.trainer.tinker_api.tenants import Sampler

MOST_WAITING = 4096  # requests of all samplers


class Samplers:
    """Samples with saved adapters, or with the model alone.

    Args:
        registry: The sampling sessions.
        renderer: The model's.
    """

    def __init__(self, registry: Registry, renderer: Renderer) -> None:
        self._registry = registry
        self._sampler = EngineSampler(registry.engine, renderer)
        self._waiting = 0

    def create_sampler(self, body: api.CreateSampler) -> Sampler:
        """Return a new sampling session, or the one of the same number.

        Raises:
            ConfigError: If what it is to sample from is not here.
        """
        session = self._registry.session(body.session_id)
        sampler_id = f"{session.id}:sample:{body.sampling_session_seq_id}"
        if sampler_id not in self._registry.samplers:
            path = self._source(body.model_path, body.base_model)
            sampler = Sampler(sampler_id, session.id, path, adapted=path is not None)
            self._registry.samplers[sampler_id] = sampler
        return self._registry.samplers[sampler_id]

    def _source(self, model_path: str | None, base_model: str | None) -> CheckpointPath | None:
        if base_model is not None:
            self._registry.check_base(base_model)
        elif model_path is None:
            raise ConfigError("model_path: missing, and base_model too; give one of them")
        if model_path is None:
            return None
        path = CheckpointPath.parse(model_path)
        self._registry.check_checkpoint(path, self._registry.checkpoints.info(path))
        return path

    def sample(self, body: api.Sample) -> str:
        """Begin to sample; return the request's id.

        Raises:
            ConfigError: If the prompt or the sampler is wrong.
            Refused: If too many wait; clients try it again later.
        """
        prompt = check_prompt(body, self._registry.limits.vocabulary, self._registry.limits.longest)
        if body.sampling_session_id is not None:
            sampler = self._registry.sampler(body.sampling_session_id)
        else:
            path = self._source(body.model_path, body.base_model)
            sampler = Sampler(uuid.uuid4().hex, "", path, adapted=path is not None)
        number = uuid.uuid4().hex if body.seq_id is None else body.seq_id
        request_id = f"{sampler.id}:{number}"
        if request_id in self._registry.futures:
            return request_id
        if self._waiting >= MOST_WAITING:
            raise Refused(f"{MOST_WAITING} requests to sample wait already", 429)

        async def work() -> Result:
            self._waiting += 1
            try:
                return await sampled()
            finally:
                self._waiting -= 1

        async def sampled() -> Result:
            lora = sampler.lora
            if sampler.adapted and lora is None:
                lora = await self._registry.compute(lambda: self._registry.snapshots.load(sampler))
            shown = None
            if body.prompt_logprobs or body.topk_prompt_logprobs:

                def ask() -> Any:
                    with self._registry.computing():
                        return self._registry.passes.prompt(lora, prompt, body.topk_prompt_logprobs)

                shown = prompt_logprobs(body, prompt, *(await self._registry.compute(ask)))
            ids, params = prompt.tolist(), body.sampling_params
            samples = await self._sampler.sample(lora, ids, params, body.num_samples)
            return SampleOutput(samples) if shown is None else SampleOutput(samples, shown)

        self._registry.futures.start(request_id, sampler.session, work(), cancellable=True)
        return request_id

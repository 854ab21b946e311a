"""What is done to models in training: passes, optimizer steps, saving and loading."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable
from typing import Any

from vf.runtime.errors import ConfigError
from vf.runtime.http_door import Refused
from vf.trainer.tinker_api import requests as api
from vf.trainer.tinker_api.adapter import Adapter, AdapterShape
from vf.trainer.tinker_api.checkpoints import CheckpointInfo, CheckpointPath, check_name
from vf.trainer.tinker_api.datums import PassRequest
from vf.trainer.tinker_api.futures import Plain, Result
from vf.trainer.tinker_api.registry import Registry
from vf.trainer.tinker_api.results import PassOutput
from vf.trainer.tinker_api.tenants import Sampler, Tenant

MOST_MODELS = 128


class Training:
    """Begins requests to models; each method returns the id by which the result is asked for.

    Args:
        registry: The models.
    """

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._model = registry.engine.model

    def create_model(self, body: api.CreateModel) -> str:
        """Begin to create a model; return the request's id.

        Raises:
            Refused: If the base model is not served, or there are too many.
            ConfigError: If the adapter suits no layer.
        """
        self._registry.check_base(body.base_model)
        given = body.lora_config
        if given is None:
            raise ConfigError("lora_config: missing; only LoRA is trained here")
        shape = AdapterShape(given.rank, given.train_attn, given.train_mlp, given.train_unembed)
        shape.layers(self._model)

        def make(tenant: Tenant) -> Result:
            tenant.adapter = Adapter(self._model, shape, given.seed)
            return Plain({"type": "create_model", "model_id": tenant.id})

        return self._create(body.session_id, body.model_seq_id, shape, body.user_metadata, make)

    def _create(
        self,
        session_id: str,
        seq: int,
        shape: AdapterShape,
        metadata: dict[str, Any] | None,
        make: Callable[[Tenant], Result],
    ) -> str:
        session = self._registry.session(session_id)
        model_id = f"{session.id}:train:{seq}"
        request_id = f"{model_id}:create"
        if request_id in self._registry.futures:
            return request_id
        if len(self._registry.tenants) >= MOST_MODELS:
            raise Refused(
                f"there are {MOST_MODELS} models in training; unload one or end its session", 400
            )
        tenant = Tenant(model_id, session.id, shape)
        self._registry.tenants[model_id] = tenant
        about = {
            "base_model": self._registry.names[0],
            "shape": shape.to_json(),
            "created": time.time(),
            "user_metadata": metadata,
        }

        def work() -> Result:
            self._registry.checkpoints.open_run(model_id, about)
            return make(tenant)

        return self._registry.enqueue(tenant, request_id, work)

    def unload(self, model_id: str) -> str:
        """Begin to unload a model, after its requests; return the request's id."""
        tenant = self._registry.tenant(model_id)

        def work() -> Result:
            self._registry.checkpoints.close_run(model_id)
            return Plain({"type": "unload_model", "model_id": model_id})

        del self._registry.tenants[model_id]
        return self._registry.enqueue(tenant, f"{model_id}:unload:{uuid.uuid4().hex}", work)

    def run_pass(self, request: PassRequest) -> str:
        """Begin a pass; return the request's id."""
        tenant = self._registry.tenant(request.model_id)

        def work() -> Result:
            adapter = tenant.trained
            keep, begun = False, time.perf_counter()
            try:
                with self._registry.computing():
                    result = self._registry.passes.run(
                        adapter.live,
                        request.data,
                        request.loss,
                        request.config,
                        gradient=request.gradient,
                    )
                keep = request.gradient
            finally:
                adapter.take_gradient(keep=keep)
            tenant.count_pass(
                result.loss if request.gradient else None,
                sum(len(datum.tokens) for datum in request.data),
                time.perf_counter() - begun,
            )
            return PassOutput(result.logprobs, {"loss:sum": result.loss})

        return self._registry.in_order(tenant, request.seq_id, work, long=True)

    def optim_step(self, body: api.OptimStep) -> str:
        """Begin an optimizer step; return the request's id."""
        tenant = self._registry.tenant(body.model_id)

        def work() -> Result:
            metrics = tenant.trained.step(body.adam_params)
            line = tenant.count_step(body.adam_params.learning_rate, metrics["grad_norm:mean"])
            self._registry.checkpoints.log_step(tenant.id, line)
            return Plain({"metrics": metrics})

        return self._registry.in_order(tenant, body.seq_id, work)

    def save(self, body: api.SaveWeights | api.SaveForSampler) -> str:
        """Begin to save a checkpoint, or to make a sampler of the weights; return the request's id.

        Raises:
            ConfigError: If the name cannot be a file's.
        """
        tenant = self._registry.tenant(body.model_id)
        sampling = isinstance(body, api.SaveForSampler)
        if isinstance(body, api.SaveForSampler) and body.path is None:
            return self._save_snapshot(tenant, body)
        name = body.path or f"{body.seq_id or uuid.uuid4().hex}"
        check_name(name, "path")
        path = CheckpointPath(tenant.id, "sampler_weights" if sampling else "weights", name)
        overwrite = sampling or (isinstance(body, api.SaveWeights) and body.overwrite)

        def work() -> Result:
            adapter = tenant.trained
            ttl = body.ttl_seconds
            info = CheckpointInfo(
                self._registry.names[0],
                self._registry.fingerprint,
                adapter.shape.to_json(),
                adapter.steps,
                time.time(),
                None if ttl is None else time.time() + ttl,
                body.user_metadata,
            )
            config = adapter.shape.peft_config(
                adapter.shape.layers(self._model), self._registry.names[-1]
            )
            moments = None if sampling else adapter.moments()
            self._registry.checkpoints.save(
                path, info, config, adapter.weights(), moments, overwrite=overwrite
            )
            kind = "save_weights_for_sampler" if sampling else "save_weights"
            return Plain({"type": kind, "path": str(path)})

        return self._registry.in_order(tenant, body.seq_id, work)

    def _save_snapshot(self, tenant: Tenant, body: api.SaveForSampler) -> str:
        if body.sampling_session_seq_id is None:
            raise ConfigError("path: missing, and sampling_session_seq_id too; give one of them")
        sampler_id = f"{tenant.session}:sample:{body.sampling_session_seq_id}"
        loop = asyncio.get_running_loop()

        def work() -> Result:
            sampler = Sampler(sampler_id, tenant.session, adapted=True)
            self._registry.snapshots.hold(sampler, tenant.trained.snapshot())
            # Before the result, for the loop keeps the order.
            loop.call_soon_threadsafe(self._registry.add_sampler, sampler)
            return Plain({"type": "save_weights_for_sampler", "sampling_session_id": sampler_id})

        return self._registry.in_order(tenant, body.seq_id, work)

    def load(self, body: api.LoadWeights) -> str:
        """Begin to load a checkpoint, into a model or as a new one; return the request's id.

        Raises:
            ConfigError: If there is no such checkpoint, or it is of another base model.
        """
        path = CheckpointPath.parse(body.path)
        info = self._registry.checkpoints.info(path)
        self._registry.check_checkpoint(path, info)
        if body.base_model is not None:
            self._registry.check_base(body.base_model)
        if body.weights_access_token is not None:
            raise ConfigError(
                "weights_access_token: there are no other accounts here; leave it out"
            )

        def load(tenant: Tenant, adapter: Adapter) -> Result:
            _, weights = self._registry.checkpoints.weights(path)
            moments = self._registry.checkpoints.moments(path) if body.optimizer else None
            adapter.load(weights, moments, info.steps)
            tenant.adapter = adapter
            return Plain({"type": "load_weights", "path": str(path), "model_id": tenant.id})

        if body.model_id is not None:
            tenant = self._registry.tenant(body.model_id)
            return self._registry.in_order(
                tenant, body.seq_id, lambda: load(tenant, tenant.trained)
            )
        if body.session_id is None or body.model_seq_id is None:
            raise ConfigError("model_id: missing; without it, give session_id and model_seq_id")
        shape = AdapterShape(**info.shape)

        def make(tenant: Tenant) -> Result:
            return load(tenant, Adapter(self._model, shape, 0))

        return self._create(body.session_id, body.model_seq_id, shape, body.user_metadata, make)

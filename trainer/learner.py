"""Your own training loop: a model that learns call by call, and an engine that samples from it.

Importing this module loads no torch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from vf.inference.models.token_model import TokenModel
from vf.runtime.errors import ConfigError
from vf.runtime.extras import training_packages
from vf.runtime.open_files import raise_limit
from vf.runtime.temporary import make_temporary_folder, remove_tree
from vf.traces.messages import as_messages
from vf.trainer.cleanup_stack import CleanupStack
from vf.trainer.collecting.background_loop import BackgroundLoop, BackgroundSampler
from vf.trainer.early_checks import check_names
from vf.trainer.learning.losses.custom_loss import check_loss
from vf.trainer.processes.launch import leave_world, world
from vf.trainer.run.setup import ProbePrompt, Setup
from vf.trainer.settings.learner_settings import learner_config

if TYPE_CHECKING:
    import torch

    from vf.trainer.canary import Probed
    from vf.trainer.learning.batches.batch import Sample
    from vf.trainer.learning.losses.policy_gradient import LossFn
    from vf.trainer.learning.objective import UpdateStats

PROBE = "Count from one to five. /=:#\t"


class Learner:
    """A model to train, and the engine that samples from it: the parts of a training step.

    Example::

        with vf.Learner("tiny", lora_rank=16) as learner:
            sampler = learner.sampler()
            for step in range(20):
                traces = await vf.rollouts(env, sampler, tasks)
                learner.forward_backward(vf.samples(traces))
                learner.optim_step(learning_rate=1e-3)
                learner.publish()
            learner.save("checkpoint")

    Its methods block, and may be called while an event loop is running. Call them from one thread
    at a time. Use it as a context manager: leaving it stops the engine.

    Under ``accelerate launch``, every process creates a learner. That of rank 0 returns; the others
    take part in its work until it is closed, and then end their process.

    Args:
        model: A local folder or a hub name; ``tiny`` is the model that ships with the library.
        inference: The engine: ``embedded`` (the default), ``vllm``, the URL of a vLLM server, or a
            table of settings as ``[inference]``.
        **settings: Those of ``[trainer.args]`` that are not the loop's, such as ``lora_rank``,
            ``temperature`` or ``loss_fn``; ``backend`` and ``tinker`` as in ``[trainer]``. ``seed``
            seeds torch and :mod:`random`.

    Attributes:
        config: The settings.
        policy: The model that is trained.
        engine: What samples.
        teacher: What a ``teacher_model`` says of samples.
        version: The version of the weights that the sampler has; each :meth:`publish` counts it up.

    Raises:
        ConfigError: If a setting is wrong, the model cannot be loaded, or a package is missing.
        EngineError: If the engine does not start.
        TrainingError: If the engine does not sample from the model that is trained.
    """

    def __init__(
        self, model: str, *, inference: str | Mapping[str, Any] | None = None, **settings: Any
    ) -> None:
        config = learner_config(model, inference, settings)
        raise_limit()
        check_names(config)  # before the seconds that importing torch takes
        with training_packages():
            from accelerate.utils import set_seed

            from vf.trainer.follower import follow
            from vf.trainer.preflight import check_model, fitted
            from vf.trainer.run.components import make_renderer
        if world().rank > 0:
            follow(config)
            raise SystemExit(0)
        model_config = check_model(config)
        config = fitted(config, model_config).config
        set_seed(config.args.seed)
        renderer = make_renderer(config)
        probe = ProbePrompt.of(renderer, renderer.prompt(as_messages(PROBE), []))
        path = make_temporary_folder("learner")
        self._closing = CleanupStack()
        self._closing.add(lambda: remove_tree(path))
        setup = Setup(config, renderer, probe, path / "published", path / "inference.log")
        with self._closed_on_error():
            self._begin(setup)
            self.publish(0)

    @classmethod
    def of(cls, setup: Setup) -> Self:
        """Return the learner of a run; it publishes nothing yet.

        Raises:
            ConfigError: If the model cannot be loaded.
            EngineError: If the engine does not start.
        """
        learner = cls.__new__(cls)
        learner._closing = CleanupStack()
        with learner._closed_on_error():
            learner._begin(setup)
        return learner

    def _begin(self, setup: Setup) -> None:
        from vf.trainer.engines import build_engine, build_policy
        from vf.trainer.learning.teacher import Teacher

        self.config = setup.config
        self.version = -1
        self._setup = setup
        self._unusable: str | None = None  # why
        self._accumulated = self._unpublished = self._holding = False
        self.policy = build_policy(setup.config)
        self._closing.add(self.policy.ranks.stop)
        leave_world()
        self.engine = build_engine(setup, self.policy)
        self._closing.add(self.engine.stop)
        self.engine.start(setup.say)
        self._loop = BackgroundLoop()
        self._closing.add(self._loop.stop)
        self.teacher = Teacher(self.policy, self._loop, self.engine.check, self.training)
        self._closing.add(self.teacher.close)
        self.teacher.check(setup.renderer.tokenizer)
        self._client = self.engine.sampler(setup.config.args.generation_timeout)
        self._closing.add(lambda: self._loop.call(self._client.close(), lambda: None))

    def sampler(self) -> TokenModel:
        """Return the model as the engine samples from it: for :func:`vf.rollouts`, ``vf.evaluate``.

        It follows :meth:`publish`. By default it samples as the settings say (``max_tokens``,
        ``temperature`` and so on).
        """
        self._check_open()
        args = self.config.args
        return TokenModel(
            BackgroundSampler(self._loop, self._client, self._check_published),
            self._setup.renderer,
            max_seq_len=args.max_seq_len,
            max_prompt_len=args.max_prompt_len,
            thinking_history=self.config.inference.thinking_history,
            sampling=args.sampling,
            record_experts=args.router_replay != "off",
        )

    def forward(self, samples: Sequence[Sample]) -> list[torch.Tensor]:
        """Return the log-probabilities of samples under the weights as they are, without gradient.

        Returns:
            One float32 ``[T]`` per sample of T tokens, in nats, at the settings' temperature; 0
            for tokens that are not trained.

        Raises:
            ConfigError: If these are no samples, or the learner is closed.
        """
        self._check_open()
        _check_samples("forward", samples)
        with self.training():
            return self.policy.sample_logprobs(list(samples))

    def forward_backward(
        self, samples: Sequence[Sample], loss_fn: str | LossFn | None = None
    ) -> UpdateStats:
        """Add the gradient of the loss on samples to that of the optimizer step to come.

        Gradients of several calls add up to that of one with all samples, normalised over the
        whole step. If an exception is raised on the way, the gradient of the step is dropped, and
        that of its earlier calls with it.

        Args:
            samples: Samples from :func:`vf.samples`; without any, nothing is added.
            loss_fn: A name of ``trainer.args.loss_fn``; or a function from
                :class:`~vf.trainer.learning.losses.policy_gradient.LossArrays` to the loss of each
                token, float ``[B, L]``, or to ``TokenLosses``. By default that of the settings.

        Returns:
            What the samples would make of a step of their own: ``loss``, ``tokens``, ``kl_v1``,
            ``entropy`` and the rest.

        Raises:
            ConfigError: If there is no such loss, these are no samples, or the learner is closed.
            TrainingError: If your loss is at fault, memory ran out twice, or another trainer
                process is gone.
        """
        self.accumulate(samples, loss_fn)
        return self.policy.measure()

    def accumulate(self, samples: Sequence[Sample], loss_fn: str | LossFn | None = None) -> None:
        """Do :meth:`forward_backward`, without waiting for the metrics of other processes.

        Raises:
            ConfigError: If :meth:`forward_backward` raises it.
            TrainingError: If :meth:`forward_backward` raises it.
        """
        self._check_open()
        _check_samples("forward_backward", samples)
        check_loss(loss_fn, self.config.args, shared=self.policy.ranks.count > 1)
        try:
            with self.training():
                self.policy.accumulate(samples, loss_fn)
        except BaseException:
            self._give_up()
            raise
        self._accumulated = True

    def optim_step(self, learning_rate: float) -> UpdateStats:
        """Take a step of AdamW with the gradient that was added up, and begin the next one's.

        Where there is no token to learn from, none is taken, nor where loss or gradient are not
        finite (``skipped``).

        Args:
            learning_rate: The learning rate of this step.

        Returns:
            What the step did: ``grad_norm``, ``loss``, ``tokens``, ``skipped`` and the rest.

        Raises:
            ConfigError: If there was no forward_backward, the rate is not a number of at least 0,
                or the learner is closed.
            TrainingError: If another trainer process is gone.
        """
        self._check_open()
        if not (math.isfinite(learning_rate) and learning_rate >= 0.0):
            raise ConfigError(f"learning_rate = {learning_rate}: it must be a number of at least 0")
        if not self._accumulated:
            raise ConfigError(
                "optim_step without a gradient: call forward_backward first, and again after each "
                "step or exception"
            )
        self._accumulated = False
        if not self.policy.accumulated.tokens:
            return self.policy.drop()
        with self.training():
            stats = self.policy.finish(learning_rate)
        self._unpublished = self._unpublished or not stats.skipped
        return stats

    @contextmanager
    def training(self) -> Iterator[None]:
        """Make room for training until the block ends; each method does so by itself.

        Around several of them, it spares a server that sleeps meanwhile waking up in between.
        """
        if self._holding:
            yield
            return
        self._holding = True
        try:
            with self.engine.training():
                yield
        finally:
            self._holding = False

    def publish(self, version: int | None = None) -> float:
        """Have the sampler use the weights as they are now, and check that it does.

        Args:
            version: The version of these weights, as tokens in a trace carry it; by default the
                next.

        Returns:
            How far the engine's log-probabilities are from the model's on a short completion: the
            mean of \\|log q − log p\\| in nats.

        Raises:
            TrainingError: If they differ by more than ``inference.logprob_tolerance``.
            EngineError: If the weights could not be published.
            ConfigError: If the learner is closed, or at first the engine leaves out a part of the
                adapter (``inference.canary``).
        """
        from vf.trainer.canary import try_adapter, wants_canary
        from vf.trainer.engines import check_gap, probe

        self._check_open()
        first, version = self.version < 0, self.version + 1 if version is None else version
        prompt, stops = self._setup.probe, self._setup.renderer.stop_token_ids
        tolerance = self.config.inference.logprob_tolerance

        def bring() -> Probed:
            self.engine.publish(version)
            self.version, self._unpublished = version, False
            ask = self.engine, self.policy, version, prompt, stops
            wait = self.config.args.generation_timeout
            work = probe(*ask, timeout=wait, tolerance=tolerance)
            return self._loop.call(work, self.engine.check)

        probed = bring()
        check_gap(probed.gap, tolerance, version)
        if first and wants_canary(self.config, self.policy):
            tried = self.policy, prompt, probed.token_ids, bring, self.engine.training
            try_adapter(*tried, tolerance=tolerance, say=self._setup.say)
            return self.publish(version)
        return probed.gap

    def save(self, path: str | Path) -> Path:
        """Write a checkpoint: weights, optimizer, random states, and the model for export.

        Args:
            path: The checkpoint's folder; a checkpoint that is there already is replaced.

        Raises:
            ConfigError: If there is something else, or the learner is closed.
            CheckpointError: If it could not be written; what was there is whole.
        """
        from vf.trainer.saving.learner_folder import save_to

        self._check_open()
        save_to(Path(path), self.policy, self._setup.renderer.tokenizer)
        return Path(path)

    def load(self, path: str | Path) -> int:
        """Go back to a checkpoint, and publish its weights. A gradient under way is dropped.

        Args:
            path: A checkpoint's folder, or a run's, whose newest checkpoint is then taken.

        Returns:
            How many optimizer steps had been taken.

        Raises:
            ConfigError: If it is unreadable, of another model or adapter, or the learner is closed.
        """
        from vf.trainer.saving.learner_folder import load_from

        self._check_open()
        with self.training():
            self.policy.drop()
            self._accumulated = False
            load_from(Path(path), self.policy)
        self.publish()
        return self.policy.optimizer_steps

    def close(self) -> None:
        """Stop the engine, and let other trainer processes end. Safe to call twice."""
        self._unusable = "it was closed"
        self._closing.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @contextmanager
    def _closed_on_error(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self.close()
            raise

    def _check_open(self) -> None:
        if self._unusable is not None:
            raise ConfigError(f"this learner cannot be used any more: {self._unusable}")

    def _check_published(self) -> None:
        """Raise ConfigError if it would not be known which weights are sampled from."""
        self._check_open()
        if self._unpublished and self.config.inference.in_process:
            raise ConfigError(
                "the weights have changed since they were published, and the embedded engine "
                "samples from the same module: call Learner.publish before the next rollouts"
            )

    def _give_up(self) -> None:
        """Leave no half gradient behind."""
        self._accumulated = False
        if self.policy.ranks.count == 1:
            self.policy.drop()
        else:
            self._unusable = "a step was interrupted, and its trainer processes no longer agree"


def _check_samples(where: str, samples: Sequence[Any]) -> None:
    from vf.trainer.learning.batches.batch import Sample

    for sample in samples:
        if not isinstance(sample, Sample):
            raise ConfigError(
                f"{where} takes samples, not {type(sample).__name__}: make them with vf.samples"
            )

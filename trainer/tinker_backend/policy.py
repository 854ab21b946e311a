"""The model that learns on a server of the Tinker API: what ``Policy`` is on this machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from vf.inference.tinker_wire import load_sdk
from vf.runtime.errors import ConfigError, TrainingError
from vf.traces.images import Image
from vf.trainer.learning.batches.batch import Sample
from vf.trainer.learning.batches.normalisation import Totals, scale, weighted
from vf.trainer.learning.batches.overlong import fit
from vf.trainer.learning.learning_rate import Course
from vf.trainer.learning.losses.custom_loss import Loss
from vf.trainer.learning.losses.importance_sampling import Correction
from vf.trainer.learning.model.forward import Predictions
from vf.trainer.learning.objective import Objective, UpdateStats, is_finite
from vf.trainer.learning.passes import Phase, unwatched
from vf.trainer.learning.policy import Policy
from vf.trainer.learning.sharding.ranks import Ranks
from vf.trainer.settings.config import TrainerArgs
from vf.trainer.tinker_backend.record import RECORD, saved_path, write_record
from vf.trainer.tinker_backend.server_loss import CROSS_ENTROPY, Row, server_loss
from vf.trainer.tinker_backend.service import TinkerService


@dataclass(frozen=True, slots=True)
class RemoteBase:
    """The model beneath the adapter; another has another fingerprint."""

    fingerprint: str


@dataclass
class UnwatchedPasses:
    """Stands for the passes over micro-batches, which the server makes."""

    phase: Phase = unwatched


class TinkerPolicy:
    """The adapter on the server, with its optimizer; the learning rate's course is here.

    Data are sent when the optimizer step is taken: what a token weighs depends on all of them.

    Args:
        service: The connection.
        args: ``[trainer.args]``.
        hidden_size: Width of the model, for ``learning_rate = "auto"``.

    Raises:
        ConfigError: If a custom loss cannot be found.

    Attributes:
        service: The connection.
        position: Where the learning rate is in its course, in optimizer steps.
        optimizer_steps: How many were taken.
    """

    def __init__(self, service: TinkerService, args: TrainerArgs, hidden_size: int) -> None:
        self.args = args
        self.service, self._sdk = service, load_sdk()
        self.ranks = Ranks()
        self.sharding = self.ranks.sharding
        self.objective = Objective(args, ranks=self.ranks)
        self.course = Course.of(args, hidden_size)
        self.position = self.optimizer_steps = 0
        self.weights = RemoteBase(f"tinker {service.base_model}")
        self.passes = UnwatchedPasses()
        self._waiting: list[tuple[list[Sample], Loss]] = []  # of the optimizer step under way
        self._totals, self._added = Totals(), Totals()
        self._computed = 0  # tokens sent since the last optimizer step

    @property
    def learning_rate(self) -> float:
        """The rate that the next optimizer step will use."""
        return self.course.rate(self.position)

    @property
    def accumulated(self) -> Totals:
        """What the optimizer step under way is made of so far."""
        return self._totals

    def filled(self, samples: Sequence[Sample]) -> bool:
        """Return whether samples should be sent already: never before the last is there."""
        return False

    def accumulate(self, samples: Sequence[Sample], loss: Loss = None) -> None:
        """Add samples to the optimizer step under way.

        Args:
            samples: The samples, with all branches of their rollouts.
            loss: Another than that of the settings, by name or as a function.

        Raises:
            TrainingError: If a sample is too long and refused.
        """
        samples, too_long = fit(samples, self.args)
        self._added = replace(Totals.of(samples), too_long=too_long)
        self._totals += self._added
        self._waiting.append((weighted(samples, self.args), loss))

    def measure(self) -> UpdateStats:
        """Return what the last :meth:`accumulate` added, as if it were the whole step.

        Raises:
            TrainingError: If the server refused or failed, or a custom loss is at fault.
            EngineError: If it has been away for too long.
        """
        samples, loss = self._waiting[-1]
        factor, sums = scale(self._added, self.args), self.objective.empty_sums()
        for row, logprobs in self._forward(samples):
            sums += self._objective(loss)(row.batch, _predictions(row, logprobs))[1]
        return self.objective.stats(sums, factor, float("nan"), self._added)

    def drop(self) -> UpdateStats:
        """Forget the data of the optimizer step under way; say what they were."""
        totals, self._totals = self._totals, Totals()
        self._waiting, self._computed = [], 0
        return self.objective.stats(self.objective.empty_sums(), 0.0, 0.0, totals)

    def finish(self, learning_rate: float | None = None) -> UpdateStats:
        """Send what was accumulated, and take the optimizer step.

        Args:
            learning_rate: The learning rate of this step; by default that of the settings' course.

        Raises:
            TrainingError: If the server refused or failed, or the loss is not finite: the run is
                then to be resumed from a checkpoint.
            EngineError: If the server has been away for too long.
        """
        args, rate = self.args, self.learning_rate if learning_rate is None else learning_rate
        totals, factor = self._totals, scale(self._totals, self.args)
        passes = [self._send(samples, loss, factor) for samples, loss in self._waiting if samples]
        beta1, beta2 = args.betas
        step = self.service.trained.optim_step(
            self._sdk.AdamParams(
                learning_rate=rate,
                beta1=beta1,
                beta2=beta2,
                eps=args.eps,
                weight_decay=args.weight_decay,
                grad_clip_norm=args.max_grad_norm,
            )
        )
        sums = sum((finish() for finish in passes), self.objective.empty_sums())
        metrics = self.service.wait(step, "optim_step").metrics or {}
        totals = replace(totals, computed=self._computed)
        self.drop()
        if not is_finite(sums):
            raise TrainingError(
                "the loss is not finite, and the server has taken the optimizer step: resume from "
                "the last checkpoint, with a lower learning_rate"
            )
        self.optimizer_steps += 1
        self.position += 1
        return self.objective.stats(sums, factor, metrics.get("grad_norm:mean", 0.0), totals)

    def with_old_logprobs(self, samples: Sequence[Sample]) -> list[Sample]:
        """Return samples that know their log-probabilities with the weights as they are now.

        Without ``importance_sampling_mode`` nothing asks for them, and samples stay as they are.

        Raises:
            TrainingError: If a sample is too long and refused, or the server refused or failed.
            EngineError: If it has been away for too long.
        """
        if Correction.of(self.args) is None or not samples:
            return list(samples)
        fitted, _ = fit(samples, self.args)
        old_logprobs = [tuple(logprobs.tolist()) for logprobs in self.sample_logprobs(fitted)]
        return [
            replace(sample, old_logprobs=logprobs)
            for sample, logprobs in zip(fitted, old_logprobs, strict=True)
        ]

    def logprobs(
        self, prompt_ids: list[int], token_ids: list[int], images: Sequence[Image] = ()
    ) -> list[float]:
        """Return the log-probability of each token after the prompt, which has no images."""
        assert not images
        [logprobs] = self.sample_logprobs([Sample.of(prompt_ids, token_ids)])
        return logprobs[len(prompt_ids) :].tolist()

    def sample_logprobs(self, samples: Sequence[Sample]) -> list[torch.Tensor]:
        """Return log p of each sample's trained tokens.

        Returns:
            One float32 ``[T]`` per sample of T tokens; 0 where nothing is trained.
        """
        return [logprobs * row.batch.loss_mask[0] for row, logprobs in self._forward(samples)]

    def begin_save(self, name: str) -> Callable[[Path], None]:
        """Begin to save weights and optimizer on the server as they are now.

        Args:
            name: Their name there.

        Returns:
            Waits until they are saved, and writes where they are into a folder. It raises
            TrainingError or EngineError if they could not be saved.
        """
        saving = self.service.trained.save_state(name, overwrite=True)

        def write(folder: Path) -> None:
            write_record(folder, self.service.wait(saving, "save_state").path)

        return write

    def load(self, folder: Path) -> None:
        """Go back to weights and optimizer of a checkpoint.

        Raises:
            ConfigError: If the checkpoint is of a run on this machine, or its record is unreadable.
            TrainingError: If the server does not have it.
        """
        path = saved_path(folder)
        if path is None:
            raise ConfigError(
                f"{folder} holds no weights of a Tinker API server ({RECORD}): it is of a run with "
                'trainer.backend = "local"'
            )
        self.drop()
        self.service.wait(self.service.trained.load_state_with_optimizer(path), f"loading {path}")

    def forget(self, folder: Path) -> None:
        """Delete from the server what a checkpoint is the record of."""
        if (path := saved_path(folder)) is not None:
            self.service.delete(path)

    def _send(self, samples: list[Sample], loss: Loss, factor: float) -> Callable[[], torch.Tensor]:
        """Begin forward and backward passes; return what waits for them, and returns their sums."""
        objective = self._objective(loss)
        first = not any(sample.old_logprobs for sample in samples)
        theirs = server_loss(self.args, loss, first=first)
        if theirs is not None:
            rows = [Row.of_policy_gradient(sample, factor, self._sdk) for sample in samples]
            begun = self._begin(rows, theirs.name, theirs.config)

            def finish() -> torch.Tensor:
                sums = objective.empty_sums()
                for row, logprobs in begun():
                    sums += objective(row.batch, _predictions(row, logprobs))[1]
                return sums

            return finish
        rows, sums = [], objective.empty_sums()
        for sample, (row, logprobs) in zip(samples, self._forward(samples), strict=True):
            value, own = objective(row.batch, _predictions(row, logprobs))
            sums += own
            [gradient] = torch.autograd.grad(value, logprobs)
            rows.append(Row.of_cross_entropy(sample, -factor * gradient, self._sdk))
        begun = self._begin(rows, CROSS_ENTROPY)

        def wait() -> torch.Tensor:
            begun()
            return sums

        return wait

    def _forward(self, samples: Sequence[Sample]) -> list[tuple[Row, torch.Tensor]]:
        ones = [torch.ones(len(sample)) for sample in samples]
        rows = [
            Row.of_cross_entropy(sample, weights, self._sdk)
            for sample, weights in zip(samples, ones, strict=True)
        ]
        return self._begin(rows, CROSS_ENTROPY, gradient=False)() if rows else []

    def _begin(
        self,
        rows: list[Row],
        name: str,
        config: dict[str, float] | None = None,
        *,
        gradient: bool = True,
    ) -> Callable[[], list[tuple[Row, torch.Tensor]]]:
        """Begin passes; return what waits for log p of each row's tokens, float32 ``[T]``."""
        trained = self.service.trained
        call = trained.forward_backward if gradient else trained.forward
        future = call([row.datum for row in rows], name, config)
        self._computed += sum(row.batch.input_ids.numel() - 1 for row in rows)

        def wait() -> list[tuple[Row, torch.Tensor]]:
            outputs = self.service.wait(future, call.__name__).loss_fn_outputs
            values = [output["logprobs"].to_torch().float() for output in outputs]
            first = torch.zeros(1)  # nothing predicts the first token
            return [
                (row, torch.cat([first, value])) for row, value in zip(rows, values, strict=True)
            ]

        return wait

    def _objective(self, loss: Loss) -> Objective:
        return self.objective if loss is None else Objective(self.args, loss)


def _predictions(row: Row, logprobs: torch.Tensor) -> Predictions:
    """Return what the server says of a row's trained tokens, with a gradient in all of them.

    Of the entropy it says nothing: −log p of what was sampled is an estimate of it.
    """
    trained = logprobs.requires_grad_()[row.batch.loss_mask[0]]
    return Predictions(trained, -trained.detach())


AnyPolicy = Policy | TinkerPolicy


def local_policy(policy: AnyPolicy, what: str) -> Policy:
    """Return a policy whose model is in this process.

    Args:
        policy: The policy of a run.
        what: The feature that needs it, for the message.

    Raises:
        ConfigError: If the model is on a server.
    """
    if isinstance(policy, TinkerPolicy):
        raise ConfigError(
            f'{what} looks into the model, which is on a server with trainer.backend = "tinker"; '
            'set it to "local"'
        )
    return policy

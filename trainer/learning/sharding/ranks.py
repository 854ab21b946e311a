"""Several trainer processes that act as one.

Rank 0 runs the whole trainer; the others follow it and only hold the model and the optimizer.
Rank 0 sends every rank its commands. In an update each computes the gradient of its own share of
the samples, one sum over the ranks gives all of them the gradient of the whole batch, and each
takes the same step: what one process would have done, up to the order of additions.

Commands travel over a gloo group of their own, on which a follower may wait as long as rollouts
take. Sums travel over the default group (NCCL on GPUs), where no rank should be late. If a process
dies, the launcher ends the others (see :mod:`vf.trainer.processes.launch`).

By default every rank holds the whole model. With FSDP (:mod:`vf.trainer.learning.sharding.fsdp`) or
ZeRO (:mod:`vf.trainer.learning.sharding.zero`) each holds a part, and all ranks together read
parameters and run the model.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from vf.runtime.errors import ConfigError, PeerLost, TrainingError
from vf.trainer.learning.sharding.copies import Copies
from vf.trainer.learning.sharding.fsdp import Fsdp
from vf.trainer.learning.sharding.rank_commands import (
    Accumulate,
    Command,
    Finish,
    Save,
    Stop,
    Together,
)
from vf.trainer.learning.sharding.zero import Zero
from vf.trainer.processes.launch import is_fsdp, zero_stage

log = logging.getLogger(__name__)

Value = TypeVar("Value")

LATE = timedelta(minutes=30)  # in a sum, or in joining: beyond that, a process hangs
IDLE = timedelta(days=30)  # between two commands
BUCKET_BYTES = 256 * 2**20


def choose_sharding(dtype: torch.dtype = torch.float32) -> Copies:
    """Return how the launcher's settings want the model to be held.

    Args:
        dtype: In what it computes.

    Raises:
        ConfigError: If the launcher's settings are not possible.
    """
    if is_fsdp():
        return Fsdp(dtype)
    return Zero(dtype) if zero_stage() is not None else Copies(dtype)


class Ranks:
    """All trainer processes, as one of them sees them. With one process, this costs nothing.

    Args:
        dtype: In what the trained model computes.

    Attributes:
        accelerator: Accelerate's handle on this process and its device.
        count: How many processes there are.
        rank: Which one this is; 0 leads.
        sharding: How the processes hold the model between them.
        savers: The group over which they write a checkpoint while they train; None with one.

    Raises:
        ConfigError: If the launcher's settings are not possible.
    """

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        self.sharding = choose_sharding(dtype)
        self.accelerator = self.sharding.accelerator(LATE)
        self.count: int = self.accelerator.num_processes
        self.rank: int = self.accelerator.process_index
        self._commands: Any = None
        self.savers: Any = None
        self._owed = False  # whether the followers are in a sum that this process has not joined
        if self.count > 1:
            self._commands = dist.new_group(backend="gloo", timeout=IDLE)
            self.savers = dist.new_group(backend="gloo", timeout=IDLE)

    def tell(self, commands: Sequence[Command]) -> None:
        """Send every rank its command; rank 0's own comes first and is not sent.

        Raises:
            TrainingError: If a rank is gone.
        """
        if self.count == 1:
            return
        joint = Accumulate | Finish | Together | Save
        self._owed = any(isinstance(command, joint) for command in commands)
        with _all_there():
            dist.scatter_object_list([None], list(commands), src=0, group=self._commands)

    def listen(self) -> Command:
        """Wait for rank 0's next command.

        Raises:
            TrainingError: If rank 0 is gone.
        """
        received: list[Any] = [None]
        with _all_there():
            dist.scatter_object_list(received, None, src=0, group=self._commands)
        command: Command = received[0]
        return command

    def led(self, value: Value) -> Value:
        """Return rank 0's value on every rank.

        Raises:
            TrainingError: If a rank is gone.
        """
        if self.count == 1:
            return value
        box = [value]
        with _all_there():
            dist.broadcast_object_list(box, src=0, group=self._commands)
        return box[0]

    @contextmanager
    def together(self, path: str, *args: Any) -> Iterator[None]:
        """Let the other ranks run a method of the policy too, where the model is sharded.

        Within another such method they run it anyway.

        Args:
            path: The method, as an attribute path of the policy.
            *args: Its arguments.

        Raises:
            TrainingError: If a rank is gone.
        """
        if not self.sharding.together or self.rank or self._owed:
            yield
            return
        self.tell([Together(path, args)] * self.count)
        yield
        self.joined()

    def agree(self, base: str, model: Any) -> None:
        """Check that all ranks have loaded the same model.

        Args:
            base: A hash of the weights that are not trained; empty if rank 0's will replace them.
            model: The module.

        Raises:
            ConfigError: If a rank differs from rank 0; names the first.
            TrainingError: If a rank is gone.
        """
        if self.count == 1:
            return
        shapes = [
            (name, tuple(tensor.shape), tensor.dtype) for name, tensor in model.named_parameters()
        ]
        values: list[Any] = [None] * self.count
        with _all_there():
            dist.all_gather_object(values, (base, shapes), group=self._commands)
        for rank, (theirs, their_shapes) in enumerate(values):
            if theirs not in ("", values[0][0]) or their_shapes != values[0][1]:
                raise ConfigError(
                    f"trainer process {rank} has another model than process 0: the same files, "
                    "settings and versions must be on all machines"
                )

    def align(self, parameters: Sequence[torch.Tensor]) -> None:
        """Give every rank the parameters of rank 0, in place.

        Args:
            parameters: The parameters, on this process's device or, before sharding, on the CPU.

        Raises:
            TrainingError: If a rank is gone.
        """
        if self.count == 1 or self.sharding.one_loads:
            return
        group = self._commands if self.sharding.together else None
        with _all_there():
            for parameter in parameters:
                dist.broadcast(parameter.detach(), src=0, group=group)

    def total(self, sums: torch.Tensor) -> None:
        """Replace statistics by their sums over the ranks, in the middle of an update.

        Args:
            sums: float64 ``[S]``, summed in place.

        Raises:
            TrainingError: If a rank is gone or hangs.
        """
        if self.count == 1:
            return
        totals = sums.to(self.accelerator.device)
        with _all_there():
            dist.all_reduce(totals)
        sums.copy_(totals)

    def gathered(self, value: Value) -> list[Value]:
        """Return what each rank has, on rank 0; on the others nothing.

        Raises:
            TrainingError: If a rank is gone.
        """
        if self.count == 1:
            return [value]
        values: list[Any] | None = [None] * self.count if self.rank == 0 else None
        with _all_there():
            dist.gather_object(value, values, dst=0, group=self._commands)
        return values or []

    def add_up(self, parameters: Sequence[torch.Tensor], sums: torch.Tensor) -> None:
        """Replace gradients and statistics by their sums over the ranks.

        Gradients of a sharded model are summed already.

        Args:
            parameters: The trained ones. Those without a gradient on any rank are left without.
            sums: float64 ``[S]``, summed in place.

        Raises:
            TrainingError: If a rank is gone or hangs.
        """
        if self.count == 1:
            return
        if self.sharding.together:
            self.total(sums)
            self.joined()
            return
        touched = torch.tensor([p.grad is not None for p in parameters], dtype=sums.dtype)
        totals = torch.cat([sums, touched]).to(self.accelerator.device)
        with _all_there():
            dist.all_reduce(totals)
        sums.copy_(totals[: len(sums)])
        flags = totals[len(sums) :].tolist()
        used = [parameter for parameter, flag in zip(parameters, flags, strict=True) if flag]
        for bucket in _buckets(used):
            flat = torch.cat([_gradient(parameter).reshape(-1) for parameter in bucket])
            flat = flat.to(self.accelerator.device)
            with _all_there():
                dist.all_reduce(flat)
            parts = torch.split(flat, [parameter.numel() for parameter in bucket])
            for parameter, part in zip(bucket, parts, strict=True):
                parameter.grad = part.view_as(parameter).to(parameter.device)
        self.joined()

    def joined(self) -> None:
        """Note that this process has done its part of the command it sent to the followers."""
        self._owed = False

    def stop(self) -> None:
        """Let the followers end, and disconnect. Safe to call twice.

        If this process failed in the middle of an update, the followers wait for its sum and
        cannot listen: the launcher ends them once this process has exited.
        """
        if self._commands is None or self._owed:
            return
        if self.rank == 0:
            try:
                self.tell([Stop()] * self.count)
            except TrainingError as error:
                log.warning("no need to stop the other trainer processes: %s", error)
                self._commands = None
                return
        self._commands = None
        dist.destroy_process_group()


def _gradient(parameter: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad


def _buckets(parameters: Sequence[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    """Yield parameters to be summed in one call, so that a large model is not held twice."""
    bucket: list[torch.Tensor] = []
    size = 0
    for parameter in parameters:
        if bucket and size + parameter.nbytes > BUCKET_BYTES:
            yield bucket
            bucket, size = [], 0
        bucket.append(parameter)
        size += parameter.nbytes
    if bucket:
        yield bucket


@contextmanager
def _all_there() -> Iterator[None]:
    """Translate errors: both backends raise a bare RuntimeError if a peer is gone or late."""
    try:
        yield
    except RuntimeError as error:
        raise PeerLost(f"a trainer process is gone or hangs: {error}") from error


def together(path: str) -> Callable[[Callable[..., Value]], Callable[..., Value]]:
    """Make a method one that all ranks run together (:meth:`Ranks.together`).

    Args:
        path: The method, as an attribute path of the policy.
    """

    def decorate(method: Callable[..., Value]) -> Callable[..., Value]:
        @functools.wraps(method)
        def run(self: Any, *args: Any) -> Value:
            with self.ranks.together(path, *args):
                return method(self, *args)

        return run

    return decorate

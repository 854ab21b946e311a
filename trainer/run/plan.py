"""The plan of a run: the results of preflight."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from vf.inference.rendering.renderer import Renderer
from vf.trainer.run.run_environment import RunEnvironment
from vf.trainer.settings.config import Config, TrainerArgs


@dataclass(frozen=True, slots=True)
class Memory:
    """What trainer and server are predicted to need.

    Attributes:
        trainer: Bytes of a trainer process at its peak, by purpose.
        server: Bytes of the server that the run starts, on each of its GPUs, by purpose; empty
            where it starts none.
        contexts: Of max_seq_len tokens, that the server's key-value cache holds: of all its copies.
        shared: Whether the server has a GPU that the trainer has, too.
        awake: Bytes that the trainer holds while the server is awake, where they take turns.
        device: What they are on, in words.
        cuda: Whether it is a CUDA device.
        total: The device's memory, in bytes.
        free: Those that nothing else uses.
    """

    trainer: dict[str, int]
    server: dict[str, int]
    contexts: float
    shared: bool
    awake: int | None
    device: str
    cuda: bool
    total: int
    free: int


# Where a server of the Tinker API has the model.
NOTHING_HERE = Memory({}, {}, 0.0, False, None, "a server", False, 0, 0)


@dataclass(frozen=True, slots=True)
class Plan:
    """A checked run: what it is made of, and what it will take.

    Attributes:
        config: The settings.
        environments: The environments, with their tasks.
        renderer: Chat template and parser.
        probe_ids: The first train task's prompt, which the engine is probed with.
        parameters: Parameters of the model.
        hidden_size: Width of the model.
        memory: What trainer and server are predicted to need.
        template: What the chat template makes of conversations, in one line.
        budget: How ``micro_batch_tokens = "auto"`` was found, in one line; empty if it is a number.
        adapted: What LoRA adapts, in one line; empty if all weights are trained.
        workers: Processes that rollouts run in; 0 if they run in the trainer's.
        worker_reason: Why so many.
    """

    config: Config
    environments: Sequence[RunEnvironment]
    renderer: Renderer
    probe_ids: list[int]
    parameters: int
    hidden_size: int
    memory: Memory
    template: str
    budget: str = ""
    adapted: str = ""
    workers: int = 0
    worker_reason: str = ""

    def member(self, name: str) -> RunEnvironment:
        """Return an environment of the run by its name."""
        return next(member for member in self.environments if member.name == name)

    def args_of(self, environment: str) -> TrainerArgs:
        """Return ``[trainer.args]`` as they are in an environment, by its name."""
        return self.member(environment).args


def size_text(size: int) -> str:
    """Return a number of bytes in words: in GiB, or in MiB where it is less than one."""
    return f"{size / 2**30:,.1f} GiB" if abs(size) >= 2**30 else f"{size / 2**20:,.0f} MiB"

"""Every exception the library raises on purpose, in one tree, and helpers for their messages.

VfError
├── ConfigError            the user can fix it; commands exit with code 2
├── ToolError              raised *inside a tool* to tell the model what it did wrong
└── InfrastructureError    a part failed; never a reward (the rollout's reward is None)
    ├── ModelError         the model, its API or its engine did not answer
    │   └── EngineError    an inference engine that this process owns died or refused
    │       └── ServerDown its server went down; the request can be repeated
    ├── UserFailure        who plays the simulated user did not answer
    ├── ToolFailure        a tool raised something other than ToolError, or timed out
    ├── EnvironmentFailure reset, step or close raised or timed out
    ├── SandboxError       the sandbox failed, and not through what ran in it
    │   └── HostLost       with the machine that it was on; the rollout can be run again
    ├── RubricError        a scoring function raised or returned something out of range
    │   └── ScoringDied    its process ended in the middle of the call
    │       └── ScoringTimeout  for it ran out of time, and was killed
    ├── PlacementError     the machine on which a process was to run, or ran, was lost
    ├── WorkerLost         a process that had a piece of work ended, or cannot be reached
    └── TrainingError      the training loop cannot continue
        ├── PeerLost       another of the trainer's processes is gone
        └── CheckpointError  a checkpoint could not be written
"""

from __future__ import annotations

import copy
import difflib
import traceback
from collections.abc import Iterable
from typing import TypeVar


class VfError(Exception):
    """The root of all errors that the library raises on purpose."""


class ConfigError(VfError):
    """A setting, an argument or a file is wrong, and the message says how to fix it."""


class ToolError(VfError):
    """Raise this inside a tool to answer the model with an error message that it can learn from.

    Anything else that a tool raises is a :class:`ToolFailure`: the rollout has no reward.
    """


class InfrastructureError(VfError):
    """A part of the machinery failed. The rollout has no reward and teaches nothing."""

    boundary = "infrastructure"


class ModelError(InfrastructureError):
    """The model, its API or its engine did not answer."""

    boundary = "model"


class EngineError(ModelError):
    """An inference engine that this process owns died or refused to start."""

    boundary = "engine"


class ServerDown(EngineError):
    """The server went down. The request is lost and can be repeated."""

    boundary = "outage"


class UserFailure(InfrastructureError):
    """Whoever plays the simulated user did not answer, and not through what the policy said."""

    boundary = "user"


class PlacementError(InfrastructureError):
    """A machine on which a process was to run, or ran, was lost."""

    boundary = "placement"


class WorkerLost(InfrastructureError):
    """The process that had a piece of work ended, or can no longer be reached."""

    boundary = "worker"


class ToolFailure(InfrastructureError):
    """A tool raised an exception other than :class:`ToolError`, or ran out of time."""

    boundary = "tool"


class EnvironmentFailure(InfrastructureError):
    """An environment's ``reset``, ``step`` or ``close`` raised or ran out of time."""

    boundary = "environment"


class SandboxError(InfrastructureError):
    """A sandbox failed, and not through what ran in it: that says nothing about the model."""

    boundary = "sandbox"


class HostLost(SandboxError):
    """The machine that sandboxes run on does not answer, or has lost those that it had.

    The rollout is lost and can be run again, on another machine.
    """

    boundary = "host"


class RubricError(InfrastructureError):
    """A scoring function raised, or returned NaN or a value out of its range."""

    boundary = "rubric"


class ScoringDied(RubricError):
    """The process of a scoring function ended in the middle of the call: memory, or a crash."""


class ScoringTimeout(ScoringDied):
    """A scoring function ran out of time in its process, and was killed."""


class TrainingError(InfrastructureError):
    """The training loop cannot continue; the message names the cause."""

    boundary = "trainer"


class PeerLost(TrainingError):
    """Another of the trainer's processes is gone, or does not answer."""


class CheckpointError(TrainingError):
    """A checkpoint could not be written; those before it are whole."""


_E = TypeVar("_E", bound=BaseException)


def fresh(error: _E) -> _E:
    """Return a copy of an error that is raised more than once, with the error as its cause.

    Each time that one and the same object is raised, its traceback grows. An error that cannot be
    copied is returned as it is.
    """
    try:
        again = copy.copy(error)
    except Exception:  # whatever its class's constructor raises
        return error
    again.__cause__ = error
    return again


def did_you_mean(word: str, names: Iterable[str]) -> str:
    """Return ``" Did you mean 'x'?"`` for the nearest names, or ``""`` if none is near."""
    near = difflib.get_close_matches(word, list(names), n=3, cutoff=0.5)
    likeness = [difflib.SequenceMatcher(None, name, word).ratio() for name in near]
    near = [name for name, like in zip(near, likeness, strict=True) if like > likeness[0] - 0.2]
    return f" Did you mean {' or '.join(repr(name) for name in near)}?" if near else ""


_MOST_FRAMES = 4


def author_lines(error: BaseException, module: str) -> str:
    """Return a traceback without anything but the author's own lines, and the error itself.

    Args:
        error: The error that was raised.
        module: A module of the author's. Frames of its top-level package are the author's; of
            more than four, the last four are kept.

    Returns:
        Lines as Python prints them: file, line and code of each frame, innermost last, and then
        the exception. For a syntax error that includes the place.
    """
    package = module.partition(".")[0]
    frames = [
        (frame, line)
        for frame, line in traceback.walk_tb(error.__traceback__)
        if str(frame.f_globals.get("__name__", "")).partition(".")[0] == package
    ]
    stack = traceback.StackSummary.extract(iter(frames[-_MOST_FRAMES:]))
    shown = [*stack.format(), *traceback.format_exception_only(error)]
    return "".join(shown).rstrip("\n")


class RemoteError(Exception):
    """A function of another process raised something other than a :class:`VfError`.

    Attributes:
        traceback: What was raised there, as Python prints it.
    """

    def __init__(self, message: str, traceback: str = "") -> None:
        super().__init__(message)
        self.traceback = traceback

    def __str__(self) -> str:
        return "\n\n".join(filter(None, [self.args[0], self.traceback]))

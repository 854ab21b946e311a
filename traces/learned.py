"""What the loss made of the tokens of a rollout: one JSON line per branch and optimizer step.

A training run writes them for some groups of each step, to ``learned/step-N.jsonl`` beside the
folder of its traces. They name the rollout by its id.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from vf.runtime.parse import parse_json
from vf.traces.packed import pack_floats, pack_runs, unpack_numbers, unpack_runs

FOLDER = "learned"

_FLOATS = ("advantages", "logprobs", "log_ratios", "weights")
_FLAGS = ("clipped", "dropped", "bounded")
_TEACHER = "teacher_logprobs"  # not in every line


@dataclass(slots=True)
class Learned:
    """What one optimizer step's loss was computed from, for one branch of T tokens.

    The lists other than ``mask`` have one entry per trained token, in order: N of them. The numbers
    are the float32 that the loss saw.

    Attributes:
        rollout: The id of its trace.
        branch: The branch's place in the trace.
        update: Which optimizer step of the training step, from 1.
        mask: 1 for the tokens that were trained, else 0, ``[T]``. The first token of a branch never
            is, for nothing predicts it.
        advantages: A ``[N]``, with the KL penalty in it if ``kl_penalty_type = "advantage"``, and
            with the term of a teacher if there is one.
        logprobs: The trainer's log p ``[N]``, in nats.
        log_ratios: log p − log o ``[N]``: o is the sampler's probability, or with
            ``importance_sampling_mode`` the trainer's own before the batch's first optimizer step.
        weights: The bounded importance weight ``[N]`` that the token's loss was multiplied by; 1
            without ``importance_sampling_mode``.
        clipped: 1 where a clip changed the token's loss or gradient ``[N]``.
        dropped: 1 where the token's policy gradient was dropped ``[N]``.
        bounded: 1 where the importance weight was truncated or masked ``[N]``.
        teacher_logprobs: A teacher's log p ``[N]``, in nats; empty without a teacher.
    """

    rollout: str
    branch: int
    update: int
    mask: list[int]
    advantages: list[float]
    logprobs: list[float]
    log_ratios: list[float]
    weights: list[float] = field(default_factory=list)
    clipped: list[int] = field(default_factory=list)
    dropped: list[int] = field(default_factory=list)
    bounded: list[int] = field(default_factory=list)
    teacher_logprobs: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        count = len(self.advantages)
        self.weights = self.weights or [1.0] * count
        for name in _FLAGS:
            setattr(self, name, getattr(self, name) or [0] * count)

    def to_json(self) -> bytes:
        """Return one line of JSON, with its newline."""
        return json.dumps(self.packed(), allow_nan=False).encode() + b"\n"

    def packed(self) -> dict[str, Any]:
        """Return it as JSON data: floats as text, masks and what is nearly constant as runs."""
        out = asdict(self) | {"size": len(self.mask), "mask": pack_runs(self.mask)}
        for name in (*_FLOATS, _TEACHER) if out.pop(_TEACHER) else _FLOATS:
            values = getattr(self, name)
            few = len(set(values)) < 2 and all(value - value == 0.0 for value in values)
            out[name] = pack_runs(values) if few else pack_floats(values)
        return out | {name: pack_runs(getattr(self, name)) for name in _FLAGS}

    @classmethod
    def from_json(cls, line: bytes) -> Learned:
        """Return what :meth:`to_json` wrote.

        Raises:
            ValueError: If the line is something else.
        """
        raw = parse_json(line)
        names = {entry.name for entry in fields(cls)} - {_TEACHER}
        if not isinstance(raw, dict) or not names <= raw.keys():
            raise ValueError("not a line of what was learned")
        size = raw["size"]
        if not all(isinstance(raw[name], int) for name in ("branch", "update", "size")):
            raise ValueError("branch, update or size: not a whole number")
        mask = unpack_runs("mask", raw["mask"], size)
        count = sum(map(bool, mask))
        return cls(
            rollout=str(raw["rollout"]),
            branch=raw["branch"],
            update=raw["update"],
            mask=mask,
            advantages=_numbers("advantages", raw["advantages"], count),
            logprobs=_numbers("logprobs", raw["logprobs"], count),
            log_ratios=_numbers("log_ratios", raw["log_ratios"], count),
            weights=_numbers("weights", raw["weights"], count),
            clipped=unpack_runs("clipped", raw["clipped"], count),
            dropped=unpack_runs("dropped", raw["dropped"], count),
            bounded=unpack_runs("bounded", raw["bounded"], count),
            teacher_logprobs=_numbers(_TEACHER, raw[_TEACHER], count) if _TEACHER in raw else [],
        )


def _numbers(name: str, value: Any, count: int) -> list[float]:
    if isinstance(value, str):
        numbers = unpack_numbers(value)
        if len(numbers) != count:
            raise ValueError(f"{name}: not one for each trained token")
        return numbers
    return list(map(float, unpack_runs(name, value, count)))


def learned_file(traces: Path) -> Path | None:
    """Return where a run writes what it learned from one of its traces files; None if not a run's.

    Args:
        traces: ``traces/step-N.jsonl`` of a run, or one that was put away below that folder.
    """
    parents = [folder.name for folder in traces.parents]
    if "traces" not in parents:
        return None
    run = traces.parents[parents.index("traces")].parent
    return run / FOLDER / traces.relative_to(run / "traces")


def learned_beside(traces: Path) -> dict[str, list[Learned]]:
    """Return what was learned from the rollouts of a run's traces file, by the rollout's id.

    Args:
        traces: See :func:`learned_file`.

    Returns:
        Nothing where the run has not written it, or has been killed while it did. Lines that are
        something else are left out.
    """
    file = learned_file(traces)
    by_rollout: dict[str, list[Learned]] = defaultdict(list)
    if file is not None and file.is_file():
        for line in file.read_bytes().splitlines():
            try:
                learned = Learned.from_json(line)
            except ValueError:
                continue
            by_rollout[learned.rollout].append(learned)
    return dict(by_rollout)


def write_learned(file: Path, learned: Sequence[Learned]) -> None:
    """Write a step's lines, whole or not at all."""
    file.parent.mkdir(parents=True, exist_ok=True)
    temporary = file.with_suffix(".tmp")
    temporary.write_bytes(b"".join(entry.to_json() for entry in learned))
    temporary.replace(file)

"""Two evaluations compared on the tasks that both have."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import pydantic_core

from vf.evaluation.estimators import Estimate, mean_of_tasks
from vf.evaluation.eval_config import slug
from vf.evaluation.fingerprint import FORMAT
from vf.evaluation.refusal import difference_lines
from vf.evaluation.results import read_config
from vf.evaluation.tally import SOLVED
from vf.runtime.errors import ConfigError
from vf.traces.store import TraceStore
from vf.traces.view.sources import NEEDED

MOST_DIFFERENCES = 6  # of how the two were measured, in the notes


@dataclass(frozen=True, slots=True)
class Difference:
    """One quantity in both evaluations, over the tasks that both have."""

    mean_a: float
    mean_b: float
    difference: Estimate

    @property
    def apart(self) -> bool:
        """Whether the interval of the difference does not hold 0."""
        low, high = self.difference.low, self.difference.high
        return low is not None and high is not None and not low <= 0.0 <= high


@dataclass(frozen=True, slots=True)
class Comparison:
    """One environment in two evaluations.

    Attributes:
        environment: Its name.
        model_a: Who was measured in the first; where both are called the same, with what tells
            the two evaluations apart: ``tiny (before)``.
        model_b: Who was measured in the second, likewise.
        rows: ``reward`` and ``success``, of the rollouts that were scored; and, where some were
            not, ``reward_of_all`` and ``success_of_all``, in which those count as 0.
        notes: What was left out, and how the two were measured differently.
    """

    environment: str
    model_a: str
    model_b: str
    rows: dict[str, Difference]
    notes: list[str]

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON."""
        return asdict(self)


@dataclass(slots=True)
class _Task:
    digest: str
    unscored: int = 0
    rewards: list[float] = field(default_factory=list)
    successes: list[float] = field(default_factory=list)

    def values(self, what: str) -> list[float]:
        """Return the rewards or the successes of the rollouts that were scored."""
        return self.rewards if what == "reward" else self.successes

    def of_all(self, what: str) -> list[float]:
        """Return them with a 0 for each rollout that was not scored."""
        return self.values(what) + [0.0] * self.unscored


Side = dict[tuple[str, str], dict[str, _Task]]  # by environment and model, by task


def compare(a: Path, b: Path) -> list[Comparison]:
    """Compare two evaluations, paired by task.

    The difference is the mean over the common tasks of (task's mean in B − task's mean in A), and
    its interval that of a mean of independent numbers: what makes a task hard for both cancels
    out (Miller 2024, arXiv:2411.00640, section 4.2). Reads only rewards into memory.

    Args:
        a: A results folder, a part of one, or a traces file.
        b: Another.

    Raises:
        ConfigError: If there are no traces, or nothing to pair.
    """
    first, second = _read(a), _read(b)
    environments = list(
        dict.fromkeys(name for name, _ in first if any(name == e for e, _ in second))
    )
    if not environments:
        here, there = (sorted({name for name, _ in side}) for side in (first, second))
        raise ConfigError(
            f"{a} and {b} have no environment in common: {', '.join(here)} and {', '.join(there)}"
        )
    comparisons = [
        _compare(environment, pair, first, second)
        for environment in environments
        for pair in _pairs(environment, first, second, a, b)
    ]
    comparisons = [_named_apart(comparison, a, b) for comparison in comparisons]
    for comparison in comparisons:
        comparison.notes.extend(_measured_differently(comparison.environment, a, b))
    return comparisons


def _named_apart(comparison: Comparison, a: Path, b: Path) -> Comparison:
    """Tell models of one name apart by the first part in which the two paths differ."""
    paths = [path.absolute().parts for path in (a, b)]
    here = next((n for n, (one, other) in enumerate(zip(*paths, strict=False)) if one != other), 0)
    if comparison.model_a != comparison.model_b or not here:
        return comparison
    # A folder that is named by itself repeats the environment and the model.
    own = f"{slug(comparison.environment)}-{slug(comparison.model_a)}"
    apart = [parts[here].removeprefix(own) for parts in paths]
    names = [f"{comparison.model_a} ({part})" if part else comparison.model_a for part in apart]
    return replace(comparison, model_a=names[0], model_b=names[1])


def _measured_differently(environment: str, a: Path, b: Path) -> list[str]:
    """Return in what the environment and the settings of two results folders differ.

    Its models may differ, and the seed: that is what a comparison is for.
    """
    ours, theirs = (_recorded(path, environment) for path in (a, b))
    if not ours or not theirs:
        return []
    lines = [line.strip() for line in difference_lines(ours, theirs)]
    more = len(lines) - MOST_DIFFERENCES
    return [
        *(f"measured differently (A → B): {line}" for line in lines[:MOST_DIFFERENCES]),
        *([f"and {more} more differences"] if more > 0 else []),
    ]


def _recorded(path: Path, environment: str) -> dict[str, Any]:
    """Return how an environment was measured, as the results folder says that a path is in."""
    for folder in (path, *path.absolute().parents[:3]):
        with suppress(ConfigError):
            config = read_config(folder)
            described = config.get("environments", {}).get(environment)
            if config.get("format") != FORMAT or described is None:
                continue
            apart = ("models", "environments", "seed")
            settings = {k: v for k, v in config.get("settings", {}).items() if k not in apart}
            return {**described, "settings": settings}
    return {}


def _pairs(
    environment: str, first: Side, second: Side, a: Path, b: Path
) -> Iterator[tuple[str, str]]:
    """Yield which models to compare: the only ones, or else those of one name."""
    ours = [model for name, model in first if name == environment]
    theirs = [model for name, model in second if name == environment]
    if len(ours) == 1 and len(theirs) == 1:
        yield ours[0], theirs[0]
        return
    common = [model for model in ours if model in theirs]
    if not common:
        raise ConfigError(
            f"{environment}: {a} has {', '.join(ours)} and {b} has {', '.join(theirs)}; name the "
            f"two to compare, like {a / slug(environment) / slug(ours[0])}"
        )
    yield from ((model, model) for model in common)


def _compare(environment: str, models: tuple[str, str], first: Side, second: Side) -> Comparison:
    ours, theirs = first[environment, models[0]], second[environment, models[1]]
    common = [task for task in ours if task in theirs]
    same = [task for task in common if ours[task].digest == theirs[task].digest]
    notes = []
    if len(same) < len(common):
        notes.append(
            f"{len(common) - len(same)} tasks have the same id, but another prompt or answer"
        )
    alone = len(ours) + len(theirs) - 2 * len(common)
    if alone:
        notes.append(f"{alone} tasks are in only one of the two and were skipped")
    rows = {}
    for what in ("reward", "success"):
        values = [(ours[task].values(what), theirs[task].values(what)) for task in same]
        scored = _difference(values)
        if unpaired := sum(not (mine and other) for mine, other in values):
            notes.append(f"{what}: {unpaired} tasks have no scored rollout in one of the two")
        if scored is None:
            continue
        rows[what] = scored
        of_all = _difference([(ours[t].of_all(what), theirs[t].of_all(what)) for t in same])
        if of_all is not None and of_all != scored:
            rows[f"{what}_of_all"] = of_all
    for name, side in (("A", ours), ("B", theirs)):
        if unscored := sum(side[task].unscored for task in same):
            rollouts = unscored + sum(len(side[task].rewards) for task in same)
            notes.append(f"{unscored} of {rollouts} rollouts of {name} were not scored")
    if not rows:
        raise ConfigError(f"{environment}: no task was scored in both evaluations")
    return Comparison(environment, *models, rows, notes)


def _difference(values: Sequence[tuple[Sequence[float], Sequence[float]]]) -> Difference | None:
    """Return the difference over the tasks for which both sides have values, if there are any."""
    pairs = [(fmean(mine), fmean(other)) for mine, other in values if mine and other]
    if not pairs:
        return None
    return Difference(
        fmean(mine for mine, _ in pairs),
        fmean(other for _, other in pairs),
        mean_of_tasks([other - mine for mine, other in pairs], bounds=(-1.0, 1.0)),
    )


def _read(path: Path) -> Side:
    files = [path] if path.is_file() else sorted(path.glob("**/traces.jsonl"))
    files = [file for file in files if file.parent.name != "failed" or file == path]
    if not files and path.is_dir():
        files = sorted(path.glob("*.jsonl"))
    side: Side = {}
    ids: set[str] = set()
    for file in files:
        for trace in TraceStore(file):
            if trace.id in ids:  # a line that was copied
                continue
            ids.add(trace.id)
            labels: Mapping[str, Any] = trace.info.get("eval") or {}
            name = str(labels.get("environment", trace.environment))
            tasks = side.setdefault((name, str(labels.get("model", file.stem))), {})
            content = pydantic_core.to_json([trace.task.prompt, trace.task.answer])
            digest = hashlib.blake2b(content, digest_size=16).hexdigest()
            task = tasks.setdefault(trace.task.id, _Task(digest))
            if trace.score is not None and trace.score.reward is not None:
                if not math.isfinite(trace.score.reward):
                    raise ConfigError(
                        f"--compare: the rollout {trace.id} in {file} has a reward of "
                        f"{trace.score.reward}; remove its line, or score the rollouts again "
                        "(--rescore)"
                    )
                task.rewards.append(trace.score.reward)
                if trace.score.outcome is not None:
                    task.successes.append(float(trace.score.outcome >= SOLVED))
            else:
                task.unscored += 1
    if not side:
        raise ConfigError(f"--compare: there are no traces in {path}. {NEEDED}")
    return side

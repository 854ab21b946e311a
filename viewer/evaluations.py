"""Evaluations as the page needs them: estimates with intervals, rewards, failures, differences."""

from __future__ import annotations

import hashlib
import re
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pydantic_core

from vf.evaluation.estimators import Estimate, mean_of_tasks
from vf.evaluation.eval_config import slug
from vf.evaluation.results import read_config
from vf.evaluation.tally import SOLVED, Tally
from vf.runtime.errors import ConfigError
from vf.traces.trace import Trace

BINS = 20  # of the histogram of rewards
COMPARED = 16  # newest evaluations of one environment that are held against each other
CLUSTERS = 12  # of failures, the most frequent
SECONDS = 1.0  # of reading in one look, so that a page does not wait for all of it

_STEP = re.compile(r"eval-(\d+)")


class EvaluationReader:
    """Follows the traces of one model in one environment while they are written.

    Args:
        file: The traces.
        run: The folder that the trace viewer knows them by.
        name: The name on the page.
        step: Training steps before it; None outside of a run.
    """

    def __init__(self, file: Path, run: Path, name: str, step: int | None = None) -> None:
        self.file, self.run, self.name, self.step = file, run, name, step
        self._begin((0, 0))

    def _begin(self, identity: tuple[int, int]) -> None:
        self._identity, self._offset = identity, 0
        self._tally = Tally("", "", 0, 1)
        self._tasks: dict[str, list[float]] = {}
        self._counts: Counter[str] = Counter()
        self._rewards: list[float] = []
        self._failures: Counter[tuple[str, str, str]] = Counter()

    def refresh(self, until: float) -> bool:
        """Read what is new until a moment of the monotonic clock; returns whether there was any."""
        try:
            status = self.file.stat()
            if (status.st_dev, status.st_ino) != self._identity or status.st_size < self._offset:
                self._begin((status.st_dev, status.st_ino))
            if status.st_size == self._offset:
                return False
            begin = self._offset
            with self.file.open("rb") as file:
                file.seek(begin)
                for line in file:
                    if not line.endswith(b"\n"):  # it is being written
                        break
                    self._offset += len(line)
                    self._add(line)
                    if time.monotonic() > until:
                        break
        except OSError:
            return False
        return self._offset > begin

    def _add(self, line: bytes) -> None:
        try:
            trace = Trace.from_json(line)
        except ValueError:
            return
        self._tally.add(trace)
        self._tally.environment = trace.environment
        self._counts[trace.task.id] += 1
        if trace.error is None and trace.reward is not None:
            self._tasks.setdefault(_task(trace), []).append(trace.reward)
            self._rewards.append(trace.reward)
        outcome = None if trace.score is None else trace.score.outcome
        if trace.error is not None or outcome is None or outcome < SOLVED:
            self._failures[_cluster(trace)] += 1

    def means(self) -> dict[str, float]:
        """Return the mean reward of each task, by its id, prompt and answer."""
        return {task: sum(rewards) / len(rewards) for task, rewards in self._tasks.items()}

    def summary(self, size: Mapping[str, int] | None) -> dict[str, Any] | None:
        """Return what the page shows; None while there is no trace.

        Args:
            size: The requested number of ``tasks`` and of ``rollouts`` for each; None if unknown.
        """
        if not self._counts:
            return None
        size = size or {"tasks": len(self._counts), "rollouts": max(self._counts.values())}
        self._tally.tasks, self._tally.rollouts_per_example = size["tasks"], size["rollouts"]
        summary = self._tally.summary()
        failures = [
            {"stop": stop, "boundary": boundary, "error": error, "count": count}
            for (stop, boundary, error), count in self._failures.most_common(CLUSTERS)
        ]
        return {
            "id": str(self.file),
            "run": str(self.run),
            "name": self.name,
            "step": self.step,
            "environment": summary.environment,
            "tasks": summary.tasks,
            "rollouts": summary.rollouts,
            "scored": summary.scored,
            "failed": summary.failed,
            "unscored": summary.unscored,
            "missing": max(0, summary.missing),
            "reward": _plain(summary.reward),
            "success": _plain(summary.success),
            "pass_at": {k: _plain(estimate) for k, estimate in summary.pass_at.items()},
            "pass_hat": {k: _plain(estimate) for k, estimate in summary.pass_hat.items()},
            "histogram": _histogram(self._rewards),
            "failures": failures,
        }


class Evaluations:
    """All evaluations behind some runs and results folders."""

    def __init__(self) -> None:
        self._readers: dict[Path, EvaluationReader] = {}
        self._before: list[tuple[Path, str]] = []

    def scan(self, runs: Mapping[Path, str], results: Mapping[Path, str]) -> dict[str, Any] | None:
        """Read what is new; returns all evaluations with their differences, or None if nothing is.

        Args:
            runs: Folders of runs, with their names.
            results: Folders of results, likewise.
        """
        files = [*_held_out(runs), *_cells(results)]
        for file, run, name, step in files:
            if file not in self._readers:
                self._readers[file] = EvaluationReader(file, run, name, step)
            self._readers[file].name = name  # it changes when others begin
        there = [(file, name) for file, _, name, _ in files]
        until = time.monotonic() + SECONDS
        news = [file for file, _ in there if self._readers[file].refresh(until)]
        if not news and there == self._before:
            return None
        self._before = there
        sizes_by_folder = {folder: _requested_sizes(folder) for folder in results}
        summaries = []
        for file, _ in there:
            top = next((top for top in sizes_by_folder if file.is_relative_to(top)), None)
            sizes = {} if top is None else sizes_by_folder[top]
            summary = self._readers[file].summary(sizes.get(file.parent.parent.name))
            summaries += [summary] if summary is not None else []
        return {"evaluations": summaries, "differences": self._differences(summaries)}

    def _differences(self, summaries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Return the difference of each pair of one environment, by their ids."""
        by_environment: dict[str, list[str]] = {}
        for summary in summaries:
            by_environment.setdefault(summary["environment"], []).append(summary["id"])
        differences: dict[str, Any] = {}
        for ids in by_environment.values():
            means = {name: self._readers[Path(name)].means() for name in ids[-COMPARED:]}
            for one, base in means.items():
                for other, mine in means.items():
                    common = [mine[task] - base[task] for task in base if task in mine]
                    if one != other and common:
                        # Both means are in [0, 1], so their difference is in [-1, 1].
                        estimate = mean_of_tasks(common, bounds=(-1.0, 1.0))
                        differences.setdefault(one, {})[other] = _plain(estimate)
        return differences


def _held_out(runs: Mapping[Path, str]) -> list[tuple[Path, Path, str, int | None]]:
    evaluations: list[tuple[Path, Path, str, int | None]] = []
    for run, name in runs.items():
        for file in sorted((run / "traces").glob("eval-*.jsonl")):
            if match := _STEP.fullmatch(file.stem):
                evaluations.append((file, run, f"{name}, step {int(match[1])}", int(match[1])))
    return evaluations


def _cells(results: Mapping[Path, str]) -> list[tuple[Path, Path, str, int | None]]:
    """Return the traces of each environment and model, named by what tells them apart.

    What all in a folder have in common is left out where the folder's name says it already.
    """
    evaluations: list[tuple[Path, Path, str, int | None]] = []
    for folder, name in results.items():
        files = sorted(folder.glob("*/*/traces.jsonl"))
        parts = [(file.parent.parent.name, file.parent.name) for file in files]
        columns = list(zip(*parts, strict=True))  # the environments, and the models
        shared = [
            len({*column}) == 1 and f"-{column[0]}-" in f"-{folder.name}-" for column in columns
        ]
        for file, part in zip(files, parts, strict=True):
            more = [text for text, is_shared in zip(part, shared, strict=True) if not is_shared]
            evaluations.append((file, file.parent, "/".join([name, *more]), None))
    return evaluations


def _requested_sizes(folder: Path) -> dict[str, dict[str, int]]:
    """Return how many tasks and rollouts were requested, by the environment's folder."""
    try:
        size = read_config(folder)["size"]
        rollouts = int(size["rollouts_per_example"])
        return {
            slug(name): {"tasks": int(count), "rollouts": rollouts}
            for name, count in size["tasks"].items()
        }
    except (ConfigError, KeyError, TypeError, ValueError, AttributeError):
        return {}


def _task(trace: Trace) -> str:
    """Return the key of a task: in another evaluation, its id may have another prompt."""
    content = pydantic_core.to_json([trace.task.id, trace.task.prompt, trace.task.answer])
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def _cluster(trace: Trace) -> tuple[str, str, str]:
    """Return what a failure has in common with others: stop reason, boundary, and message."""
    stop = "" if trace.stop_reason is None else trace.stop_reason.value
    if trace.error is None:
        return stop, "", "no reward" if trace.reward is None else ""
    first = trace.error.message.strip().splitlines()[:1]
    message = re.sub(r"0x[0-9a-f]+|\d+", "#", first[0] if first else trace.error.type)
    return stop, trace.error.boundary[:60], message[:160]


def _histogram(rewards: Sequence[float]) -> dict[str, Any]:
    """Return counts of rewards in bins of one width; the last holds its upper end too."""
    if not rewards:
        return {"low": 0.0, "high": 1.0, "counts": [0] * BINS}
    low, high = min(0.0, *rewards), max(1.0, *rewards)
    counts = [0] * BINS
    for reward in rewards:
        counts[min(BINS - 1, int((reward - low) / (high - low) * BINS))] += 1
    return {"low": low, "high": high, "counts": counts}


def _plain(estimate: Estimate) -> dict[str, Any] | None:
    """Return an estimate as JSON; None where there is nothing to estimate."""
    if not estimate.tasks:
        return None
    values = {"mean": estimate.mean, "low": estimate.low, "high": estimate.high}
    short = {name: v if v is None else float(f"{v:.6g}") for name, v in values.items()}
    return {**short, "tasks": estimate.tasks}

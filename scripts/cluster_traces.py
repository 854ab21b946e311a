"""What must hold of a run's traces, whatever was killed while it ran.

Each check returns what is wrong, in words; nothing if all is well.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from tiny_vllm import fingerprint

from vf.traces.store import TraceStore
from vf.traces.trace import Trace
from vf.trainer.run.run_folder import RunFolder

_LINE_ID = re.compile(rb'"id":\s*"([0-9a-f]{32})"')
ADAPTER = re.compile(r"@(\d+)-\d+$")  # how an adapter's name ends: its version, and a number
NEAR = 1e-6  # nats; the same floats, which went through JSON


@dataclass
class Seen:
    """The finished rollouts that were on disk at some moment of a run.

    Attributes:
        lines: The files' whole lines, by the trace's id.
    """

    lines: dict[str, bytes] = field(default_factory=dict)

    def look(self, folder: Path) -> None:
        """Add what is on disk now."""
        self.lines |= written(folder)

    def lost(self, folder: Path) -> list[str]:
        """Compare what was seen with what a run has in the end, what it began again included."""
        now = written(folder)
        return [
            f"trace {id} was {'changed' if id in now else 'lost'}"
            for id, line in self.lines.items()
            if now.get(id) != line
        ]


def written(folder: Path) -> dict[str, bytes]:
    """Return the whole lines of a run's traces, those apart of what was begun again included."""
    found = {}
    for file in (folder / "traces").rglob("*.jsonl"):
        for line in file.read_bytes().split(b"\n")[:-1]:
            if id := _LINE_ID.search(line):
                found[id[1].decode()] = line
    return found


def steps(folder: Path) -> dict[int, list[Trace]]:
    """Return the traces of a run's training steps."""
    files = sorted((folder / "traces").glob("step-*.jsonl"))
    return {int(file.stem.removeprefix("step-")): [*TraceStore(file)] for file in files}


def check_counts(traces: Mapping[int, list[Trace]], *, rollouts: int, most: int) -> list[str]:
    """See that every rollout of every group is there once.

    Args:
        traces: By step.
        rollouts: Of one task in a step.
        most: Steps of the run.
    """
    wrong = [f"step {step} has no traces" for step in range(1, most + 1) if step not in traces]
    ids = Counter(trace.id for found in traces.values() for trace in found)
    wrong += [f"trace {id} is there {count} times" for id, count in ids.items() if count > 1]
    groups: dict[int, list[Trace]] = defaultdict(list)
    for step, found in traces.items():
        for trace in found:
            if trace.origin is None or trace.origin.step != step:
                wrong.append(f"trace {trace.id} in step {step} is of {trace.origin}")
            elif trace.error is None:
                groups[trace.origin.group].append(trace)
    for number, members in sorted(groups.items()):
        if len({trace.task.id for trace in members}) > 1:
            wrong.append(f"group {number} is of several tasks")
        places = Counter(trace.origin.rollout for trace in members if trace.origin)
        if places != dict.fromkeys(range(rollouts), 1):
            wrong.append(f"group {number} has the rollouts {dict(sorted(places.items()))}")
    if sorted(groups) != [*range(len(groups))]:
        wrong.append(f"the groups are not those from 0 to {len(groups) - 1}: {sorted(groups)}")
    return wrong


def check_metrics(folder: RunFolder, traces: Mapping[int, list[Trace]], most: int) -> list[str]:
    """See that every step was measured once, on the rollouts that are on disk."""
    lines = folder.read_metrics()
    found = [line["step"] for line in lines]
    if found != [*range(most + 1)]:
        return [f"the metrics are of the steps {found}, not of 0 to {most}"]
    wrong = []
    for step in range(1, most + 1):
        rewards = [trace.reward for trace in traces.get(step, []) if trace.reward is not None]
        mean = sum(rewards) / max(1, len(rewards))
        if abs(mean - lines[step]["reward/mean"]) > 1e-9:
            wrong.append(f"step {step}: reward/mean is not that of its {len(rewards)} traces")
    return wrong


def check_errors(traces: Iterable[Trace]) -> list[str]:
    """See that no failure has a reward, and that nothing that was killed counts as a failure."""
    return [
        f"trace {trace.id} of {trace.task.id}: {trace.error.boundary}: {trace.error.message}"
        f"{' (with a reward)' if trace.reward is not None else ''}"
        for trace in traces
        if trace.error is not None
    ]


class Answer(NamedTuple):
    """What a server says of one answer: its versions by token, and its log-probabilities."""

    versions: list[str]
    logprobs: list[float]


class Answers:
    """What all servers of a run have answered, by their journals.

    Args:
        folder: With a folder of journals for each time that the run was started; see
            :mod:`tiny_vllm`.
    """

    def __init__(self, folder: Path) -> None:
        self.problems: list[str] = []
        self._found: dict[tuple[str, tuple[int, ...]], list[Answer]] = defaultdict(list)
        # A step that is done again after a kill makes other weights under the same name.
        weights: dict[tuple[Path, str], set[str]] = defaultdict(set)
        for file in folder.rglob("*.jsonl"):
            for line in file.read_bytes().split(b"\n")[:-1]:
                entry = json.loads(line)
                if "loaded" in entry:
                    weights[file.parent, entry["loaded"]].add(entry["weights"])
                    continue
                adapter = ADAPTER.search(entry["model"])
                versions = [adapter[1]] * len(entry["token_ids"]) if adapter else entry["versions"]
                key = entry["prompt"], tuple(entry["token_ids"])
                self._found[key].append(Answer(versions, entry["logprobs"]))
        self.problems += [
            f"servers have different weights under the name {name}"
            for (_, name), several in weights.items()
            if len(several) > 1
        ]

    def check(self, traces: Iterable[Trace]) -> list[str]:
        """See that a server gave every answer of the traces, from the weights that they say."""
        wrong = list(self.problems)
        for trace in traces:
            for branch in trace.branches:
                for start, end in spans(branch.loss_mask, branch.turn_index):
                    ids = tuple(branch.token_ids[start:end])
                    logprobs = branch.logprobs[start:end]
                    versions = [str(version) for version in branch.weight_version[start:end]]
                    said = self._found.get((fingerprint(branch.token_ids[:start]), ids), [])
                    same = [each for each in said if _near(each.logprobs, logprobs)]
                    if not same:
                        wrong.append(f"trace {trace.id}: no server gave the answer at {start}")
                    elif versions not in [each.versions for each in same]:
                        true = [sorted({*each.versions}) for each in same]
                        wrong.append(
                            f"trace {trace.id}: the answer at {start} is said to be from version "
                            f"{sorted({*versions})}, and is from {true}"
                        )
        return wrong


def spans(mask: list[int], turns: list[int]) -> Iterator[tuple[int, int]]:
    """Yield where the answers of a branch begin and end: sampled tokens of one turn in a row."""
    start = None
    for place in range(len(mask) + 1):
        inside = place < len(mask) and mask[place] == 1
        if start is not None and (not inside or turns[place] != turns[start]):
            yield start, place
            start = None
        if inside and start is None:
            start = place


def _near(one: list[float], other: list[float]) -> bool:
    return all(abs(a - b) <= NEAR for a, b in zip(one, other, strict=True))

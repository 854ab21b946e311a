"""From traces files to training sequences, with a count of what is left out."""

from __future__ import annotations

import hashlib
import random
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from vf.inference.rendering.next_prompt import Unrenderable
from vf.inference.rendering.renderer import Renderer
from vf.runtime.errors import ConfigError
from vf.traces.images import Image
from vf.traces.trace import Branch, Trace
from vf.traces.view.sources import Source, Unreadable, find_sources, read
from vf.trainer.sft.render import render, same_tokenizer
from vf.trainer.sft.settings import SftArgs, SftConfig

IGNORED = -100  # the label of a token without loss


@dataclass(slots=True)
class Sequenced:
    """One token sequence to learn from.

    Attributes:
        input_ids: Token ids, int32.
        labels: The ids again where the model answered, and -100 where it did not.
        task: Which task it is of; unique over environments.
        reward: The trace's; None where nobody scored it.
        images: The images among the tokens, with their places.
    """

    input_ids: array[int]
    labels: array[int]
    task: str
    reward: float | None
    images: Sequence[Image] = ()

    @property
    def learned(self) -> int:
        """How many tokens carry loss: the first token of a sequence is never predicted."""
        return sum(label != IGNORED for label in self.labels[1:])


@dataclass(slots=True)
class Selection:
    """The traces to train on, and why the others were dropped.

    Attributes:
        train: The sequences to train on.
        held_out: The sequences of other tasks, to measure with.
        files: How many files were read.
        evaluations: How many files of runs were not, because they hold rollouts of held-out tasks.
        read: How many traces were read.
        kept: How many of them are learned from or measured with.
        recorded: How many of those are trained on as they were sampled.
        rendered: Number of traces rendered again, by reason.
        dropped: How many traces, sequences and lines are left out, by why.
        best_reward: The highest reward that was read.
    """

    train: list[Sequenced] = field(default_factory=list)
    held_out: list[Sequenced] = field(default_factory=list)
    files: int = 0
    evaluations: int = 0
    read: int = 0
    kept: int = 0
    recorded: int = 0
    rendered: Counter[str] = field(default_factory=Counter)
    dropped: Counter[str] = field(default_factory=Counter)
    best_reward: float | None = None

    def describe(self) -> list[tuple[str, str]]:
        """Return what was selected as pairs of name and text."""
        rows = [("traces", f"{self.read} read in {self.files} files, {self.kept} kept")]
        if self.evaluations:
            text = f"{self.evaluations} files of held-out evaluations; name them to read them"
            rows.append(("dropped", text))
        rows += [("dropped", f"{count} {why}") for why, count in self.dropped.most_common()]
        why = "".join(f", {count} {reason}" for reason, count in self.rendered.most_common())
        again = f"; {self.rendered.total()} rendered again{why}" if self.rendered else ""
        rows.append(("tokens", f"{self.recorded} traces as sampled{again}"))
        for name, sequences in (("train", self.train), ("held out", self.held_out)):
            tokens, learned = (
                sum(len(s.labels) for s in sequences),
                sum(s.learned for s in sequences),
            )
            rows.append(
                (name, f"{len(sequences)} sequences, {tokens:,} tokens, {learned:,} learned")
            )
        return rows


@dataclass(slots=True)
class _Candidate:
    task: str
    reward: float | None
    sequences: list[Sequenced]
    why_rendered: str | None

    @property
    def rank(self) -> float:
        """What the best are chosen by: who says that all of it is good gave no rewards."""
        return 1.0 if self.reward is None else self.reward


def select(
    config: SftConfig, renderer: Renderer, advance: Callable[[int], None] | None = None
) -> Selection:
    """Read the traces and return what is learned from.

    Args:
        config: The settings of the dataset and of its filters.
        renderer: The renderer of the model that learns.
        advance: Told the number of bytes of every line that was read.

    Raises:
        ConfigError: If there is no such file, nothing is left, or a sequence is too long and
            ``long_sequences = "refuse"``.
    """
    data = config.data
    sources, evaluations = training_sources(data.traces)
    selection = Selection(files=len(sources), evaluations=evaluations)
    admitted = _admitted(sources, config, selection, advance)
    encoded = _encoded(admitted, config, renderer, selection)
    chosen = _best(list(encoded), config, selection)
    selection.kept = len(chosen)
    for candidate in chosen:
        if candidate.why_rendered is None:
            selection.recorded += 1
        else:
            selection.rendered[candidate.why_rendered] += 1
    if not chosen:
        raise ConfigError(_nothing_left(selection, data.min_reward))
    away = _held_out([candidate.task for candidate in chosen], data.held_out, config.args.seed)
    for candidate in chosen:
        part = selection.held_out if candidate.task in away else selection.train
        part += candidate.sequences
    return selection


def training_sources(paths: Sequence[str]) -> tuple[list[Source], int]:
    """Return the selected files, and how many files of evaluations are left out.

    A run's folder holds its held-out evaluations, too. Who learns from them cannot be measured on
    those tasks any more, so they are read only where they are named themselves.

    Raises:
        ConfigError: If a path does not exist, or a folder has no traces file.
    """
    named = {Path(path).resolve() for path in paths}
    sources = find_sources([Path(path) for path in paths])
    kept = [s for s in sources if not _is_evaluation(s.path) or s.path.resolve() in named]
    return kept, len(sources) - len(kept)


def _is_evaluation(path: Path) -> bool:
    return path.parent.name == "traces" and path.name.startswith("eval-")


def _admitted(
    sources: Sequence[Source],
    config: SftConfig,
    selection: Selection,
    advance: Callable[[int], None] | None,
) -> Iterator[tuple[Trace, str]]:
    """Yield the traces that are good enough, each with the key of its task."""
    data, dropped, seen = config.data, selection.dropped, set()
    unreadable = ""
    for source in sources:
        for line in read(source, advance):
            if isinstance(line, Unreadable):
                first = f"{source.path}, line {line.line}: {line.why}"
                unreadable = unreadable or f"lines that hold no trace; the first is {first}"
                dropped[unreadable] += 1
                continue
            selection.read += 1
            if line.reward is not None:
                selection.best_reward = max(line.reward, selection.best_reward or 0.0)
            why = _flaw(line, config)
            if why is None and data.deduplicate:
                key = _fingerprint(line)
                why = "say the same as another" if key in seen else None
                seen.add(key)
            if why is not None:
                dropped[why] += 1
                continue
            lone = line.info.get("foreign") is True and line.task.id.startswith("line ")
            yield line, f"{line.environment}/{source.path if lone else ''}{line.task.id}"


def _flaw(trace: Trace, config: SftConfig) -> str | None:
    """Return why a trace is not good enough, or None if it is."""
    data, foreign = config.data, trace.info.get("foreign") is True
    unjudged = foreign and trace.score is None  # a conversation that nobody has scored
    if trace.error is not None:
        return "failed with an error"
    if trace.reward is None and not unjudged:
        return "have no reward"
    if trace.reward is not None and trace.reward < data.min_reward - 1e-9:
        return f"have a reward below min_reward = {data.min_reward:g}"
    if not data.include_truncated:
        if trace.truncated:
            return "were ended by a limit (include_truncated = true keeps them)"
        if any(turn.finish_reason in ("length", "content_filter") for turn in trace.turns):
            return "have an answer that was cut off (include_truncated = true keeps them)"
    if not trace.answers:
        return "have no answer"
    return None


def _encoded(
    traces: Iterable[tuple[Trace, str]], config: SftConfig, renderer: Renderer, selection: Selection
) -> Iterator[_Candidate]:
    """Yield the traces as sequences that fit."""
    args, dropped = config.args, selection.dropped
    for trace, task in traces:
        if not args.images and next(trace.images, None) is not None:
            raise ConfigError(
                f"the trace of task {trace.task.id!r} has images: set trainer.args.images = true "
                "for a model that sees, or leave its file out of data.traces"
            )
        why = _why_render(trace, config.data.tokens, renderer)
        if why is not None and config.data.tokens == "recorded":
            dropped[f"{why} (tokens = 'recorded')"] += 1
            continue
        try:
            branches = trace.branches if why is None else render(renderer, trace)
        except Unrenderable as error:
            dropped[f"cannot be rendered: {error}"] += 1
            continue
        fitting = list(_fit([_sequence(b, task, trace.reward) for b in branches], args, dropped))
        if fitting:
            yield _Candidate(task, trace.reward, fitting, why)


def _why_render(trace: Trace, tokens: str, renderer: Renderer) -> str | None:
    """Return why the recorded tokens are not trained on, or None if they are."""
    if tokens == "rendered":
        return "because tokens = 'rendered'"
    if not any(any(branch.loss_mask) for branch in trace.branches):
        return "without tokens"
    if not same_tokenizer(renderer, trace):
        return "with tokens of another tokenizer"
    return None


def _sequence(branch: Branch, task: str, reward: float | None) -> Sequenced:
    masked = zip(branch.token_ids, branch.loss_mask, strict=True)
    labels = array("i", (token if mask else IGNORED for token, mask in masked))
    return Sequenced(array("i", branch.token_ids), labels, task, reward, branch.images)


def _fit(
    sequences: Sequence[Sequenced], args: SftArgs, dropped: Counter[str]
) -> Iterator[Sequenced]:
    """Yield the sequences within ``max_seq_len``, as ``long_sequences`` says."""
    limit = args.max_seq_len
    for sequence in sequences:
        if (size := len(sequence.labels)) > limit:
            if args.long_sequences == "refuse":
                raise ConfigError(
                    f"a sequence of task {sequence.task!r} has {size} tokens, over max_seq_len = "
                    f"{limit}, and long_sequences = 'refuse'; raise max_seq_len, or drop or "
                    "truncate them"
                )
            if args.long_sequences == "drop":
                dropped[f"sequences are longer than max_seq_len = {limit}"] += 1
                continue
            sequence.input_ids, sequence.labels = (
                sequence.input_ids[:limit],
                sequence.labels[:limit],
            )
        if sequence.learned:
            yield sequence
        else:
            dropped["sequences have no token to learn"] += 1


def _best(
    candidates: list[_Candidate], config: SftConfig, selection: Selection
) -> list[_Candidate]:
    """Return the best of each task and of all, in the order in which they were read."""
    data = config.data
    if data.top_per_task is not None:
        by_task: dict[str, list[_Candidate]] = {}
        for candidate in candidates:
            by_task.setdefault(candidate.task, []).append(candidate)
        kept = {
            id(best)
            for group in by_task.values()
            for best in sorted(group, key=lambda c: -c.rank)[: data.top_per_task]
        }
        if beyond := len(candidates) - len(kept):
            selection.dropped[f"are beyond top_per_task = {data.top_per_task}"] += beyond
        candidates = [candidate for candidate in candidates if id(candidate) in kept]
    if data.max_samples is not None and len(candidates) > data.max_samples:
        drawn = random.Random(config.args.seed).sample(candidates, len(candidates))
        kept = {id(best) for best in sorted(drawn, key=lambda c: -c.rank)[: data.max_samples]}
        beyond = len(candidates) - len(kept)
        selection.dropped[f"are beyond max_samples = {data.max_samples}"] += beyond
        candidates = [candidate for candidate in candidates if id(candidate) in kept]
    return candidates


def _held_out(tasks: Iterable[str], share: float, seed: int) -> set[str]:
    """Return the tasks that are measured with; never all, and at least one if there are two."""
    names = sorted(set(tasks))
    if not share or len(names) < 2:
        return set()
    count = min(max(1, round(share * len(names))), len(names) - 1)
    return set(random.Random(seed).sample(names, count))


def _fingerprint(trace: Trace) -> bytes:
    parts = [
        (
            *(m.role, m.content, m.reasoning),
            [(call.name, call.arguments) for call in m.tool_calls],
            [(image.name, image.at) for image in m.images],
        )
        for conversation in trace.conversations
        for m in conversation.messages
    ]
    return hashlib.blake2b(repr(parts).encode("utf-8", "surrogatepass"), digest_size=16).digest()


def _nothing_left(selection: Selection, min_reward: float) -> str:
    why = "; ".join(f"{count} {why}" for why, count in selection.dropped.most_common())
    best = selection.best_reward
    hint = (
        f". The highest reward is {best:g}; lower data.min_reward"
        if best is not None and best < min_reward
        else ""
    )
    return f"data.traces: of {selection.read} traces, none is left to learn from: {why}{hint}"

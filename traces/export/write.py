"""Writing an export: whole or not at all, and never over something else."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from vf.runtime.durable import sync
from vf.runtime.errors import ConfigError
from vf.traces.export.openai_chat import chat_lines
from vf.traces.export.parquet import ENDING, ParquetTraces
from vf.traces.trace import Trace

Append = Callable[[Trace, str], None]
CHAT_ENDING = ".jsonl"


@dataclass(slots=True)
class Exported:
    """What was written.

    Attributes:
        traces: How many traces.
        forked: How many of them have several token branches, or conversations.
        without_tokens: How many have no tokens.
        without_tools: How many have tool calls, but do not say which tools there were.
        left_out: How many were left out, by why.
        size: Bytes of the file.
    """

    traces: int = 0
    forked: int = 0
    without_tokens: int = 0
    without_tools: int = 0
    left_out: Counter[str] = field(default_factory=Counter)
    size: int = 0

    def count(self, trace: Trace) -> None:
        """Count a trace that was written."""
        lineages = trace.conversations
        called = any(m.tool_calls for lineage in lineages for m in lineage.messages)
        self.traces += 1
        self.forked += max(len(trace.branches), len(lineages)) > 1
        self.without_tokens += not trace.branches
        self.without_tools += called and not any(lineage.tools for lineage in lineages)

    def leave_out(self, trace: Trace, why: str) -> None:
        """Count a trace that does not fit the schema."""
        self.left_out[f"do not fit the schema ({why})"] += 1


def export_traces(
    traces: Iterable[Trace | tuple[Trace, str]],
    output: Path,
    *,
    bare: bool = False,
    min_reward: float | None = None,
    stop_reasons: Sequence[str] = (),
) -> Exported:
    """Write traces as a file of the form that its ending names, ``.jsonl`` or ``.parquet``.

    One trace, or one row group, is in memory at a time.

    Args:
        traces: The traces, each alone or with the model whose tokenizer made its ids.
        output: The file; it must not exist.
        bare: In ``.jsonl``, write nothing that OpenAI's fine-tuning format does not know.
        min_reward: Leave out what has a lower reward, or none.
        stop_reasons: Leave out what did not end for one of these reasons.

    Raises:
        ConfigError: If the ending is unknown, the file exists, ``bare`` is requested of Parquet,
            or pyarrow is not installed.
        OSError: If the file cannot be written; nothing is left of it.
    """
    check_export(output, bare=bare)
    done = Exported()
    with _whole(output) as temporary, _open(temporary, output.suffix, done, bare=bare) as append:
        for entry in traces:
            trace, model = entry if isinstance(entry, tuple) else (entry, "")
            if min_reward is not None and (trace.reward is None or trace.reward < min_reward):
                done.left_out[f"have no reward of {min_reward:g} or more"] += 1
            elif stop_reasons and trace.stop_reason not in stop_reasons:
                done.left_out[f"did not stop for {' or '.join(stop_reasons)}"] += 1
            else:
                append(trace, model)
    done.size = output.stat().st_size
    return done


def check_export(output: Path, *, bare: bool = False) -> None:
    """Raise where an export could not be written, or would destroy something.

    Raises:
        ConfigError: If :func:`export_traces` would raise it.
    """
    if output.suffix not in (CHAT_ENDING, ENDING):
        raise ConfigError(
            f"{output}: the ending says the form, and {output.suffix or 'none'!r} is not known. "
            f"Known: {CHAT_ENDING} (OpenAI chat), {ENDING}"
        )
    if bare and output.suffix != CHAT_ENDING:
        raise ConfigError(f"bare is about OpenAI chat lines ({CHAT_ENDING}); {output} is none")
    if os.path.lexists(output):
        raise ConfigError(f"{output} exists and is never overwritten; choose another name")


@contextmanager
def _whole(output: Path) -> Iterator[Path]:
    """Give a file to write, which becomes the output if all goes well, and otherwise is removed."""
    output.parent.mkdir(parents=True, exist_ok=True)
    temporary = output.with_name(f".writing-{output.name}-{os.getpid()}")
    try:
        yield temporary
        sync(temporary)
        temporary.rename(output)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def _open(path: Path, ending: str, done: Exported, *, bare: bool) -> Iterator[Append]:
    if ending == ENDING:
        with ParquetTraces(path, written=done.count, unfit=done.leave_out) as rows:
            yield rows.append
        return
    with path.open("w", encoding="utf-8") as file:

        def append(trace: Trace, model: str) -> None:
            lines = chat_lines(trace, bare=bare)
            try:
                file.write("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))
            except UnicodeEncodeError as error:
                done.leave_out(trace, str(error))
            else:
                done.count(trace)

        yield append

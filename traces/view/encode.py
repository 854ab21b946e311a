"""A trace as the page holds it: a row of the table, and all of it packed and compressed."""

from __future__ import annotations

import base64
import json
import math
import re
import sys
import zlib
from array import array
from collections.abc import Sequence
from itertools import groupby
from typing import Any

from vf.traces.learned import Learned
from vf.traces.trace import Branch, Trace

PREVIEW = 200  # characters
LOGPROB_STEP = 0.001  # nats; what the page can tell apart
UNUSUAL = 0xFFFF  # stands for a logprob that does not fit, and is given in words

_EXACT = 2**53  # JavaScript counts exactly up to here
_SEARCHED = 20_000  # characters at the end of a reply

# Each is linear in the length of the text, whatever the text is.
_FORMS = (
    re.compile(r"answer:[ \t*]*([^\n]*)", re.IGNORECASE),
    re.compile(r"<answer>([^<]*)</answer>", re.IGNORECASE),
    re.compile(r"\\boxed\s*\{((?:[^{}]|\{[^{}]*\})*)\}"),
    re.compile(r'"answer"\s*:\s*("(?:[^"\\]|\\.)*"|[^\s,}]+)'),
)


def row_of(trace: Trace) -> dict[str, Any]:
    """Return what the table shows of a trace, sorts by and searches in."""
    first = trace.conversations[0].messages
    prompt = next((m.content for m in first if m.role == "user"), "")
    failed = sum(event.kind != "ok" for event in trace.tool_events)
    row = {
        "id": trace.id[:PREVIEW],
        "environment": trace.environment[:PREVIEW],
        "task": trace.task.id[:PREVIEW],
        "reward": trace.reward,
        "stop": "" if trace.stop_reason is None else trace.stop_reason.value,
        "boundary": "" if trace.error is None else trace.error.boundary[:PREVIEW],
        "error": "" if trace.error is None else trace.error.message[:PREVIEW],
        "turns": len(trace.turns) or sum(m.role == "assistant" for m in trace.messages),
        "tokens": sum(len(branch) for branch in trace.branches)
        or sum(turn.completion_tokens for turn in trace.turns),
        "sampled": trace.completion_tokens,
        "calls": len(trace.tool_events),
        "failed": failed,
        "forks": len(trace.forks),
        "conversations": len(trace.conversations),
        "seconds": trace.timing.get("total"),
        "tools": " ".join(dict.fromkeys(event.name for event in trace.tool_events))[:PREVIEW],
        "expected": expected_answer(trace.task.answer)[:PREVIEW],
        "stated": stated_answer(trace.reply)[:PREVIEW],
        "prompt": prompt[:PREVIEW],
        "reply": trace.reply[:PREVIEW],
        "foreign": trace.info.get("foreign") is True,
        "rollout": _rollout_of(trace),
    }
    return {key: strict(value) for key, value in row.items()}


def _rollout_of(trace: Trace) -> int | None:
    """Return a rollout's place among those of its task: in its group, or in an evaluation."""
    if trace.origin is not None:
        return trace.origin.rollout
    evaluation = trace.info.get("eval")
    index = evaluation.get("rollout") if isinstance(evaluation, dict) else None
    return index if isinstance(index, int) else None


def text_of(trace: Trace) -> str:
    """Return all text of a trace, in which the page looks for words: a line for each."""
    parts: list[Any] = [trace.task.id, trace.task.prompt, trace.task.answer, trace.task.info]
    seen: set[int] = set()
    for conversation in trace.conversations:
        for message in conversation.messages:
            if id(message) not in seen:  # an agent's conversations share what they repeat
                seen.add(id(message))
                parts += [message.reasoning, message.content, message.name]
                parts += [part for c in message.tool_calls for part in (c.name, c.arguments)]
    parts += [part for event in trace.tool_events for part in (event.kind, event.detail)]
    parts += [fork.reason for fork in trace.forks]
    if trace.error is not None:
        parts += [trace.error.type, trace.error.message, trace.error.traceback]
    parts.append(trace.info)
    texts = (
        part if isinstance(part, str) else json.dumps(part, ensure_ascii=False, default=str)
        for part in parts
        if part is not None and part != "" and part != {}
    )
    return "\n".join(dict.fromkeys(texts))


def pack_trace(trace: Trace, learned: Sequence[Learned] = ()) -> bytes:
    """Return a trace as the page unpacks it, with what was learned from it.

    Layout: the length of the JSON, uint32; the JSON; then for each branch its token ids, uint32,
    and its logprobs, uint16 in steps of -0.001 nats (0xFFFF: see ``unusual`` in the JSON). All
    little-endian. The other arrays of a branch are runs of ``[value, count]`` in the JSON.
    """
    heads, arrays = zip(*map(_branch, trace.branches), strict=True) if trace.branches else ((), ())
    branches, trace.branches = trace.branches, []
    try:
        body = strict(json.loads(trace.to_json()))
    finally:
        trace.branches = branches
    for entry in learned:
        if 0 <= entry.branch < len(heads) and len(entry.mask) <= heads[entry.branch]["size"]:
            packed = entry.packed()
            del packed["rollout"], packed["branch"]
            heads[entry.branch].setdefault("learned", []).append(strict(packed))
    body["branches"] = heads
    text = json.dumps(body, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    return b"".join([len(text).to_bytes(4, "little"), text, *arrays])


def compress(data: bytes) -> bytes:
    """Return data deflated (zlib) and in base64: no byte of it can be taken for markup."""
    return base64.b64encode(zlib.compress(data, 6))


def strict(value: Any) -> Any:
    """Return JSON data with what JavaScript would lose, NaN and large integers, as text."""
    if isinstance(value, dict):
        return {key: strict(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [strict(entry) for entry in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, int) and abs(value) > _EXACT:
        return str(value)
    return value


def _branch(branch: Branch) -> tuple[dict[str, Any], bytes]:
    lists = (branch.token_ids, branch.loss_mask, branch.logprobs)
    lengths = {len(values) for values in (*lists, branch.turn_index, branch.weight_version)}
    size = min(lengths)  # a foreign file may break the promise of one length
    ids = branch.token_ids[:size]
    head: dict[str, Any] = {
        "size": size,
        "mask": _runs(branch.loss_mask[:size]),
        "turn": _runs(branch.turn_index[:size]),
        "version": _runs(branch.weight_version[:size]),
        "unusual": {},
    }
    if len(lengths) > 1:
        head["problem"] = f"its lists differ in length; the first {size} tokens are shown"
    try:
        packed_ids = array("I", ids)
    except OverflowError:
        head["problem"] = "it holds token ids that are none, shown as 0"
        packed_ids = array("I", [i if 0 <= i < 2**32 else 0 for i in ids])
    steps = array("H", bytes(2 * size))
    for index, logprob in enumerate(branch.logprobs[:size]):
        if logprob != 0.0:
            scaled = -logprob / LOGPROB_STEP
            if 0 <= scaled < UNUSUAL - 1:
                steps[index] = round(scaled)
            else:
                steps[index] = UNUSUAL
                head["unusual"][index] = f"{logprob:g}"
    if sys.byteorder == "big":
        packed_ids.byteswap()
        steps.byteswap()
    return head, packed_ids.tobytes() + steps.tobytes()


def _runs(values: Sequence[int]) -> list[list[Any]]:
    return [[strict(value), len(list(run))] for value, run in groupby(values)]


def expected_answer(answer: Any) -> str:
    """Return a task's answer as text: JSON if it is not text, and empty if there is none."""
    if answer is None or isinstance(answer, str):
        return answer or ""
    return json.dumps(answer, ensure_ascii=False, default=str)


def stated_answer(reply: str) -> str:
    r"""Return the last answer that a reply states in one of the usual forms; empty without one.

    The forms are ``Answer: 5``, ``\boxed{5}``, ``<answer>5</answer>`` and ``{"answer": 5}``. An
    environment may read replies otherwise: what counts is its reward.
    """
    matches = [match for form in _FORMS for match in form.finditer(reply[-_SEARCHED:])]
    if not matches:
        return ""
    stated: str = max(matches, key=lambda match: match.start())[1]
    return stated.strip().strip('*"').strip()

"""An agent's requests beyond an answer: recorded, and honoured as far as the run allows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from vf.inference.endpoint.dialect import ModelRequest
from vf.inference.model import Sampling
from vf.runtime.seeding import derive_seed
from vf.traces.messages import Message, ToolCall

MOST_NOTED = 20  # distinct values of one field that a trace holds
MOST_SHOWN = 20_000  # characters of a value, in JSON; of a longer one, its beginning is held


def note(request: ModelRequest, model: str, info: dict[str, Any]) -> None:
    """Record in ``info["asked"]`` what a request asks for, each value of a field once.

    Args:
        request: The request. The model that it names is recorded if it is another one.
        model: The endpoint's own model.
        info: The trace's.
    """
    noted = info.setdefault("asked", {})
    another = {} if request.model == model else {"model": request.model}
    for name, value in (another | request.sampling | request.options).items():
        values = noted.setdefault(name, [])
        value = list(value) if isinstance(value, tuple) else value
        text = json.dumps(value)
        value = value if len(text) <= MOST_SHOWN else text[:MOST_SHOWN] + "..."
        if value not in values and len(values) < MOST_NOTED:
            values.append(value)


def samplings(request: ModelRequest, sampling: Sampling, seeds: Sequence[int]) -> list[Sampling]:
    """Return how to sample each answer to a request.

    Args:
        request: The request. Its texts to stop at hold in any case, and what else it asks for
            unless ``sampling`` is fixed.
        sampling: The run's settings, with the most tokens that an answer may have.
        seeds: One for each answer, where the request has none.
    """
    requested = dict(request.sampling)
    stop = (*sampling.stop, *requested.pop("stop", ()))
    if not sampling.fixed:
        seed = requested.pop("seed", None)
        if seed is not None:
            seeds = [seed, *(derive_seed(seed, number) for number in range(1, request.count))]
        most = min(sampling.max_tokens, requested.pop("max_tokens", sampling.max_tokens))
        sampling = sampling.with_(max_tokens=most, **requested)
    return [sampling.with_(stop=stop, seed=seed) for seed in seeds]


def as_sent(message: Message, request: ModelRequest) -> Message:
    """Return an answer as the agent gets it: calls that it cannot run are text."""
    unwanted = request.options.get("tool_choice") == "none"
    calls = [call for call in message.tool_calls if not unwanted and call.malformed is None]
    if len(calls) == len(message.tool_calls):
        return message
    texts = [_in_text(call) for call in message.tool_calls if call not in calls]
    content = "\n".join(filter(None, [message.content, *texts]))
    return replace(message, content=content, tool_calls=calls)


def _in_text(call: ToolCall) -> str:
    if call.malformed is not None:
        return call.arguments
    return json.dumps({"name": call.name, "arguments": call.arguments}, ensure_ascii=False)

"""An agent's requests beyond an answer: recorded, and honoured as far as the run allows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from vf.inference.endpoint.dialect import Asked
from vf.inference.model import Sampling
from vf.runtime.seeding import derive_seed
from vf.traces.messages import Message, ToolCall

MOST_NOTED = 20  # distinct values of one field that a trace holds
MOST_SHOWN = 20_000  # characters of a value, in JSON; of a longer one, its beginning is held


def note(asked: Asked, model: str, info: dict[str, Any]) -> None:
    """Record in ``info["asked"]`` what a request asks for, each value of a field once.

    Args:
        asked: The request. The model that it names is recorded if it is another one.
        model: Who answers.
        info: The trace's.
    """
    noted = info.setdefault("asked", {})
    another = {} if asked.model == model else {"model": asked.model}
    for name, value in (another | asked.sampling | asked.options).items():
        values = noted.setdefault(name, [])
        value = list(value) if isinstance(value, tuple) else value
        said = json.dumps(value)
        value = value if len(said) <= MOST_SHOWN else said[:MOST_SHOWN] + "..."
        if value not in values and len(values) < MOST_NOTED:
            values.append(value)


def samplings(asked: Asked, sampling: Sampling, seeds: Sequence[int]) -> list[Sampling]:
    """Return how to sample each answer to a request.

    Args:
        asked: The request. Its texts to stop at hold in any case, and what else it asks for
            unless ``sampling`` is fixed.
        sampling: How the run samples, with the most tokens that an answer may have.
        seeds: One for each answer, where the request has none.
    """
    wishes = dict(asked.sampling)
    stop = (*sampling.stop, *wishes.pop("stop", ()))
    if not sampling.fixed:
        seed = wishes.pop("seed", None)
        if seed is not None:
            seeds = [seed, *(derive_seed(seed, place) for place in range(1, asked.count))]
        most = min(sampling.max_tokens, wishes.pop("max_tokens", sampling.max_tokens))
        sampling = sampling.with_(max_tokens=most, **wishes)
    return [sampling.with_(stop=stop, seed=seed) for seed in seeds]


def as_sent(message: Message, asked: Asked) -> Message:
    """Return an answer as the agent gets it: calls that it cannot run are text."""
    unwanted = asked.options.get("tool_choice") == "none"
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

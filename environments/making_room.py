"""Making room in a context that is nearly full, so that an episode continues in a new branch."""

from __future__ import annotations

from dataclasses import replace

from vf.environments.contexts import Compact, Context, DropToolResults
from vf.environments.dialogue import Dialogue, Dialogues
from vf.inference.model import LimitReached
from vf.runtime.errors import ConfigError
from vf.traces.messages import Message
from vf.traces.trace import Fork


async def make_room(context: Context | None, dialogues: Dialogues, dialogue: Dialogue) -> None:
    """Make room for the next answer of a conversation, if its context is nearly full.

    Args:
        context: The strategy; None leaves the conversation as it is.
        dialogues: All conversations of the episode.
        dialogue: The one that is to be answered.

    Raises:
        InfrastructureError: If the model failed, or the conversation cannot be rendered.
        LimitReached: If there is no room left for a summary.
        ConfigError: If the context is too small for an answer and a summary.
    """
    if context is None or dialogue.last is None:  # after an answer at the earliest
        return
    limits = [size for size in (context.tokens, dialogues.context_size) if size is not None]
    if not limits:
        return
    if isinstance(context, Compact):
        await _compact(context, min(limits), dialogues, dialogue)
    else:
        _drop(context, min(limits), dialogues, dialogue)


async def _compact(context: Compact, size: int, dialogues: Dialogues, dialogue: Dialogue) -> None:
    answer = dialogues.episode.sampling.max_tokens
    summary = context.summary_tokens or min(answer, size // 4)
    left = size - answer - summary
    if left < 1:
        raise ConfigError(
            f"environment {dialogues.episode.trace.environment!r}: context: {size} tokens have no "
            f"room for an answer of {answer} and a summary of {summary}; raise max_seq_len (or "
            "vf.Compact(tokens=...)), or lower max_tokens or summary_tokens"
        )
    messages = dialogue.conversation.messages
    kept, last = len(messages) - 1, messages[-1]
    _say(messages, context.instruction)
    try:
        used = dialogues.prompt_tokens(dialogue)
        if used <= min(context.at * size, left):
            messages[kept:] = [last]
            return
        reply = await dialogues.answer(dialogue, summary)
    except LimitReached:
        messages[kept:] = [last]  # all that the model saw
        raise
    begun = [*dialogue.first]
    _say(begun, f"{context.introduction}\n\n{reply.message.content.strip() or '(It is empty.)'}")
    reason = f"the context had {used:,} of {size:,} tokens, and was summarised"
    dialogue.restart(begun, Fork(0, reason, "compacted"), None)


def _drop(context: DropToolResults, size: int, dialogues: Dialogues, dialogue: Dialogue) -> None:
    try:
        used = dialogues.prompt_tokens(dialogue)
    except LimitReached:  # so many that they were not counted
        used = size
    if used <= min(context.at * size, size - dialogues.episode.sampling.max_tokens):
        return
    messages = dialogue.conversation.messages
    results = [index for index, message in enumerate(messages) if message.role == "tool"]
    old = {
        index
        for index in results[: max(0, len(results) - context.keep)]
        if len(messages[index].content) > len(context.note) or messages[index].images
    }
    if not old:
        return
    shorter = [
        replace(message, content=context.note, images=[]) if index in old else message
        for index, message in enumerate(messages)
    ]
    reason = (
        f"the context had {used:,} of {size:,} tokens, and {len(old)} tool "
        f"result{'s were' if len(old) > 1 else ' was'} left out"
    )
    parent = next(n for n, lineage in enumerate(dialogues.lineages) if lineage is dialogue.lineage)
    dialogue.restart(shorter, Fork(0, reason, "dropped"), parent)


def _say(messages: list[Message], text: str) -> None:
    """Say something as the user: behind what the user said last, if it was the user who did.

    Chat templates that want user and assistant to alternate refuse two messages in a row.
    """
    if messages and messages[-1].role == "user":
        messages[-1] = replace(messages[-1], content=f"{messages[-1].content}\n\n{text}")
    else:
        messages.append(Message("user", text))

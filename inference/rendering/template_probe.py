"""How a chat template renders conversations: whether the context grows, and where not.

Each conversation is held as :class:`~vf.inference.models.token_model.TokenModel` would hold it,
with answers made of what the template itself renders for them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from vf.inference.model import Conversation
from vf.inference.rendering.next_prompt import divergence, next_prompt
from vf.inference.rendering.probe_script import CONVERSATIONS, TOOLS, ScriptedTurn, sampled_ids
from vf.inference.rendering.renderer import Renderer
from vf.runtime.errors import ConfigError, ModelError
from vf.traces.messages import Message
from vf.traces.trace import Fork

Kind = Literal["increasing", "bridged", "forks", "refused"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of one conversation.

    Attributes:
        conversation: Its name.
        kind: ``increasing`` if rendering everything again extends what was sampled in every turn;
            ``bridged`` if the context grows only because history is not rendered again;
            ``forks`` if it does not grow; ``refused`` if the template cannot express it.
        turn: The first turn that is not increasing, from 0.
        token: The index of the first token that the template would have changed.
        detail: What it would have changed, or what the template says.
        tools_shown: Whether the prompt tells the model of the tools on offer, if there are any.
    """

    conversation: str
    kind: Kind
    turn: int | None = None
    token: int | None = None
    detail: str = ""
    tools_shown: bool = True


def probe(renderer: Renderer, names: Iterable[str] = CONVERSATIONS) -> list[Verdict]:
    """Hold conversations of :data:`CONVERSATIONS`, by default all; say what became of each."""
    return [judge(renderer, name, CONVERSATIONS[name]) for name in names]


def summary(verdicts: Sequence[Verdict]) -> str:
    """Return the verdicts in one line."""
    parts = []
    for kind in ("refused", "forks"):
        names = [verdict.conversation for verdict in verdicts if verdict.kind == kind]
        if names:
            parts.append(f"{kind}: {', '.join(names)}")
    bridged = sum(verdict.kind == "bridged" for verdict in verdicts)
    if bridged:
        parts.append(f"bridged: rewrites history in {bridged} of {len(verdicts)} conversations")
    elif any(verdict.kind == "increasing" for verdict in verdicts):
        parts.append("increasing" if not parts else "increasing otherwise")
    if not all(verdict.tools_shown for verdict in verdicts):
        parts.append("does not tell the model of its tools")
    return "; ".join(parts)


def judge(renderer: Renderer, name: str, turns: Sequence[ScriptedTurn]) -> Verdict:
    """Hold one conversation and say what became of it.

    Args:
        renderer: The renderer with the template.
        name: The conversation's name, for the verdict.
        turns: Its answers; a user's question comes before the first.
    """
    tools = TOOLS if any(turn.answer.tool_calls for turn in turns) else []
    conversation = Conversation([Message("user", "How is the weather?")], tools)
    verdict = _hold(renderer, name, turns, conversation)
    return replace(verdict, tools_shown=not tools or shows_tools(renderer))


def shows_tools(renderer: Renderer) -> bool:
    """Return whether the template puts the tools on offer into the prompt."""
    try:
        text = renderer.template.text([Message("user", "-")], TOOLS)
    except Exception:  # it says so itself where it is given a conversation
        return True
    return str(TOOLS[0]["function"]["name"]) in text


WAYS_OUT = (
    'Set chat_template to a template that does ("chatml", which ships with vf-rl, or a file), or '
    'tool_style = "text": the system prompt then lists the tools, and calls are read from the '
    "answers' text. Both belong in [inference] of a run's TOML ([data] of a warm start's), and are "
    "options of vf-rl eval and serve"
)
HIDES_TOOLS = f"the chat template does not tell the model of its tools. {WAYS_OUT}"


def check_kind(verdicts: Sequence[Verdict], conversation: str) -> None:
    """Make sure that the template can express the conversations of a run.

    Raises:
        ConfigError: If it refuses them.
    """
    for verdict in verdicts:
        if verdict.conversation == conversation and verdict.kind == "refused":
            ways_out = f". {WAYS_OUT}" if conversation == "tools" else ""
            raise ConfigError(
                f"the model's chat template cannot express a conversation of this run's kind "
                f"({conversation}); it says: {verdict.detail}{ways_out}"
            )


def _hold(
    renderer: Renderer, name: str, turns: Sequence[ScriptedTurn], conversation: Conversation
) -> Verdict:
    verdict = Verdict(name, "increasing")
    for index, turn in enumerate(turns):
        conversation.turn = index
        try:
            branch, context, fork = next_prompt(renderer, conversation)
        except (ConfigError, ModelError) as error:
            return Verdict(name, "refused", index, detail=_own_words(error))
        if fork is not None:
            return _forked(renderer, conversation, fork, context, name)
        if verdict.kind == "increasing" and index:
            verdict = _against_rendering(renderer, conversation, verdict)
        ids = sampled_ids(renderer, conversation, turn, branch.token_ids + context)
        if not branch.token_ids:
            conversation.branches.append(branch)
        branch.add_context(context, index)
        branch.add_sampled(ids, [0.0] * len(ids), [0] * len(ids), index)
        conversation.encoded = len(conversation.messages) + 1
        conversation.messages += [turn.answer, *turn.observed]
    return verdict


def _against_rendering(renderer: Renderer, conversation: Conversation, verdict: Verdict) -> Verdict:
    """Compare the context with a rendering of the whole conversation."""
    held, turn = conversation.branches[-1].token_ids, conversation.turn
    try:
        rendered = renderer.prompt(conversation.messages, conversation.tools)
    except ConfigError as error:
        return Verdict(verdict.conversation, "bridged", turn, detail=_own_words(error))
    if rendered[: len(held)] == held:
        return verdict
    index, texts = divergence(renderer, held, rendered)
    return Verdict(verdict.conversation, "bridged", turn, index, texts)


def _forked(
    renderer: Renderer, conversation: Conversation, fork: Fork, rendered: list[int], name: str
) -> Verdict:
    index, texts = divergence(renderer, conversation.branches[-1].token_ids, rendered)
    return Verdict(name, "forks", fork.turn, index, f"{fork.reason}; {texts}")


def _own_words(error: BaseException) -> str:
    """Return what the template itself said."""
    while error.__cause__ is not None:
        error = error.__cause__
    return (str(error) or type(error).__name__).splitlines()[0]

"""How the context of a conversation grows from one turn to the next, or why it cannot."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from vf.inference.model import Conversation
from vf.inference.rendering.renderer import BridgeError, Renderer
from vf.inference.rendering.vision import images_of
from vf.runtime.errors import ConfigError, ModelError
from vf.traces.images import Image
from vf.traces.trace import Branch, Fork

ThinkingHistory = Literal["keep", "template"]


class Unrenderable(ModelError):
    """The chat template refuses a conversation."""


def next_prompt(
    renderer: Renderer, conversation: Conversation, thinking_history: ThinkingHistory = "keep"
) -> tuple[Branch, list[int], Fork | None]:
    """Return the branch to grow, what to append to it, and a fork if it is a new one.

    Nothing is changed: the caller appends once the turn has been answered.

    Args:
        renderer: Chat template and parser.
        conversation: The messages so far, and the branches that hold them.
        thinking_history: ``keep`` appends to what was sampled, reasoning included. ``template``
            renders everything again each turn, so that the template decides which reasoning the
            model sees again, and forks where that does not extend the context.

    Raises:
        ConfigError: If the template refuses the first prompt, or a message holds an image that the
            model cannot read.
        Unrenderable: If the template refuses the conversation that the model has produced.
    """
    messages = conversation.messages
    renderer.check_images(messages[conversation.encoded :])
    if conversation.fork is not None:
        return Branch(), _rendered(renderer, conversation), conversation.fork
    if not conversation.branches:
        return Branch(), renderer.opening(messages, conversation.tools), None
    branch, new = conversation.branches[-1], messages[conversation.encoded :]
    reply, last = messages[conversation.encoded - 1], branch.token_ids[-1]
    if not new and last not in renderer.stop_token_ids:
        return branch, [], None  # the answer was cut off: it is continued
    if new and thinking_history == "template":
        return _render_again(renderer, conversation, branch, None)
    try:
        return branch, renderer.bridge(reply, new, conversation.tools, last), None
    except BridgeError as error:
        return _render_again(renderer, conversation, branch, str(error))
    except ConfigError as error:  # of an image
        raise _unrenderable(conversation, error) from error


def new_images(
    renderer: Renderer, conversation: Conversation, branch: Branch, context: Sequence[int]
) -> list[Image]:
    """Return the images in what is to be appended to a branch, with their places in it.

    Args:
        renderer: See :func:`next_prompt`.
        conversation: See there.
        branch: The branch that it returned.
        context: The tokens that it returned.

    Raises:
        Unrenderable: If they are not where the template has put them.
    """
    if renderer.vision is None:
        return []
    messages = conversation.messages[conversation.encoded if branch.token_ids else 0 :]
    try:
        return renderer.vision.placed(context, images_of(messages), len(branch))
    except ConfigError as error:
        raise _unrenderable(conversation, error) from error


def divergence(renderer: Renderer, before: Sequence[int], after: Sequence[int]) -> tuple[int, str]:
    """Return where a rendering leaves the context, as a token's index, and the texts around it."""
    pairs = enumerate(zip(before, after, strict=False))
    index = next((i for i, (old, new) in pairs if old != new), min(len(before), len(after)))
    start = max(index - 8, 0)
    old, new = (renderer.decode(ids[start : index + 8]) for ids in (before, after))
    return index, f"{old!r} became {new!r}"


def _render_again(
    renderer: Renderer, conversation: Conversation, branch: Branch, reason: str | None
) -> tuple[Branch, list[int], Fork | None]:
    """Render everything again; grow the branch if that happens to extend it, else fork."""
    ids = _rendered(renderer, conversation)
    if ids[: len(branch)] == branch.token_ids:
        return branch, ids[len(branch) :], None
    if reason is None:
        index, texts = divergence(renderer, branch.token_ids, ids)
        reason = f"the template rewrites history, at token {index}: {texts}"
    return Branch(), ids, Fork(conversation.turn, reason)


def _rendered(renderer: Renderer, conversation: Conversation) -> list[int]:
    try:
        return renderer.prompt(conversation.messages, conversation.tools)
    except ConfigError as error:
        # What the model said brought this about: it ends the rollout, not the run.
        raise _unrenderable(conversation, error) from error


def _unrenderable(conversation: Conversation, error: ConfigError) -> Unrenderable:
    return Unrenderable(f"turn {conversation.turn} cannot be rendered: {error}")

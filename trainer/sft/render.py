"""A trace's messages as the tokens that this model would have read and written.

The context is put together exactly as for rollouts (:mod:`vf.inference.rendering.next_prompt`): the
first prompt is rendered, and each later turn adds only what comes between two answers. An answer is
what the chat template shows of it behind the prompt, up to the token that ends it. Whatever was
encoded is parsed again, and has to be the same message: a template that hides reasoning, or shows a
call differently from how it is read, is found out, and its traces are not trained on.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import groupby
from typing import Any

from vf.inference.model import Conversation
from vf.inference.rendering.next_prompt import Unrenderable, new_images, next_prompt
from vf.inference.rendering.renderer import BridgeError, Renderer
from vf.inference.rendering.template_probe import HIDES_TOOLS, shows_tools
from vf.runtime.errors import ConfigError, ModelError
from vf.traces.export.openai_chat import UNLEARNED
from vf.traces.messages import Message
from vf.traces.trace import NOT_SAMPLED, Branch, Lineage, Trace


def render(renderer: Renderer, trace: Trace) -> list[Branch]:
    """Return a trace's messages as token branches in which only the model's answers carry loss.

    Reasoning, tool calls and the token that ends an answer are parts of it. The branches have no
    logprobs (all are 0.0).

    Raises:
        Unrenderable: If the chat template refuses them, or does not show an answer as it is read.
        ConfigError: If it does not show the tools of a trace.
    """
    conversations = trace.conversations
    if any(lineage.tools for lineage in conversations) and not shows_tools(renderer):
        raise ConfigError(f"the traces have tools, but {HIDES_TOOLS}")
    unlearned = trace.info.get(UNLEARNED, ())
    branches = []
    for lineage in conversations:
        conversation = Conversation(tools=lineage.tools)
        learned = set(lineage.answers).difference(unlearned)
        sampled = learned.union(lineage.answers, _repeated(conversations, lineage))
        for index, message in enumerate(lineage.messages):
            if index in sampled:
                _answer(renderer, conversation, lineage.messages, index, learn=index in learned)
            conversation.messages.append(message)
        branches += conversation.branches
    return branches


def same_tokenizer(renderer: Renderer, trace: Trace) -> bool:
    """Return whether a trace's token ids mean, to this tokenizer, what the trace says was said."""
    answers, first = trace.answers, trace.conversations[0]
    prompts = first.messages[: first.prompt_messages]
    for number, branch in enumerate(trace.branches):
        ids = branch.token_ids
        if not ids or min(ids) < 0 or max(ids) >= len(renderer.tokenizer):
            return False
        if not len(ids) == len(branch.loss_mask) == len(branch.turn_index):
            return False  # a damaged trace
        runs = groupby(
            zip(branch.loss_mask, branch.turn_index, ids, strict=True),
            key=lambda token: token[:2],
        )
        for position, ((sampled, turn), tokens) in enumerate(runs):
            decoded = renderer.decode([token for _, _, token in tokens])
            if sampled:
                shown = answers[turn : turn + 1]
                if not shown or not _holds(decoded, shown[0]):
                    return False
            elif not number and not position and prompts:
                prompt = renderer.template.defuse(prompts[-1].content)
                if _dense(prompt) not in _dense(decoded):
                    return False
    return True


def _repeated(conversations: Sequence[Lineage], lineage: Lineage) -> set[int]:
    """Return the indices of the answers that a conversation has from the one that it left."""
    if lineage.parent is None:
        return set()
    left = conversations[lineage.parent]
    answers = {*left.answers, *_repeated(conversations, left)}
    begin = min(lineage.answers, default=len(lineage.messages))
    return {at for at in answers if at < begin and lineage.messages[at] == left.messages[at]}


def _answer(
    renderer: Renderer,
    conversation: Conversation,
    messages: Sequence[Message],
    index: int,
    *,
    learn: bool,
) -> None:
    """Extend the conversation's branches by the context of an answer and the answer."""
    before = messages[:index]
    if not before or (before[-1].role == "assistant" and index > 0):
        raise Unrenderable("an answer has nothing before it to answer")
    try:
        branch, context, fork = next_prompt(renderer, conversation)
        images = new_images(renderer, conversation, branch, context)
    except (ConfigError, ModelError) as error:
        raise Unrenderable(str(error)) from error
    prompt_ids = branch.token_ids + context
    ids = _encode(renderer, messages, index, conversation.tools, prompt_ids)
    if fork is not None:
        conversation.forks.append(fork)
    if not branch.token_ids:
        conversation.branches.append(branch)
    turn = conversation.turn
    branch.add_context(context, turn, images)
    if learn:
        branch.add_sampled(ids, [0.0] * len(ids), [NOT_SAMPLED] * len(ids), turn)
    else:
        branch.add_context(ids, turn)
    conversation.encoded = index + 1
    conversation.turn += 1


def _encode(
    renderer: Renderer,
    messages: Sequence[Message],
    index: int,
    tools: Sequence[dict[str, Any]],
    prompt_ids: Sequence[int],
) -> list[int]:
    """Return the ids of an answer, with the token that ends it."""
    message = messages[index]
    text = _shown(renderer, messages, index, tools, opened=renderer.opens_reasoning(prompt_ids))
    stops = [renderer.template.token(stop) for stop in renderer.stop_token_ids]
    end = max(text.rfind(stop) + len(stop) if stop in text else -1 for stop in stops)
    if end > 0:
        ids = renderer.template.encode_after(text[:end])
    else:
        ids = renderer.template.encode_after(text.rstrip("\n"))
        ids.append(_stop(renderer, messages, index, tools))
    read = renderer.parse(ids, prompt_ids=prompt_ids, turn=index, tools=tools)
    if _content(read) != _content(message) or any(i in renderer.stop_token_ids for i in ids[:-1]):
        raise Unrenderable("the chat template does not show an answer as it is read")
    return ids


def _shown(
    renderer: Renderer,
    messages: Sequence[Message],
    index: int,
    tools: Sequence[dict[str, Any]],
    *,
    opened: bool,
) -> str:
    """Return what the template shows of an answer, reasoning included.

    Where the prompt opens the reasoning, or the template leaves it out of what was said, it is
    put back in front.
    """
    try:
        before = renderer.template.text(messages[:index], tools)
        after = renderer.template.text(messages[: index + 1], tools)
    except Exception as error:  # jinja raises whatever the template's author chose
        raise Unrenderable(f"the chat template refuses the conversation: {error}") from error
    opener = renderer.parser.reasoning_opener
    whole = after.startswith(before)
    if not whole and opened:
        before = before.rstrip().removesuffix(opener)
    if not after.startswith(before):
        raise Unrenderable("the chat template rewrites the prompt when it has been answered")
    answer, reasoning = after[len(before) :], (messages[index].reasoning or "").strip("\n")
    if not whole and answer.startswith(opener):
        return answer.removeprefix(opener)
    if (whole or not opened) and reasoning in answer:
        return answer
    closer = opener.replace("<", "</", 1)
    lead = "" if opened else f"{opener}\n"
    return f"{lead}{reasoning}\n{closer}\n\n{answer.lstrip()}"


def _stop(
    renderer: Renderer, messages: Sequence[Message], index: int, tools: Sequence[dict[str, Any]]
) -> int:
    """Return what ends an answer whose end the template leaves to the next message."""
    end = index + 1
    while end < len(messages) and messages[end].role != "assistant":
        end += 1
    if messages[index + 1 : end]:
        try:
            after = renderer.bridge(messages[index], messages[index + 1 : end], tools)
        except BridgeError:
            after = []
        if after and after[0] in renderer.stop_token_ids:
            return after[0]
    return renderer.closer_id


def _content(message: Message) -> tuple[Any, ...]:
    calls = [(call.name, _value(call.arguments), call.malformed) for call in message.tool_calls]
    return message.content.strip(), (message.reasoning or "").strip(), calls


def _value(arguments: str) -> Any:
    try:
        return json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments


def _holds(decoded: str, message: Message) -> bool:
    """Return whether a decoded answer has a message's words in it."""
    dense = _dense(decoded)
    parts = [message.content, message.reasoning or "", *(c.name for c in message.tool_calls)]
    return all(_dense(part) in dense for text in parts for part in text.splitlines())


def _dense(text: str) -> str:
    return "".join(text.split())

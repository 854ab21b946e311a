"""The items of the Responses API, from and to messages.

An answer with reasoning, text and two calls is four items. Their ids hold the answer's own, by
which they become one message again. Clients that send no ids send the items in the same order.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vf.inference.endpoint.dialect import Refusal
from vf.inference.endpoint.reading import entries, parts_of, string, text_of
from vf.inference.endpoint.response_tools import call_item, call_of
from vf.inference.model import Reply
from vf.inference.request_limits import MOST_MESSAGES
from vf.traces.messages import Message

_PARTS = {"input_text": "text", "output_text": "text", "text": "text", "refusal": "refusal"}
_CALLS = ("function_call", "custom_tool_call")
_RESULTS = ("function_call_output", "custom_tool_call_output")
# The order of an answer's items.
_REASONING, _TEXT, _CALL = range(3)
_ID = re.compile(r"(?:rs|msg|fc|ctc)_([0-9a-f]{32})(?:_\d+)?")
_RESPONSE_ID = re.compile(r"resp_([0-9a-f]{32})(?:_(\d+))?")


def response_id(answer: str, instructions: str | None) -> str:
    """Return a response's id.

    It says how long its instructions are: a request that continues it does not inherit them.
    """
    return f"resp_{answer}" + (f"_{len(instructions)}" if instructions else "")


def stored_messages(response: str, stored: Mapping[str, Sequence[Message]]) -> list[Message]:
    """Return the conversation that a response ended, without its instructions.

    Raises:
        Refusal: If there is no such response in this rollout.
    """
    match = _RESPONSE_ID.fullmatch(response)
    if match is None or match[1] not in stored:
        raise Refusal(
            f"Previous response with id '{response}' not found.",
            code="previous_response_not_found",
            param="previous_response_id",
        )
    messages = list(stored[match[1]])
    if match[2] is not None:
        rest = messages[0].content[int(match[2]) :].removeprefix("\n\n")
        messages[:1] = [Message("system", rest)] if rest else []
    return messages


def messages_of(items: Sequence[Any], stored: Mapping[str, Sequence[Message]]) -> list[Message]:
    """Return the messages that items are.

    Raises:
        Refusal: If an item is ill-formed, or of a kind that is not supported.
    """
    reading = _Reading([])
    for where, item in entries(items, "input", MOST_MESSAGES):
        if item.get("type") == "item_reference":
            item = _referred(string(item, "id", where), where, stored)
        reading.take(item, where)
    return reading.messages


@dataclass(slots=True)
class _Reading:
    """Messages as far as they are read, and the assistant's last one, to which items may belong."""

    messages: list[Message]
    message: Message | None = None
    answer: str | None = None  # its id, where its items have ids
    stage: int = _REASONING  # how far its items have come

    def take(self, item: Mapping[str, Any], where: str) -> None:
        kind = item.get("type", "message" if "role" in item else None)
        if kind == "reasoning":
            self._assistant(item, _REASONING).reasoning = _reasoning(item, where)
        elif kind in _CALLS:
            self._assistant(item, _CALL).tool_calls.append(call_of(item, where))
        elif kind in _RESULTS:
            output = parts_of(item.get("output"), f"{where}.output", _PARTS)
            call = string(item, "call_id", where)
            self.messages.append(Message.of("tool", output, tool_call_id=call))
        elif kind == "message":
            self._message_item(item, where)
        else:
            raise Refusal(f"{where}: an item of type {kind!r} is not supported", param=where)

    def _message_item(self, item: Mapping[str, Any], where: str) -> None:
        path = f"{where}.content"
        match item.get("role"):
            case "assistant":
                text = text_of(item.get("content"), path, _PARTS, between="")
                self._assistant(item, _TEXT).content += text
            case "user":
                content = parts_of(item.get("content"), path, _PARTS)
                self.messages.append(Message.of("user", content))
            case "system" | "developer":
                text = text_of(item.get("content"), path, _PARTS)
                self.messages.append(Message("system", text))
            case role:
                raise Refusal(
                    f"{where}.role must be user, assistant, system or developer, got {role!r}",
                    param=f"{where}.role",
                )

    def _assistant(self, item: Mapping[str, Any], stage: int) -> Message:
        """Return the message that an item of the assistant's belongs to."""
        match = _ID.fullmatch(str(item.get("id")))
        answer = match and match[1]
        if self.message is None or not self._belongs(answer, stage):
            self.message, self.answer = Message("assistant"), None
            self.messages.append(self.message)
        self.answer = self.answer or answer
        self.stage = stage
        return self.message

    def _belongs(self, answer: str | None, stage: int) -> bool:
        if answer and self.answer:
            return answer == self.answer  # even if a tool's result is between
        follows = stage > self.stage or stage == self.stage == _CALL
        return follows and self.messages[-1] is self.message


def items_of(raw: Mapping[str, Any], answer: str, reply: Reply) -> list[dict[str, Any]]:
    """Return the items of an answer.

    Args:
        raw: The request.
        answer: The answer's id.
        reply: The answer.
    """
    message = reply.message
    items: list[dict[str, Any]] = []
    if message.reasoning is not None:
        items.append(_reasoning_item(raw, answer, message.reasoning))
    if message.content or not message.tool_calls:
        part = {"type": "output_text", "text": message.content, "annotations": [], "logprobs": []}
        cut = reply.finish_reason in ("length", "content_filter") and not message.tool_calls
        items.append(
            {
                "type": "message",
                "id": f"msg_{answer}",
                "role": "assistant",
                "status": "incomplete" if cut else "completed",
                "content": [part],
            }
        )
    for index, call in enumerate(message.tool_calls):
        item = call_item(call, raw.get("tools"))
        prefix = "fc" if item["type"] == "function_call" else "ctc"
        items.append({**item, "id": f"{prefix}_{answer}_{index}", "status": "completed"})
    return items


def begun(item: Mapping[str, Any]) -> dict[str, Any]:
    """Return an item as it is when it is added to a stream's answer."""
    empty = {"content": [], "summary": [], "arguments": "", "input": "", "status": "in_progress"}
    return {**item, **{name: value for name, value in empty.items() if name in item}}


def item_events(item: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the events between an item's first and last, without the item's id and index."""
    for index, part in enumerate(item.get("summary") or ()):
        position = {"summary_index": index}
        kind = "response.reasoning_summary"
        yield {"type": f"{kind}_part.added", "part": {**part, "text": ""}, **position}
        yield {"type": f"{kind}_text.delta", "delta": part["text"], **position}
        yield {"type": f"{kind}_text.done", "text": part["text"], **position}
        yield {"type": f"{kind}_part.done", "part": part, **position}
    for index, part in enumerate(item.get("content") or ()):
        position = {"content_index": index}
        kind = f"response.{part['type']}"
        more: dict[str, Any] = {"logprobs": []} if part["type"] == "output_text" else {}
        yield {"type": "response.content_part.added", "part": {**part, "text": ""}, **position}
        yield {"type": f"{kind}.delta", "delta": part["text"], **position, **more}
        yield {"type": f"{kind}.done", "text": part["text"], **position, **more}
        yield {"type": "response.content_part.done", "part": part, **position}
    if item["type"] == "function_call":
        text, kind = item["arguments"], "response.function_call_arguments"
        yield {"type": f"{kind}.delta", "delta": text}
        yield {"type": f"{kind}.done", "arguments": text, "name": item["name"]}
    elif item["type"] == "custom_tool_call":
        text, kind = item["input"], "response.custom_tool_call_input"
        yield {"type": f"{kind}.delta", "delta": text}
        yield {"type": f"{kind}.done", "input": text}


def _reasoning_item(raw: Mapping[str, Any], answer: str, text: str) -> dict[str, Any]:
    settings = raw.get("reasoning") or {}
    item: dict[str, Any] = {"type": "reasoning", "id": f"rs_{answer}", "summary": []}
    if settings.get("summary") or settings.get("generate_summary"):
        item["summary"] = [{"type": "summary_text", "text": text}]
    else:
        item["content"] = [{"type": "reasoning_text", "text": text}]
    if "reasoning.encrypted_content" in (raw.get("include") or ()):
        item["encrypted_content"] = base64.b64encode(text.encode()).decode()
    return item


def _reasoning(item: Mapping[str, Any], where: str) -> str | None:
    if item.get("encrypted_content") is not None:
        path = f"{where}.encrypted_content"
        try:
            return base64.b64decode(
                string(item, "encrypted_content", where), validate=True
            ).decode()
        except ValueError:
            raise Refusal(f"{path} is not from this endpoint", param=path) from None
    texts = [
        string(part, "text", path)
        for name in ("content", "summary")
        for path, part in entries(item.get(name) or [], f"{where}.{name}")
    ]
    return "\n".join(texts) if texts else None


def _referred(
    reference: str, where: str, stored: Mapping[str, Sequence[Message]]
) -> dict[str, Any]:
    match = _ID.fullmatch(reference)
    if match is not None and match[1] in stored:
        # Without the tools of its request, a call of a custom one is a function's.
        item_id = re.sub("^ctc_", "fc_", reference)
        for item in items_of({}, match[1], Reply(stored[match[1]][-1])):
            if item["id"] == item_id:
                return item
    raise Refusal(f"Item with id '{reference}' not found.", 404, param=f"{where}.id")

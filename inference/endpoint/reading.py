"""What the dialects share: typed fields of a request, text in parts, and server-sent events."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import groupby
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import to_json

from vf.inference.endpoint.dialect import Refusal
from vf.inference.request_limits import MOST_FIELDS, MOST_PARTS
from vf.inference.wire import field_name
from vf.runtime.errors import ConfigError
from vf.traces.images import Image, image_of
from vf.traces.messages import Message, ToolCall

_CODES = {
    "extra_forbidden": "unknown_parameter",
    "missing": "missing_required_parameter",
}


# A request's fields: no other ones, and of no other type.
EXACT = ConfigDict(extra="forbid", strict=True)

_READ_ONE_BY_ONE = ("messages", "input")  # which have limits of their own

BodyT = TypeVar("BodyT", bound=BaseModel)


def parse(kind: type[BodyT], body: Mapping[str, Any]) -> BodyT:
    """Return a request's fields.

    Raises:
        Refusal: If a field is wrong, missing or unknown; the message names it.
    """
    if not isinstance(body, dict):
        raise Refusal(f"the body must be a JSON object, got {_kind(body)}")
    # Each wrong entry would be a problem of its own, and all of them are made to report the first.
    for where, value in (("the body", body), *body.items()):
        if isinstance(value, dict | list) and where not in _READ_ONE_BY_ONE:
            check_count(value, where, MOST_FIELDS)
    try:
        return kind.model_validate(body)
    except ValidationError as error:
        problems = error.errors(include_url=False, include_context=False)
        name = field_name(problems[0]["loc"])
        # A field that may have one of several types has a problem with each of them.
        texts = [problem["msg"] for problem in problems if field_name(problem["loc"]) == name]
        code = _CODES.get(problems[0]["type"], "invalid_value")
        raise Refusal(f"{name}: {', or: '.join(texts)}", code=code, param=name) from None


def entries(raw: Any, where: str, most: int = MOST_PARTS) -> list[tuple[str, dict[str, Any]]]:
    """Return a list's objects, each with its place.

    Raises:
        Refusal: If it is not a list of objects, or has more than ``most``.
    """
    if not isinstance(raw, list):
        raise Refusal(f"{where} must be a list, got {_kind(raw)}", param=where)
    check_count(raw, where, most)
    objects = []
    for index, entry in enumerate(raw):
        path = f"{where}[{index}]"
        if not isinstance(entry, dict):
            raise Refusal(f"{path} must be an object, got {_kind(entry)}", param=path)
        objects.append((path, entry))
    return objects


def check_count(raw: Collection[Any], where: str, most: int = MOST_PARTS) -> None:
    """Raise Refusal if a list has more than ``most`` entries."""
    if len(raw) > most:
        raise Refusal(f"{where} has {len(raw):,} entries; at most {most:,} are read", param=where)


def string(raw: Mapping[str, Any], name: str, where: str) -> str:
    """Return one field of an object.

    Raises:
        Refusal: If the field is missing, or no text.
    """
    value = raw.get(name)
    if not isinstance(value, str):
        path = f"{where}.{name}"
        raise Refusal(f"{path} must be a string, got {_kind(value)}", param=path)
    return value


def text_of(content: Any, where: str, kinds: Mapping[str, str], *, between: str = "\n") -> str:
    """Return content, which is text or a list of parts, as text.

    Args:
        content: The content.
        where: Its place in the request.
        kinds: The types of parts that are text, and the field that holds it.
        between: The separator of two parts.

    Raises:
        Refusal: If the content is something else, or holds a part of another type.
    """
    if isinstance(content, str):
        return content
    if content is None:
        raise Refusal(f"{where} must be text or a list of parts, got nothing", param=where)
    return between.join(part_text(part, path, kinds) for path, part in entries(content, where))


def parts_of(
    content: Any, where: str, kinds: Mapping[str, str], *, between: str = "\n"
) -> list[str | Image]:
    """Return content, which is text or a list of parts, as texts and images.

    Args:
        content: The content.
        where: Its place in the request.
        kinds: The types of parts that are text, and the field that holds it.
        between: The separator of two texts.

    Raises:
        Refusal: If the content is something else, or holds a part of another type or an image that
            cannot be read.
    """
    if not isinstance(content, list):
        return [text_of(content, where, kinds)]
    return separated(
        [read_part(part, path, kinds) for path, part in entries(content, where)], between
    )


def separated(parts: Sequence[str | Image], between: str = "\n") -> list[str | Image]:
    """Return parts with a separator before each text but the first."""
    result: list[str | Image] = []
    begun = False
    for part in parts:
        if isinstance(part, str) and begun:
            result.append(between)
        begun = begun or isinstance(part, str)
        result.append(part)
    return result


def read_part(part: Mapping[str, Any], where: str, kinds: Mapping[str, str]) -> str | Image:
    """Return one part of a content that may hold images.

    Raises:
        Refusal: If the part is of another type, or an image that cannot be read.
    """
    try:
        image = image_of(part)
    except ConfigError as error:
        raise Refusal(f"{where}: {error}", param=where) from error
    return part_text(part, where, kinds) if image is None else image


def part_text(part: Mapping[str, Any], where: str, kinds: Mapping[str, str]) -> str:
    """Return one part of a content as text.

    Raises:
        Refusal: If the part is of another type.
    """
    kind = part.get("type")
    if not isinstance(kind, str) or kind not in kinds:
        raise Refusal(
            f"{where}: a part of type {kind!r} is not supported here: content must be text",
            param=where,
        )
    return string(part, kinds[kind], where)


def function_tool(raw: Mapping[str, Any], where: str, schema: str, *, name: str) -> dict[str, Any]:
    """Return a tool in OpenAI's chat format.

    Args:
        raw: The tool as the dialect has it.
        where: Its place in the request.
        schema: The field that holds its parameters' schema.
        name: Its name.

    Raises:
        Refusal: If a field is wrong.
    """
    parameters = raw.get(schema)
    if not isinstance(parameters, dict | None):
        path = f"{where}.{schema}"
        raise Refusal(f"{path} must be an object, got {_kind(parameters)}", param=path)
    function: dict[str, Any] = {"name": name}
    if raw.get("description") is not None:
        function["description"] = string(raw, "description", where)
    function["parameters"] = parameters or {"type": "object", "properties": {}}
    if raw.get("strict"):
        function["strict"] = True
    return {"type": "function", "function": function}


def settled(messages: Sequence[Message]) -> list[Message]:
    """Return messages with each turn's tool results in the order of its calls, and named.

    Agents send results as they come in, and chat templates show them in place of ids.
    """
    ordered: list[Message] = []
    calls: list[ToolCall] = []
    for role, run in groupby(messages, key=lambda message: message.role):
        turn = list(run)
        if role == "assistant":
            calls = turn[-1].tool_calls
        elif role == "tool":
            order = {call.id: index for index, call in enumerate(calls)}
            turn.sort(key=lambda message: order.get(message.tool_call_id or "", len(calls)))
            names = {call.id: call.name for call in calls}
            for message in turn:
                message.name = names.get(message.tool_call_id or "", message.name)
        ordered += turn
    return ordered


def openai_error(refusal: Refusal) -> dict[str, Any]:
    """Return the body of an error response of OpenAI's."""
    return {
        "error": {
            "message": str(refusal),
            "type": "server_error" if refusal.status >= 500 else "invalid_request_error",
            "param": refusal.param,
            "code": refusal.code,
        }
    }


def event(data: Mapping[str, Any]) -> bytes:
    """Return a server-sent event that is named by its data's ``type``."""
    return b"event: %b\ndata: %b\n\n" % (data["type"].encode(), to_json(data))


def _kind(value: object) -> str:
    return "nothing" if value is None else type(value).__name__

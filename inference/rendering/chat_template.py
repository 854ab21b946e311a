"""A tokenizer's chat template: messages to text and token ids, in the shape that it expects.

OpenAI's format leaves open what templates disagree on: whether content is text or a list of
parts, whether arguments are an object or JSON text. The :class:`Dialect` of a template is found
by rendering a marker each way and looking which way it shows.

Special tokens that a user's or a tool's text spells out are broken up by a zero-width space, so
that what a tool found cannot close its turn and open another.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import Any

from vf.inference.model import ToolStyle
from vf.inference.rendering.bounded import TooMuch, check_source, render, try_out
from vf.inference.rendering.shipped import SHIPPED, is_shipped
from vf.inference.rendering.text_tools import in_text
from vf.inference.rendering.tools_lead import tools_only_lead
from vf.inference.rendering.vision import Vision, images_of
from vf.runtime.errors import ConfigError
from vf.traces.images import Image, placed
from vf.traces.messages import Message, Role, ToolCall

MARKER = "vfmarkervf"  # letters only, so that no template escapes it


@dataclass(frozen=True, slots=True)
class Dialect:
    """How a template wants messages where OpenAI's format leaves it open.

    Attributes:
        parts: Content is a list of parts, not text (templates of vision models).
        text_arguments: A call's arguments are JSON text, not an object.
        short_ids: Ids of calls are nine letters and digits (Mistral).
    """

    parts: bool = False
    text_arguments: bool = False
    short_ids: bool = False


class ChatTemplate:
    """Renders messages with the chat template of one Hugging Face tokenizer.

    Args:
        tokenizer: A ``PreTrainedTokenizerBase`` with a chat template.
        template_args: Extra variables for the template, like ``enable_thinking``.
        tool_style: ``template`` hands tools, calls and results to the template; ``text`` writes
            them into the messages' text first (:mod:`vf.inference.rendering.text_tools`).
        vision: The model's processor of images; None refuses them.

    Raises:
        ConfigError: If there is no chat template, it cannot render one question, or a special
            token is not in the vocabulary.
    """

    def __init__(
        self,
        tokenizer: Any,
        template_args: dict[str, Any] | None = None,
        tool_style: ToolStyle = "template",
        vision: Vision | None = None,
    ) -> None:
        if not getattr(tokenizer, "chat_template", None):
            names = " or ".join(f'"{name}"' for name in SHIPPED)
            raise ConfigError(
                f"the tokenizer {tokenizer.name_or_path!r} has no chat template, as that of a base "
                f"model: set chat_template to {names}, which ship with vf-rl, or to a file with "
                "one; or use a chat model"
            )
        self._excess: TooMuch | None = None  # what was too much before is not tried again
        try:
            template = tokenizer.chat_template
            if isinstance(template, str) and not is_shipped(template):
                check_source(template)
                try_out(template)
        except TooMuch as error:
            raise ConfigError(f"the chat template cannot be used: {error}") from error
        self.tokenizer = tokenizer
        self.vision = vision
        self._in_text = tool_style == "text"
        self._template_args = template_args or {}
        added = tokenizer.added_tokens_decoder
        flagged = {index for index, token in added.items() if token.special}
        if None in (named := tokenizer.all_special_ids):
            unknown = tokenizer.all_special_tokens[named.index(None)]
            raise ConfigError(
                f"the special token {unknown!r} of the tokenizer {tokenizer.name_or_path!r} is not "
                "in its vocabulary: correct tokenizer_config.json"
            )
        special = flagged | set(named)
        #: Texts of the special tokens, and of all tokens that are never split or merged.
        self.special = {self.token(index) for index in special}
        self._atoms = self.special | {token.content for token in added.values()}
        longest_first = sorted(self._atoms, key=len, reverse=True)
        self._atom = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")
        self._forging = set(self.special)
        self.dialect = Dialect()
        self.dialect = self._find_dialect()
        self._forging |= self._role_tokens()
        #: Whether what follows an answer is the same without the tools.
        self.tools_only_lead = self._in_text or tools_only_lead(tokenizer.chat_template)

    def text(
        self,
        messages: Sequence[Message],
        tools: Sequence[dict[str, Any]],
        *,
        opens: bool | None = None,
    ) -> str:
        """Render messages as text; up to where the model answers, unless it has answered last.

        Raises whatever the template's author chose to raise.

        Args:
            messages: The messages.
            tools: The tools on offer.
            opens: Whether the model's turn is opened; None opens it where it has not answered last.
        """
        placed = self._placed([self._defused(message) for message in messages])
        if self._in_text:
            placed, tools = in_text(placed, tools, system_role=self._system_role), ()
        shaped = [_shaped(message, self.dialect) for message in placed]
        if opens is None:
            opens = messages[-1].role != "assistant"
        return self._render(shaped, tools, opens)

    def prompt_text(
        self,
        messages: Sequence[Message],
        tools: Sequence[dict[str, Any]],
        *,
        opens: bool = False,
    ) -> str:
        """Render messages up to where the model answers, or continues a last answer in words.

        Args:
            messages: The messages.
            tools: The tools on offer.
            opens: Whether the model does not continue a last answer, but begins another.

        Raises:
            ConfigError: If the template does not show the last answer as it is.

        Raises whatever the template's author chose to raise, too.
        """
        last = messages[-1]
        if opens or last.role != "assistant":
            return self.text(messages, tools, opens=True)
        if not last.content:
            return self.text(messages[:-1], tools)
        marker = MARKER + "e"
        while marker in last.content:
            marker += "e"
        text = self.text([*messages[:-1], replace(last, content=last.content + marker)], tools)
        before, _, _ = text.rpartition(marker)
        if not before.endswith(last.content.lstrip()):
            raise ConfigError("it does not show the beginning of the last answer as it is")
        return before

    def with_images(self, text: str, messages: Sequence[Message]) -> str:
        """Return the text of messages in which each image's placeholder is as the model reads it.

        Raises:
            ConfigError: If the text does not show each of their images once.
        """
        if self.vision is None:  # nobody gets here with an image
            return text
        return self.vision.shown(text, images_of(messages))

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text that begins a sequence."""
        return list(self.tokenizer.encode(text, add_special_tokens=False))

    def encode_after(self, text: str) -> list[int]:
        """Return the ids of a text that follows other tokens.

        A tokenizer may treat a sequence's first word in its own way, so text is encoded behind
        a special token, which is never merged with its neighbours and is taken off again.
        """
        front = self.tokenizer.eos_token or min(self.special, default="")
        if not front or self._atom.match(text):
            return self.encode(text)
        ids = self.encode(front + text)
        return ids[1:] if ids[0] == self.id(front) else self.encode(text)

    def atoms(self, text: str) -> list[str]:
        """Return the tokens in a text that are never split or merged, in order."""
        return self._atom.findall(text)

    def token(self, token_id: int) -> str:
        """Return the text of one token of the vocabulary."""
        return str(self.tokenizer.convert_ids_to_tokens(token_id))

    def id(self, token: str) -> int:
        """Return the id of a token of the vocabulary."""
        return int(self.tokenizer.convert_tokens_to_ids(token))

    def defuse(self, text: str) -> str:
        """Break up the special tokens that a text spells out."""
        for token in self._forging:
            if token in text:
                text = text.replace(token, f"{token[:1]}\u200b{token[1:]}")
        return text

    def _defused(self, message: Message) -> Message:
        if message.role not in ("user", "tool"):
            return message
        name = None if message.name is None else self.defuse(message.name)
        if not message.images:
            return replace(message, content=self.defuse(message.content), name=name)
        parts = [self.defuse(part) if isinstance(part, str) else part for part in message.parts]
        content, images = placed(parts)
        return replace(message, content=content, images=images, name=name)

    def _placed(self, messages: list[Message]) -> list[Message]:
        """Return messages with system messages only where the template has a place for them.

        Agents send several, and more as they go. Many templates know one, the first: they refuse
        others, move them to the front, or leave them out without a word.
        """
        first = next(
            (i for i, message in enumerate(messages) if message.role != "system"), len(messages)
        )
        behind = messages[first:]
        if first < 2 and all(message.role != "system" for message in behind):
            return messages
        if self._systems_anywhere:
            return messages
        text = "\n\n".join(message.content for message in messages[:first])
        return [
            *([Message("system", text)] if first else []),
            *(
                replace(message, role="user") if message.role == "system" else message
                for message in behind
            ),
        ]

    @cached_property
    def _systems_anywhere(self) -> bool:
        """Whether the template shows every system message where it stands."""
        roles: tuple[Role, ...] = (
            "system",
            "system",
            "user",
            "system",
            "assistant",
            "system",
            "user",
        )
        conversation = [Message(role, f"{MARKER}{number}") for number, role in enumerate(roles)]
        try:
            text = self._render(
                [_shaped(message, self.dialect) for message in conversation], (), True
            )
        except Exception:  # refusing it is an answer
            return False
        positions = [
            text.find(message.content) for message in conversation
        ]  # some put all of them in front
        return positions[0] >= 0 and positions == sorted(positions)

    @cached_property
    def _system_role(self) -> bool:
        """Whether the template shows a system prompt."""
        system = _shaped(Message("system", MARKER), self.dialect)
        try:
            question = _shaped(Message("user", "-"), self.dialect)
            return MARKER in self._render([system, question], (), True)
        except Exception:  # refusing it is an answer
            return False

    def _render(
        self, shaped: list[dict[str, Any]], tools: Sequence[dict[str, Any]], opens: bool
    ) -> str:
        if self._excess is not None:
            raise self._excess

        def write() -> str:
            return str(
                self.tokenizer.apply_chat_template(
                    shaped,
                    tools=list(tools) or None,
                    add_generation_prompt=opens,
                    tokenize=False,
                    **self._template_args,
                )
            )

        size = sum(len(str(message.get("content"))) for message in shaped) + sum(
            map(len, map(str, tools))
        )
        try:
            return render(write, size)
        except TooMuch as error:
            self._excess = error
            raise

    def _find_dialect(self) -> Dialect:
        question = Message("user", MARKER)
        parts, problem = False, None
        for parts in (False, True):
            try:
                if MARKER in self._render([_shaped(question, Dialect(parts=parts))], (), True):
                    break
            except Exception as error:  # jinja raises whatever the template's author chose
                problem = problem or error
        else:
            if problem is not None:
                raise ConfigError(f"the chat template cannot be rendered: {problem}") from problem
            parts = False
        calls = [ToolCall("call_0_0", "tool", json.dumps({"x": MARKER}))]
        called = Message("assistant", tool_calls=calls)
        ways = [
            Dialect(parts, text_arguments, short_ids)
            for short_ids, text_arguments in product((False, True), repeat=2)
        ]
        shown = {way: self._call(called, way) for way in ways}
        # An object may be printed as Python prints it, which is not how a model calls.
        clear = (way for way in ways if MARKER in shown[way] and "{'x'" not in shown[way])
        return next(clear, None) or next((way for way in ways if shown[way]), ways[0])

    def _call(self, called: Message, way: Dialect) -> str:
        """Render a call one way; empty where that is refused."""
        try:
            return self._render(
                [_shaped(m, way) for m in (Message("user", "-"), called)], (), False
            )
        except Exception:  # refusing one of the ways is an answer
            return ""

    def _role_tokens(self) -> set[str]:
        """Return the tokens that open a user's and the model's turn, flagged special or not."""
        answer, question = MARKER + "a", MARKER + "q"
        try:
            text = self.text(
                [Message("user", "-"), Message("assistant", answer), Message("user", question)], ()
            )
        except Exception:  # a template for one turn has no later turns to forge
            return set()
        before, _, after = text.rpartition(question)
        return {*self.atoms(before.rpartition(answer)[2]), *self.atoms(after)[:1]}


def _shaped(message: Message, dialect: Dialect) -> dict[str, Any]:
    raw = replace(message, images=[]).to_openai()
    if message.reasoning is not None:
        raw["thinking"] = message.reasoning  # what gpt-oss's template reads
    if message.images:
        raw["content"] = [
            {"type": "image"} if isinstance(part, Image) else {"type": "text", "text": part}
            for part in message.parts
        ]
    elif dialect.parts:
        raw["content"] = [{"type": "text", "text": raw["content"]}]
    for call in raw.get("tool_calls", ()):
        if not dialect.text_arguments:
            call["function"]["arguments"] = _as_object(call["function"]["arguments"])
        if dialect.short_ids:
            call["id"] = _short(call["id"])
    if dialect.short_ids and message.role == "tool":
        raw["tool_call_id"] = _short(message.tool_call_id or "")
    return raw


def _as_object(arguments: str) -> dict[str, Any]:
    try:
        read = json.loads(arguments)
    except (ValueError, RecursionError):
        read = None
    return read if isinstance(read, dict) else {"malformed": arguments}


def _short(call_id: str) -> str:
    return f"{zlib.crc32(call_id.encode()):09x}"

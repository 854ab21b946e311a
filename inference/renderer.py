"""Messages to token ids and back, for one tokenizer, without touching what was sampled.

A conversation is rendered through the chat template once, for its first prompt. Each later turn
adds only the *bridge*: the tokens between the model's last sampled token and its next one. The
bridge is found by rendering a small closed conversation whose assistant turn holds a marker, and
taking what follows the token that closes that turn. So a template that rewrites history (strips
``<think>``, say) has no history to rewrite, and sampled ids are never encoded again.

Special tokens that a user's or a tool's text spells out are broken up by a zero-width space, so
that what a tool found cannot close its turn and open another.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from vf.inference.parsing import parse_hermes
from vf.traces.errors import ConfigError
from vf.traces.messages import Message, ToolCall

_MARKER = "vfmarkervf"  # letters only, so that no template escapes it
_TAIL = 16  # tokens; more than "<think>" and line breaks can take


class BridgeError(Exception):
    """The template cannot be extended here; the message says where it breaks."""


class Renderer:
    """Renders and parses for one Hugging Face tokenizer with a jinja chat template.

    Args:
        tokenizer: A ``PreTrainedTokenizerBase`` with a chat template.
        stop_token_ids: Tokens that end an answer; the tokenizer's eos and the turn's closer are
            always among them.
        template_args: Extra variables for the chat template, like ``enable_thinking``.

    Raises:
        ConfigError: There is no chat template, or it does not close the assistant's turn with
            a token of its own.
    """

    def __init__(
        self,
        tokenizer: Any,
        stop_token_ids: Sequence[int] = (),
        template_args: dict[str, Any] | None = None,
    ) -> None:
        if not getattr(tokenizer, "chat_template", None):
            raise ConfigError(
                f"the tokenizer {tokenizer.name_or_path!r} has no chat template; use a chat "
                "model, or set tokenizer.chat_template and save it beside the weights"
            )
        self.tokenizer = tokenizer
        self._template_args = template_args or {}
        self._special = set(tokenizer.all_special_ids) | {
            index for index, token in tokenizer.added_tokens_decoder.items() if token.special
        }
        self._special_texts = [tokenizer.convert_ids_to_tokens(index) for index in self._special]
        self.closer_id = self._find_closer()
        eos = () if tokenizer.eos_token_id is None else (int(tokenizer.eos_token_id),)
        self.stop_token_ids = sorted({*stop_token_ids, *eos, self.closer_id})

    @classmethod
    def from_pretrained(cls, model: str, template_args: dict[str, Any] | None = None) -> Renderer:
        """Load the tokenizer (and the stop tokens) of a local folder or a hub name.

        Raises:
            ConfigError: It cannot be loaded, or has no usable chat template.
        """
        from transformers import AutoTokenizer, GenerationConfig

        try:
            tokenizer = AutoTokenizer.from_pretrained(model)
        except (OSError, ValueError) as error:
            raise ConfigError(f"model {model!r}: cannot load its tokenizer: {error}") from error
        stops: Sequence[int] = ()
        local = Path(model)
        if not local.is_dir() or (local / "generation_config.json").is_file():
            try:
                eos = GenerationConfig.from_pretrained(model).eos_token_id
            except OSError:
                eos = None
            if eos is not None:
                stops = [eos] if isinstance(eos, int) else list(eos)
        return cls(tokenizer, stops, template_args)

    def prompt(self, messages: Sequence[Message], tools: Sequence[dict[str, Any]]) -> list[int]:
        """Render a whole conversation, up to where the model answers.

        Raises:
            ConfigError: The template refuses these messages.
        """
        try:
            text = self._text(messages, tools)
        except Exception as error:  # jinja raises whatever the template's author chose
            raise ConfigError(f"the chat template refuses the conversation: {error}") from error
        return self._encode(text)

    def bridge(
        self,
        reply: Message,
        new: Sequence[Message],
        tools: Sequence[dict[str, Any]],
    ) -> list[int]:
        """Return the tokens from after the closer of ``reply`` to the next answer's first.

        Args:
            reply: The answer that was just sampled; only the shape of its tool calls matters.
            new: The messages that came after it.
            tools: The tools on offer.

        Raises:
            BridgeError: The template does not show where the answer ends.
        """
        marker, said = _MARKER, repr((new, tools))
        while marker in said:
            marker += "x"
        text = self._closed_text(reply, marker, new, tools)
        closer = self.tokenizer.convert_ids_to_tokens(self.closer_id)
        place = text.rfind(marker)
        if place < 0:
            raise BridgeError("the template does not show the last answer")
        end = text.find(closer, place)
        if end < 0:
            raise BridgeError(f"the template does not close the answer with {closer}")
        if not self._special.isdisjoint(self._encode(text[place:end])):
            raise BridgeError(f"the template closes this answer with another token than {closer}")
        # A special token is never merged with its neighbours, so encoding from it on gives the
        # same ids as encoding the whole; its id in front proves it.
        ids = self._encode(text[end:])
        if not ids or ids[0] != self.closer_id:
            raise BridgeError(f"the text after the answer does not begin with {closer}")
        return ids[1:]

    def parse(self, token_ids: Sequence[int], *, prompt_ids: Sequence[int], turn: int) -> Message:
        """Read an answer from its sampled ids; see :mod:`vf.inference.parsing`."""
        ids = list(token_ids)
        while ids and ids[-1] in self.stop_token_ids:
            ids.pop()
        return self.parse_text(self.decode(ids), prompt_ids=prompt_ids, turn=turn)

    def parse_text(self, text: str, *, prompt_ids: Sequence[int], turn: int) -> Message:
        """Read an answer from its text, without the stop token."""
        opened = self.opens_reasoning(prompt_ids)
        return parse_hermes(text, id_prefix=f"call_{turn}", in_reasoning=opened)

    def opens_reasoning(self, prompt_ids: Sequence[int]) -> bool:
        """Return whether a prompt ends with ``<think>``, so that the answer begins inside it."""
        return self.decode(prompt_ids[-_TAIL:]).rstrip().endswith("<think>")

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of token ids, special tokens included."""
        return str(self.tokenizer.decode(list(token_ids), skip_special_tokens=False))

    def _closed_text(
        self,
        reply: Message,
        marker: str,
        new: Sequence[Message],
        tools: Sequence[dict[str, Any]],
    ) -> str:
        """Render ``new`` after a stand-in for the answer, with the marker as its last words."""
        calls = [
            ToolCall(call.id, call.name or "unknown", json.dumps({"x": marker}))
            for call in reply.tool_calls
        ]
        # Some templates refuse parallel calls in the history (Llama 3.1). The model has made them
        # all the same, and what comes after them does not depend on how many there were.
        problem = None
        for shown in (calls, calls[:1]):
            marked = Message("assistant", "" if shown else marker, tool_calls=shown)
            try:
                return self._text([Message("user", "-"), marked, *new], tools)
            except Exception as error:  # jinja raises whatever the template's author chose
                problem = problem or error
        raise BridgeError(f"the template refuses the closed conversation: {problem}") from problem

    def _find_closer(self) -> int:
        """Find the token that closes an assistant's turn: the first special one after it."""
        try:
            text = self._text(
                [Message("user", "-"), Message("assistant", _MARKER), Message("user", "-")], ()
            )
        except Exception as error:
            raise ConfigError(f"the chat template cannot be rendered: {error}") from error
        _, found, after = text.rpartition(_MARKER)
        ids = self._encode(after) if found else []
        if not ids or ids[0] not in self._special:
            raise ConfigError(
                "the chat template does not close the assistant's turn with a special token "
                f"(after an answer it renders {after[:40]!r}), so turns cannot be told apart"
            )
        return int(ids[0])

    def _text(self, messages: Sequence[Message], tools: Sequence[dict[str, Any]]) -> str:
        return str(
            self.tokenizer.apply_chat_template(
                [_for_template(self._defused(message)) for message in messages],
                tools=list(tools) or None,
                add_generation_prompt=messages[-1].role != "assistant",
                tokenize=False,
                **self._template_args,
            )
        )

    def _defused(self, message: Message) -> Message:
        """Break up special tokens that a user or a tool wrote out, so that none forges a turn."""
        if message.role not in ("user", "tool"):
            return message
        content = message.content
        for text in self._special_texts:
            if text in content:
                content = content.replace(text, f"{text[:1]}\u200b{text[1:]}")
        return replace(message, content=content)

    def _encode(self, text: str) -> list[int]:
        return list(self.tokenizer.encode(text, add_special_tokens=False))


def _for_template(message: Message) -> dict[str, Any]:
    """Return a message as templates expect it: arguments as an object, not as text."""
    raw = message.to_openai()
    for call in raw.get("tool_calls", ()):
        try:
            call["function"]["arguments"] = json.loads(call["function"]["arguments"])
        except (ValueError, RecursionError):
            call["function"]["arguments"] = {"malformed": call["function"]["arguments"]}
    return raw

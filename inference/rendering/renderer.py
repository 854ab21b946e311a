"""Messages to token ids and back, for one tokenizer, without touching what was sampled.

A conversation is rendered through the chat template once, for its first prompt. Each later turn
adds only the *bridge*: the tokens between the model's last sampled token and its next one, read
off the template by :mod:`vf.inference.rendering.seam`. So a template that rewrites history
(strips ``<think>``, say) has no history to rewrite, and sampled ids are never encoded again.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from vf.inference.model import ToolStyle
from vf.inference.model_files import resolve_model
from vf.inference.parsing.families import parser_for, text_parser
from vf.inference.parsing.parser import Parser
from vf.inference.rendering.chat_template import ChatTemplate
from vf.inference.rendering.seam import BridgeError, Seams
from vf.inference.rendering.shipped import load_template
from vf.inference.rendering.vision import Vision
from vf.runtime.errors import ConfigError
from vf.traces.messages import Message

__all__ = ["BridgeError", "Renderer"]

_MOST_CACHED = 256  # renderings kept: more than the tasks that are under way at a time
_LONG = 20_000  # characters; what is rendered from more is not kept
_PIECE = 10_000  # characters that are counted at a time
_TAIL = 16  # tokens; more than "<think>" and line breaks can take


class Renderer:
    """Renders and parses for one Hugging Face tokenizer with a jinja chat template.

    Args:
        tokenizer: A ``PreTrainedTokenizerBase`` with a chat template.
        stop_token_ids: Tokens that end an answer; the tokenizer's eos, and the tokens with which
            the template shows that an answer ends, are always among them.
        template_args: Extra variables for the chat template, like ``enable_thinking``.
        tool_style: ``template``: the chat template shows tools and calls in the model family's
            form; ``text``: they are written into the messages' text, and read from the answers'.
        vision: The model's processor of images; None refuses them.

    Attributes:
        template: The chat template.
        closer_id: The token that ends an answer in words.
        stop_token_ids: All tokens that end answers, in ascending order.

    Raises:
        ConfigError: If there is no chat template, it cannot be rendered, nothing ends an answer, a
            stop token is not in the vocabulary, or ``tool_style`` does not fit the template.
    """

    def __init__(
        self,
        tokenizer: Any,
        stop_token_ids: Sequence[int] = (),
        template_args: dict[str, Any] | None = None,
        tool_style: ToolStyle = "template",
        vision: Vision | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self.vision = vision
        _check_stops(tokenizer, stop_token_ids)
        self.template = ChatTemplate(tokenizer, template_args, tool_style, vision)
        # A tokenizer may have several templates by name: one of them shows how tools are called.
        self.parser = _parser(str(tokenizer.chat_template), tool_style)
        self._seams = Seams(self.template, [self.template.token(i) for i in stop_token_ids])
        self._cached: dict[str, list[int]] = {}
        if self._seams.closer is None:
            raise ConfigError(
                "nothing ends an answer: the chat template closes the assistant's turn with text, "
                "and the tokenizer has no eos token"
            )
        self.closer_id = self.template.id(self._seams.closer)
        stops = {self.template.id(token) for token in self._seams.stops}
        self.stop_token_ids = sorted({*stop_token_ids, *stops})

    @classmethod
    def from_pretrained(
        cls,
        model: str,
        template_args: dict[str, Any] | None = None,
        chat_template: str | None = None,
        tool_style: ToolStyle = "template",
        vision: Vision | None = None,
    ) -> Renderer:
        """Load the tokenizer (and the stop tokens) of a local folder or a hub name.

        Args:
            model: The folder or the name.
            template_args: Extra variables for the chat template.
            chat_template: A template to use in place of the tokenizer's own: the name of one that
                ships with vf-rl (:mod:`vf.inference.rendering.shipped`), or a file.
            tool_style: See :class:`Renderer`.
            vision: See :class:`Renderer`.

        Raises:
            ConfigError: If it cannot be loaded, or has no usable chat template.
        """
        from transformers import AutoTokenizer, GenerationConfig

        try:
            tokenizer = AutoTokenizer.from_pretrained(model)
        except Exception as error:  # files that hold something else raise anything
            raise ConfigError(f"model {model!r}: cannot load its tokenizer: {error}") from error
        if chat_template is not None:
            tokenizer.chat_template = load_template(chat_template, tokenizer)
        stops: Sequence[int] = ()
        local = Path(model)
        if not local.is_dir() or (local / "generation_config.json").is_file():
            try:
                eos = GenerationConfig.from_pretrained(model).eos_token_id
            except Exception as error:
                if local.is_dir() or not isinstance(error, OSError):  # else the hub has none
                    raise ConfigError(
                        f"model {model!r}: cannot read its generation_config.json: {error}"
                    ) from error
                eos = None
            if eos is not None:
                stops = list(eos) if isinstance(eos, list | tuple) else [eos]
        renderer = cls(tokenizer, stops, template_args, tool_style, vision)
        if (vocabulary := _model_vocabulary(model)) is not None:
            for index in renderer.stop_token_ids:
                if index >= vocabulary:
                    raise ConfigError(
                        f"model {model!r}: the token {renderer.template.token(index)!r} ends an "
                        f"answer, and its id {index} is not in the vocabulary of the model, which "
                        f"has {vocabulary} tokens (vocab_size in config.json): resize the model's "
                        "embeddings, or correct its tokenizer or generation_config.json"
                    )
        return renderer

    def prompt(self, messages: Sequence[Message], tools: Sequence[dict[str, Any]]) -> list[int]:
        """Render a whole conversation, up to where the model answers.

        If its last message is the assistant's, that answer is continued.

        Raises:
            ConfigError: If the template refuses these messages, would leave some of them out, or
                cannot continue the last one.
        """
        self.check_images(messages)
        for role in ("system", "tool"):
            if any(message.role == role for message in messages) and not self._seams.shows(role):
                raise ConfigError(f"the chat template leaves out {role} messages")
        if problem := self._cannot_continue(messages):
            raise ConfigError(problem)
        try:
            text = self.template.prompt_text(messages, tools)
        except Exception as error:  # jinja raises whatever the template's author chose
            raise ConfigError(f"the chat template refuses the conversation: {error}") from error
        return self.template.encode(self.template.with_images(text, messages))

    def opening(self, messages: Sequence[Message], tools: Sequence[dict[str, Any]]) -> list[int]:
        """Render the first prompt of a rollout, once for the rollouts of a group.

        Raises:
            ConfigError: If the template refuses these messages, or would leave some of them out.
        """
        return self._once(repr((messages, tools)), lambda: self.prompt(messages, tools))

    def bridge(
        self,
        reply: Message,
        new: Sequence[Message],
        tools: Sequence[dict[str, Any]],
        last_token_id: int | None = None,
    ) -> list[int]:
        """Return the tokens from behind a sampled answer to the next answer's first.

        They are rendered once for the rollouts of a group that call a tool alike.

        Args:
            reply: The answer that was just sampled; only the shape of its tool calls matters.
            new: The messages that came after it; without any, the model begins another answer.
            tools: The tools on offer.
            last_token_id: The answer's last token. If the template continues with that token,
                it is not repeated; if the turn was cut off or ended with another token, the
                tokens returned close it first.

        Raises:
            BridgeError: If the template does not show where the answer ends, or refuses ``new``.
        """
        if problem := self._cannot_continue(new):
            raise BridgeError(problem)
        ended = None if last_token_id is None else self.template.token(last_token_id)
        calls = [(call.id, call.name) for call in reply.tool_calls]
        shown = bool(tools) if self.template.tools_only_lead else tools
        return self._once(
            repr((new, calls, shown, ended)), lambda: self._seams.bridge(reply, new, tools, ended)
        )

    def check_images(self, messages: Sequence[Message]) -> None:
        """Refuse images where nothing is known of what they become.

        Raises:
            ConfigError: If a message holds one.
        """
        seen = next((message for message in messages if message.images), None)
        if seen is not None and self.vision is None:
            raise ConfigError(
                f"a message of the role {seen.role!r} holds an image, and this model reads text "
                "only: vf-rl eval measures models that see, through an API or with the embedded "
                "engine"
            )

    def _cannot_continue(self, messages: Sequence[Message]) -> str | None:
        """Return why the model cannot continue the last message; None if it can or need not."""
        if not messages or messages[-1].role != "assistant":
            return None
        last = messages[-1]
        begun = self.parser.parse(last.content, id_prefix="")
        opened = last.content.rstrip().endswith(self.parser.reasoning_opener)
        if last.tool_calls or begun.tool_calls:
            held = "holds a tool call"
        elif last.reasoning or (begun.reasoning is not None and not begun.content and not opened):
            held = "holds reasoning"
        else:
            return None
        return (
            f"the last message is the assistant's and {held}, so the model cannot continue it; end "
            "with the message of a user or a tool, or with an assistant message in words"
        )

    def _once(self, key: str, render: Callable[[], list[int]]) -> list[int]:
        """Return what was rendered for a key, now or lately."""
        ids = self._cached.get(key)
        if ids is None:
            ids = render()
            if len(self._cached) >= _MOST_CACHED:
                self._cached.pop(next(iter(self._cached)), None)
            if len(key) <= _LONG:
                self._cached[key] = ids
        return list(ids)

    def parse(
        self,
        token_ids: Sequence[int],
        *,
        prompt_ids: Sequence[int],
        turn: int,
        tools: Sequence[dict[str, Any]] = (),
    ) -> Message:
        """Read an answer from its sampled ids; see :mod:`vf.inference.parsing`."""
        text = self.answer_text(token_ids)
        return self.parse_text(text, prompt_ids=prompt_ids, turn=turn, tools=tools)

    def answer_text(self, token_ids: Sequence[int]) -> str:
        """Return the text of an answer's sampled ids, without the stop token."""
        ids = list(token_ids)
        while ids and ids[-1] in self.stop_token_ids:
            ids.pop()
        return self.decode(ids)

    def parse_text(
        self,
        text: str,
        *,
        prompt_ids: Sequence[int],
        turn: int,
        tools: Sequence[dict[str, Any]] = (),
    ) -> Message:
        """Read an answer from its text, without the stop token."""
        opened = self.opens_reasoning(prompt_ids)
        return self.parser.parse(text, id_prefix=f"call_{turn}", in_reasoning=opened, tools=tools)

    def opens_reasoning(self, prompt_ids: Sequence[int]) -> bool:
        """Return whether a prompt ends by opening the reasoning (with ``<think>``, usually)."""
        tail = self.decode(prompt_ids[-_TAIL:]).rstrip()
        return tail.endswith(self.parser.reasoning_opener)

    def at_least(self, texts: Sequence[str], enough: int) -> int:
        """Return how many tokens some texts have at least; counting ends above ``enough``."""
        count, text = 0, "".join(texts)
        for start in range(0, len(text), _PIECE):
            # A piece that begins or ends within a word has some tokens that the whole has not.
            count += max(0, len(self.template.encode(text[start : start + _PIECE])) - _TAIL)
            if count > enough:
                break
        return count

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of token ids, special tokens included."""
        return str(self.tokenizer.decode(list(token_ids), skip_special_tokens=False))


def _check_stops(tokenizer: Any, stop_token_ids: Sequence[object]) -> None:
    for index in stop_token_ids:
        valid = isinstance(index, int) and 0 <= index < len(tokenizer)
        if not valid or isinstance(index, bool):
            raise ConfigError(
                f"eos_token_id = {index!r} is not in the vocabulary of the tokenizer "
                f"{tokenizer.name_or_path!r}, which has {len(tokenizer)} tokens: correct "
                "generation_config.json"
            )


def _model_vocabulary(model: str) -> int | None:
    """Return the vocab_size in a model's config.json, None where there is none to read."""
    from transformers import PretrainedConfig

    try:
        config, _ = PretrainedConfig.get_config_dict(model)
    except OSError:  # a folder with a tokenizer alone
        return None
    text = config.get("text_config")
    size = (text if isinstance(text, dict) else config).get("vocab_size")
    return size if isinstance(size, int) else None


def _parser(chat_template: str, tool_style: ToolStyle) -> Parser:
    family = parser_for(chat_template)
    if tool_style == "template":
        return family
    parser = text_parser(family)
    if parser is None:
        raise ConfigError(
            f'tool_style = "text" does not fit chat templates of the family {family.family}, whose '
            'answers are rows of messages; leave it at "template"'
        )
    return parser


def token_texts(model: str) -> Callable[[Sequence[int]], list[str]] | None:
    """Return a function from token ids to their texts, None if the tokenizer is not here.

    Reads only a folder or the hub's cache on this machine: nothing is fetched. Unknown ids, and
    tokens that are not whole characters, have the empty text.

    Args:
        model: A folder, ``tiny``, or a name on the hub.
    """
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    try:
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(resolve_model(model), local_files_only=True)
    except Exception:  # not installed, not here, or none that can be read: ids are shown then
        return None
    size = len(tokenizer)

    def text(i: int) -> str:
        decoded: str = tokenizer.decode([i], clean_up_tokenization_spaces=False)
        return "" if "\N{REPLACEMENT CHARACTER}" in decoded else decoded

    def texts(ids: Sequence[int]) -> list[str]:
        return [text(i) if 0 <= i < size else "" for i in ids]

    return texts

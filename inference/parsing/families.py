"""Finds the parser for a model's answers in its chat template."""

from __future__ import annotations

from dataclasses import replace

from vf.inference.parsing.channels import HARMONY, MUSE
from vf.inference.parsing.json_calls import (
    COHERE,
    COMMAND_R,
    GRANITE3,
    HERMES,
    LLAMA3,
    NEMOTRON_V2,
    PHI4,
    TEXT_CALLS,
)
from vf.inference.parsing.named_calls import DEEPSEEK, FUNCTION_GEMMA, GEMMA4, KIMI, MISTRAL
from vf.inference.parsing.parser import THINK, MarkedParser, Parser
from vf.inference.parsing.python_calls import LFM2, OLMO3
from vf.inference.parsing.tagged import GLM, MINIMAX, QWEN_XML, SEED

# What a template writes around calls; for templates that render no calls (LFM2's and Kimi-K2's
# first ones, Phi-4-mini's), what it writes around tools or turns. The first sign found decides.
_SIGNS: tuple[tuple[str, Parser], ...] = (
    ("<|channel|>", HARMONY),
    ("<atem:function_calls>", MUSE),
    ("<|tool_call>", GEMMA4),
    ("<start_function_call>", FUNCTION_GEMMA),
    ("<|tool_call_start|>", LFM2),
    ("<|tool_list_start|>", LFM2),
    ("<｜tool▁call▁begin｜>", DEEPSEEK),
    ("<|tool_call_begin|>", KIMI),
    ("<|im_middle|>", KIMI),
    ("<arg_key>", GLM),
    ("<minimax:tool_call>", MINIMAX),
    ("<function_calls>", OLMO3),
    ("<seed:tool_call>", SEED),
    ("<function=", QWEN_XML),
    ("<|START_ACTION|>", COHERE),
    ("<|START_RESPONSE|>", COHERE),
    ("<|CHATBOT_TOKEN|>", COMMAND_R),
    ("[TOOL_CALLS]", MISTRAL),
    ("<TOOLCALL>", NEMOTRON_V2),
    ("functools[", PHI4),
    ("<|/tool_call|>", PHI4),
    ("<|/tool|>", PHI4),
    ("<|tool_call|>", GRANITE3),
    ("<tool_call>", HERMES),
    ("<|python_tag|>", LLAMA3),
    ('"parameters": ', LLAMA3),
)

PARSERS: dict[str, Parser] = {parser.family: parser for _, parser in _SIGNS}


def parser_for(chat_template: str) -> Parser:
    """Return the parser for the form in which a chat template writes tool calls.

    Args:
        chat_template: The template's text.

    Returns:
        The family's parser; Hermes's for a template that shows none of the known forms.
    """
    return next((parser for sign, parser in _SIGNS if sign in chat_template), HERMES)


def text_parser(family: Parser) -> Parser | None:
    """Return the parser for calls written in the text, beside the reasoning of a family.

    Args:
        family: The parser that belongs to the chat template.

    Returns:
        The parser; None for a family whose answers are rows of messages, which leave no plain
        text.
    """
    if isinstance(family, MarkedParser):
        return replace(TEXT_CALLS, reasoning=family.reasoning)
    return TEXT_CALLS if family.reasoning_opener == THINK[0] else None

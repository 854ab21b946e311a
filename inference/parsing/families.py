"""Which parser reads a model's answers, found in its chat template."""

from __future__ import annotations

from vf.inference.parsing.deepseek import DEEPSEEK
from vf.inference.parsing.gemma import FUNCTION_GEMMA, GEMMA4
from vf.inference.parsing.glm import GLM
from vf.inference.parsing.harmony import HARMONY
from vf.inference.parsing.hermes import HERMES
from vf.inference.parsing.json_lists import COHERE, COMMAND_R, GRANITE3, NEMOTRON_V2, PHI4
from vf.inference.parsing.kimi import KIMI
from vf.inference.parsing.lfm2 import LFM2
from vf.inference.parsing.llama import LLAMA3
from vf.inference.parsing.minimax import MINIMAX
from vf.inference.parsing.mistral import MISTRAL
from vf.inference.parsing.muse import MUSE
from vf.inference.parsing.olmo3 import OLMO3
from vf.inference.parsing.parser import Parser
from vf.inference.parsing.qwen_xml import QWEN_XML
from vf.inference.parsing.seed import SEED

# What a template writes around calls. Where none of it renders them (LFM2's and Kimi-K2's first
# templates, Phi-4-mini's), what it writes around the tools or the turns.
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

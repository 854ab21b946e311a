"""How each model family writes an answer: by its own chat template where TRL ships it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

Call = tuple[str, dict[str, Any]]
Write = Callable[[str, str, list[Call]], str]

_TRL = find_spec("trl")
if _TRL is None or _TRL.submodule_search_locations is None:
    raise ModuleNotFoundError("No module named 'trl'", name="trl")
TEMPLATES = Path(_TRL.submodule_search_locations[0]) / "chat_templates"


@dataclass(frozen=True)
class Form:
    """One way to write an answer.

    ``write`` takes reasoning (empty for none), text and calls. ``parallel``, ``text`` and
    ``reasoning`` say what can stand in one answer with a call.
    """

    name: str
    family: str
    write: Write
    parallel: bool = True
    text: bool = True
    reasoning: bool = True


@cache
def template(name: str) -> str:
    return (TEMPLATES / f"{name}.jinja").read_text(encoding="utf-8")


def schema_of(value: object) -> dict[str, Any]:
    """Return a JSON schema that fits the value."""
    match value:
        case dict():
            return {"type": "object", "properties": {k: schema_of(v) for k, v in value.items()}}
        case list():
            return {"type": "array", "items": schema_of(value[0]) if value else {}}
        case None:
            return {"anyOf": [{"type": "integer"}, {"type": "null"}]}
        case bool():
            return {"type": "boolean"}
        case int() | float():
            return {"type": "number"}
    return {"type": "string"}


def tools_of(calls: Sequence[Call]) -> list[dict[str, Any]]:
    """Return the tools that the calls are for."""
    return [
        {
            "type": "function",
            "function": {
                "name": name,
                "description": "Do it.",
                "parameters": schema_of(arguments) | {"required": []},
            },
        }
        for name, arguments in calls
    ]


def rendered(name: str, header: str, closers: str, **differs: Any) -> Form:
    """Return the form of one of TRL's templates.

    ``header`` is what comes before the answer, one of ``closers`` (a pattern) what ends it. The
    rest: under which ``key`` the template reads reasoning, whether it wants arguments as text, and
    Form's fields.
    """
    key = differs.pop("key", "reasoning_content")
    family, as_text = differs.pop("family"), differs.pop("as_text", False)

    def write(reasoning: str, text: str, calls: list[Call]) -> str:
        from transformers.utils.chat_template_utils import render_jinja_template

        answer: dict[str, Any] = {"role": "assistant", "content": text}
        if reasoning:
            answer[key] = reasoning
        if calls:
            answer["tool_calls"] = [
                {
                    "id": f"call_{index}",
                    "type": "function",
                    "function": {
                        "name": name,
                        "arguments": json.dumps(arguments) if as_text else arguments,
                    },
                }
                for index, (name, arguments) in enumerate(calls)
            ]
        (whole,), _ = render_jinja_template(
            conversations=[[{"role": "user", "content": "Question?"}, answer]],
            tools=tools_of(calls) or None,
            chat_template=template(name),
            bos_token="<bos>",
            eos_token="<eos>",
        )
        written = str(whole).partition("Question?")[2].partition(header)[2]
        end = re.search(closers, written)
        assert end is not None, written
        return written[: end.start()]

    return Form(name, family, write, **differs)


def _all(names: str, header: str, closers: str, **differs: Any) -> list[Form]:
    return [rendered(name, header, closers, **differs) for name in names.split()]


def _joined(
    call: Callable[[str, dict[str, Any]], str], around: str = "{}", between: str = ""
) -> Write:
    def write(reasoning: str, text: str, calls: list[Call]) -> str:
        thought = f"<think>{reasoning}</think>" if reasoning else ""
        made = around.replace("{}", between.join(call(*each) for each in calls)) if calls else ""
        return thought + text + made

    return write


def _cohere(reasoning: str, text: str, calls: list[Call]) -> str:
    thought = f"<|START_THINKING|>{reasoning}<|END_THINKING|>" if reasoning else ""
    said = f"<|START_RESPONSE|>{text}<|END_RESPONSE|>" if text else ""
    entries = [
        {"tool_call_id": str(index), "tool_name": name, "parameters": arguments}
        for index, (name, arguments) in enumerate(calls)
    ]
    made = f"<|START_ACTION|>{json.dumps(entries, indent=4)}<|END_ACTION|>" if calls else ""
    return thought + said + made


def _object(name: str, arguments: dict[str, Any]) -> str:
    return json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)


def _action(name: str, arguments: dict[str, Any]) -> str:
    return json.dumps({"tool_name": name, "parameters": arguments})


def _function_gemma(name: str, arguments: dict[str, Any]) -> str:
    return f"<start_function_call>call:{name}{_bare(arguments)}<end_function_call>"


def _bare(value: object) -> str:
    match value:
        case str():
            return f"<escape>{value}<escape>"
        case dict():
            return "{" + ",".join(f"{key}:{_bare(inner)}" for key, inner in value.items()) + "}"
        case list():
            return "[" + ",".join(map(_bare, value)) + "]"
    return json.dumps(value)


def _harmony_as_sampled(reasoning: str, text: str, calls: list[Call]) -> str:
    parts = [f"<|channel|>analysis<|message|>{reasoning}<|end|>"] if reasoning else []
    parts += [f"<|channel|>commentary<|message|>{text}<|end|>"] if text else []
    parts += [
        f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>"
        f"{json.dumps(arguments)}<|call|>"
        for name, arguments in calls
    ]
    return "<|start|>assistant".join(parts).removesuffix("<|call|>").removesuffix("<|end|>")


def _marked_object(name: str, arguments: dict[str, Any]) -> str:
    return f"<|tool_call|> {_object(name, arguments)}"


def _as_text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _minimax(name: str, arguments: dict[str, Any]) -> str:
    given = [
        f'<parameter name="{key}">{_as_text(value)}</parameter>\n'
        for key, value in arguments.items()
    ]
    return f'<invoke name="{name}">\n{"".join(given)}</invoke>'


def _python_call(name: str, arguments: dict[str, Any]) -> str:
    return f"{name}({', '.join(f'{key}={json.dumps(v)}' for key, v in arguments.items())})"


def _seed(reasoning: str, text: str, calls: list[Call]) -> str:
    thought = f"<seed:think>{reasoning}</seed:think>" if reasoning else ""
    return thought + text + "".join(_seed_call(*call) for call in calls)


def _seed_call(name: str, arguments: dict[str, Any]) -> str:
    given = [
        f"<parameter={key}>{_as_text(value)}</parameter>\n" for key, value in arguments.items()
    ]
    return f"\n<seed:tool_call>\n<function={name}>\n{''.join(given)}</function>\n</seed:tool_call>"


def _mistral_with_ids(name: str, arguments: dict[str, Any]) -> str:
    return f"[TOOL_CALLS]{name}[CALL_ID]abcdefghi[ARGS]{json.dumps(arguments)}"


_DEEPSEEK_LIST = "<｜tool▁calls▁begin｜>{}<｜tool▁calls▁end｜>"
_MINIMAX_LIST = "\n<minimax:tool_call>\n{}\n</minimax:tool_call>"
_KIMI_LIST = "<|tool_calls_section_begin|>{}<|tool_calls_section_end|>"

_CHATML = "<|im_start|>assistant\n", r"<\|im_end\|>"
_LLAMA = "<|start_header_id|>assistant<|end_header_id|>\n\n", r"<\|eot_id\|>"
_DEEPSEEK = "<｜Assistant｜>", "<｜end▁of▁sentence｜>"
_GLM = "<|assistant|>", r"<\|(observation|user)\|>|\Z"
_HARMONY = "<|start|>assistant", r"<\|(call|return)\|>"
_MUSE = "<|start|>assistant", r"<\|eot\|>"
_GEMMA = "<|turn>model\n", r"<\|tool_response>|<turn\|>"

QWEN_2 = """qwen2_5 qwen2_5_training qwen3_instruct_2507
    qwen3_instruct_2507_training qwen3_vl qwen3_vl_training"""
QWEN_3 = "qwen3 qwen3_training"
QWEN_XML = """qwen3_5_nothink qwen3_5_nothink_training qwen3_5_think qwen3_5_think_training qwen3_6
    qwen3_6_training qwen3_8 qwen3_8_training nemotron_3_nano nemotron_3_nano_training
    nemotron_3_super nemotron_3_super_training nemotron_3_ultra nemotron_3_ultra_training
    nemotron_3_5_lightning nemotron_3_5_lightning_training"""
LFM_2, LFM_25 = "lfm2_v2 lfm2_v2_training", "lfm2_2_5 lfm2_2_5_v2 lfm2_2_5_vl"
GEMMA = "gemma4 gemma4_v3 gemma4_v4 gemma4_v5 diffusion_gemma diffusion_gemma_training"
ONE_CALL_ONLY: dict[str, Any] = {"parallel": False, "text": False}

RENDERED = [
    *_all(QWEN_2, *_CHATML, family="hermes", reasoning=False),
    *_all(QWEN_3, *_CHATML, family="hermes"),
    *_all(QWEN_XML, *_CHATML, family="qwen-xml"),
    *_all(LFM_2, *_CHATML, family="lfm2", reasoning=False),
    *_all(LFM_25, *_CHATML, family="lfm2", key="thinking"),
    *_all("llama3_1 llama3_2", *_LLAMA, family="llama3", reasoning=False, **ONE_CALL_ONLY),
    *_all("deepseekv3", *_DEEPSEEK, family="deepseek", as_text=True, reasoning=False),
    *_all("deepseekv3_training", *_DEEPSEEK, family="deepseek", reasoning=False),
    *_all("glm4moe glm4moe_training", *_GLM, family="glm"),
    *_all("gptoss gptoss_training", *_HARMONY, family="harmony", key="thinking", **ONE_CALL_ONLY),
    *_all("muse_glimmer muse_glimmer_training", *_MUSE, family="muse", text=False),
    *_all(GEMMA, *_GEMMA, family="gemma4"),
    *_all("gemma4_v2", *_GEMMA, family="gemma4", reasoning=False),
]

# Families whose template TRL does not ship, or does not show the models' own way.
WRITTEN = [
    Form("harmony, as sampled", "harmony", _harmony_as_sampled),
    Form("command-a", "cohere", _cohere),
    Form(
        "command-r",
        "command-r",
        _joined(_action, "Action: ```json\n[{}]\n```", ","),
    ),
    Form("nemotron-v2", "nemotron-v2", _joined(_object, "<TOOLCALL>[{}]</TOOLCALL>", ", ")),
    Form("phi-4-mini", "phi4", _joined(_object, "<|tool_call|>[{}]<|/tool_call|>", ",")),
    Form("phi-4-mini, functools", "phi4", _joined(_object, "functools[{}]", ",")),
    Form(
        "mistral, list",
        "mistral",
        _joined(_object, "[TOOL_CALLS] [{}]", ", "),
        reasoning=False,
    ),
    Form("mistral, ids", "mistral", _joined(_mistral_with_ids), reasoning=False),
    Form(
        "mistral, names",
        "mistral",
        _joined(lambda name, given: f"[TOOL_CALLS]{name}[ARGS]{json.dumps(given)}"),
        reasoning=False,
    ),
    Form(
        "kimi-k2",
        "kimi",
        _joined(
            lambda name, given: (
                f"<|tool_call_begin|>functions.{name}:0<|tool_call_argument_begin|>"
                f"{json.dumps(given)}<|tool_call_end|>"
            ),
            _KIMI_LIST,
        ),
    ),
    Form(
        "deepseek-v3.1",
        "deepseek",
        _joined(
            lambda name, given: (
                f"<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{json.dumps(given)}<｜tool▁call▁end｜>"
            ),
            _DEEPSEEK_LIST,
        ),
    ),
    Form(
        "deepseek-r1",
        "deepseek",
        _joined(
            lambda name, given: (
                f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n"
                f"{json.dumps(given)}\n```<｜tool▁call▁end｜>"
            ),
            _DEEPSEEK_LIST,
            "\n",
        ),
    ),
    Form(
        "llama-3, several",
        "llama3",
        _joined(
            lambda name, given: json.dumps({"name": name, "parameters": given}),
            "<|python_tag|>{}",
            "; ",
        ),
        reasoning=False,
    ),
    Form("functiongemma", "functiongemma", _joined(_function_gemma)),
    Form("granite-3", "granite3", _joined(_object, "<|tool_call|>[{}]", ", ")),
    Form("granite-3, one by one", "granite3", _joined(_marked_object)),
    Form("minimax-m2", "minimax", _joined(_minimax, _MINIMAX_LIST, "\n")),
    Form("olmo-3", "olmo3", _joined(_python_call, "<function_calls>{}</function_calls>", "\n")),
    Form("seed-oss", "seed", _seed),
]

# Templates of RENDERED that write every answer as another one there does.
_ALIKE = """qwen2_5_training qwen3_instruct_2507 qwen3_instruct_2507_training qwen3_vl
    qwen3_vl_training qwen3_training qwen3_5_nothink_training qwen3_5_think qwen3_5_think_training
    qwen3_6_training qwen3_8 qwen3_8_training nemotron_3_nano_training nemotron_3_super
    nemotron_3_super_training nemotron_3_ultra_training nemotron_3_5_lightning
    nemotron_3_5_lightning_training lfm2_v2_training lfm2_2_5_v2 llama3_2 glm4moe_training
    gptoss_training muse_glimmer_training gemma4_v3 gemma4_v4 diffusion_gemma
    diffusion_gemma_training"""
ALIKE = set(_ALIKE.split())

FORMS = [form for form in RENDERED if form.name not in ALIKE] + WRITTEN

"""Tiny random models that see, of several families, with their own processors: no hub is asked."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import transformers
from PIL import Image as Pillow
from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil
from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil
from transformers.models.smolvlm.image_processing_pil_smolvlm import SmolVLMImageProcessorPil

import vf
from vf.inference.model_files import resolve_model

# As Qwen3-VL's template has it: images in messages of users and tools, calls in Hermes' form.
CHATML = """\
{%- macro shown(content) -%}
  {%- if content is string -%}{{ content }}{%- else -%}
    {%- for item in content -%}
      {%- if item.type == 'image' -%}<|vision_start|><|image_pad|><|vision_end|>
      {%- elif 'text' in item -%}{{ item.text }}{%- endif -%}
    {%- endfor -%}
  {%- endif -%}
{%- endmacro -%}
{%- if tools -%}
<|im_start|>system
{% if messages[0].role == 'system' %}{{ shown(messages[0].content) }}

{% endif %}# Tools
<tools>{% for tool in tools %}
{{ tool | tojson }}{% endfor %}
</tools><tool_call></tool_call><|im_end|>
{% elif messages[0].role == 'system' -%}
<|im_start|>system
{{ shown(messages[0].content) }}<|im_end|>
{% endif -%}
{%- for message in messages -%}
{%- if message.role == 'user' -%}
<|im_start|>user
{{ shown(message.content) }}<|im_end|>
{% elif message.role == 'assistant' -%}
<|im_start|>assistant
{{ shown(message.content) }}
{%- for call in message.tool_calls or [] %}
<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>
{%- endfor -%}<|im_end|>
{% elif message.role == 'tool' -%}
{%- if loop.first or messages[loop.index0 - 1].role != 'tool' -%}<|im_start|>user{%- endif %}
<tool_response>
{{ shown(message.content) }}
</tool_response>
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' -%}<|im_end|>
{% endif -%}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}<|im_start|>assistant
{% endif -%}
"""
GEMMA = """\
{{ bos_token }}
{%- for message in messages -%}
{%- if (message.role == 'user') != (loop.index0 % 2 == 0) -%}
{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}
{%- endif -%}
<start_of_turn>{{ 'model' if message.role == 'assistant' else message.role }}
{% if message.content is string -%}{{ message.content | trim }}
{%- else -%}
{%- for item in message.content -%}
{%- if item.type == 'image' -%}<start_of_image>
{%- elif item.type == 'text' -%}{{ item.text | trim }}{%- endif -%}
{%- endfor -%}
{%- endif -%}<end_of_turn>
{% endfor -%}
{%- if add_generation_prompt -%}<start_of_turn>model
{% endif -%}
"""
SMOL = (
    "<|im_start|>{% for message in messages %}{{ message['role'] | capitalize }}"
    "{% if message['content'][0]['type'] == 'image' %}{{ ':' }}{% else %}{{ ': ' }}{% endif %}"
    "{% for line in message['content'] %}{% if line['type'] == 'text' %}{{ line['text'] }}"
    "{% elif line['type'] == 'image' %}{{ '<image>' }}{% endif %}{% endfor %}<end_of_utterance>\n"
    "{% endfor %}{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"
)


@dataclass(frozen=True)
class Family:
    """How to make a tiny model of one family.

    Attributes:
        template: The chat template.
        tokens: The tokens that the family has beside the text's, by their names.
        config: Makes a config of these tokens' ids, the size of the vocabulary, and a head's width.
        processor: Makes what turns images into pixels.
        model: The class.
        end: The token that ends an answer.
        options: Settings of the processor.
    """

    template: str
    tokens: dict[str, str]
    config: Callable[[Callable[[str], int], int, int], Any]
    processor: Callable[[], Any]
    model: str
    end: str = "<|im_end|>"
    options: dict[str, Any] | None = None


QWEN = {
    "vision_start_token": "<|vision_start|>",
    "vision_end_token": "<|vision_end|>",
    "image_token": "<|image_pad|>",
    "video_token": "<|video_pad|>",
}


def _text(size: int, width: int) -> dict[str, Any]:
    """Return the settings of the text part."""
    return {
        "vocab_size": size,
        "hidden_size": 4 * width,
        "intermediate_size": 48,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 4096,
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
    }


def _rope(width: int, **more: Any) -> dict[str, Any]:
    sections = [width // 4, width // 8, width // 8]
    return {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": sections, **more}


def _qwen_ids(id_of: Callable[[str], int]) -> dict[str, int]:
    return {
        "vision_start_token_id": id_of("<|vision_start|>"),
        "vision_end_token_id": id_of("<|vision_end|>"),
        "image_token_id": id_of("<|image_pad|>"),
        "video_token_id": id_of("<|video_pad|>"),
    }


def _qwen_tower(depth: int, width: int, **more: Any) -> dict[str, Any]:
    """Return the settings of what sees."""
    return {
        "depth": depth,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_heads": 4,
        "out_hidden_size": 4 * width,
        "patch_size": 8,
        **more,
    }


def _qwen25(id_of: Callable[[str], int], size: int, width: int) -> Any:
    return transformers.Qwen2_5_VLConfig(
        text_config={**_text(size, width), "rope_parameters": _rope(width)},
        vision_config=_qwen_tower(2, width, window_size=32, fullatt_block_indexes=[1]),
        **_qwen_ids(id_of),
    )


def _qwen3(id_of: Callable[[str], int], size: int, width: int) -> Any:
    return transformers.Qwen3VLConfig(
        text_config={
            **_text(size, width),
            "head_dim": width,
            "rope_parameters": _rope(width, mrope_interleaved=True),
        },
        vision_config=_qwen_tower(
            3, width, num_position_embeddings=64, deepstack_visual_indexes=[0, 1]
        ),
        **_qwen_ids(id_of),
    )


def _qwen35(id_of: Callable[[str], int], size: int, width: int) -> Any:
    return transformers.Qwen3_5Config(
        text_config={
            **_text(size, width),
            "head_dim": width,
            "rope_parameters": _rope(width, mrope_interleaved=True, partial_rotary_factor=1.0),
            "layer_types": ["linear_attention", "full_attention", "linear_attention"],
            "linear_key_head_dim": 8,
            "linear_value_head_dim": 8,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
        },
        vision_config=_qwen_tower(2, width, num_position_embeddings=64),
        **_qwen_ids(id_of),
    )


SIGLIP = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}


def _gemma(id_of: Callable[[str], int], size: int, width: int) -> Any:
    return transformers.Gemma3Config(
        text_config={
            **_text(size, width),
            "head_dim": width,
            "sliding_window": 8,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
        vision_config={**SIGLIP, "num_attention_heads": 4, "image_size": 32, "patch_size": 8},
        mm_tokens_per_image=16,
        boi_token_index=id_of("<start_of_image>"),
        eoi_token_index=id_of("<end_of_image>"),
        image_token_id=id_of("<image_soft_token>"),
    )


def _idefics(id_of: Callable[[str], int], size: int, width: int) -> Any:
    return transformers.Idefics3Config(
        text_config={**_text(size, width), "model_type": "llama"},
        vision_config={**SIGLIP, "num_attention_heads": 4, "image_size": 32, "patch_size": 8},
        scale_factor=2,
        image_token_id=id_of("<image>"),
    )


def _smol(id_of: Callable[[str], int], size: int, width: int) -> Any:
    return transformers.SmolVLMConfig(**_idefics(id_of, size, width).to_diff_dict())


def _qwen_pixels() -> Any:
    return Qwen2VLImageProcessorPil(
        patch_size=8, min_pixels=16 * 16, max_pixels=64 * 64, merge_size=2
    )


IDEFICS = Family(
    SMOL,
    {
        "fake_image_token": "<fake_token_around_image>",
        "image_token": "<image>",
        "end_of_utterance_token": "<end_of_utterance>",
        "global_image_token": "<global-img>",
        **{f"row_{r}_col_{c}": f"<row_{r}_col_{c}>" for r in (1, 2, 3) for c in (1, 2, 3)},
    },
    _idefics,
    lambda: Idefics3ImageProcessorPil(
        size={"longest_edge": 64}, max_image_size={"longest_edge": 32}
    ),
    "Idefics3ForConditionalGeneration",
    "<end_of_utterance>",
    {"image_seq_len": 4},
)
FAMILIES = {
    "qwen2_5_vl": Family(CHATML, QWEN, _qwen25, _qwen_pixels, "Qwen2_5_VLForConditionalGeneration"),
    "qwen3_5": Family(CHATML, QWEN, _qwen35, _qwen_pixels, "Qwen3_5ForConditionalGeneration"),
    "qwen3_vl": Family(CHATML, QWEN, _qwen3, _qwen_pixels, "Qwen3VLForConditionalGeneration"),
    "gemma3": Family(
        GEMMA,
        {
            "boi_token": "<start_of_image>",
            "eoi_token": "<end_of_image>",
            "image_token": "<image_soft_token>",
            "start_of_turn": "<start_of_turn>",
            "end_of_turn": "<end_of_turn>",
            # Of Gemma's vocabulary; vLLM looks them up.
            **{f"newlines_{count}": count * "\n" for count in range(1, 5)},
        },
        _gemma,
        lambda: Gemma3ImageProcessorPil(size={"height": 32, "width": 32}),
        "Gemma3ForConditionalGeneration",
        "<end_of_turn>",
        {"image_seq_length": 16},
    ),
    "idefics3": IDEFICS,
    "smolvlm": replace(
        IDEFICS,
        config=_smol,
        processor=lambda: SmolVLMImageProcessorPil(
            size={"longest_edge": 64}, max_image_size={"longest_edge": 32}
        ),
        model="SmolVLMForConditionalGeneration",
    ),
}


def save_family(name: str, folder: Path, *, seed: int = 0, width: int = 8) -> None:
    """Write a random model of a family, with its tokenizer and processor, as checkpoints are.

    Args:
        name: The family.
        folder: The folder to write to.
        seed: Of the weights.
        width: Of an attention head; vLLM on a CPU needs 32.
    """
    family = FAMILIES[name]
    tokenizer = transformers.AutoTokenizer.from_pretrained(
        resolve_model("tiny"), extra_special_tokens=family.tokens
    )
    tokenizer.chat_template = family.template
    tokenizer.eos_token = family.end
    tokenizer.bos_token = tokenizer.pad_token
    tokenizer.save_pretrained(folder)
    settings = family.processor()
    settings.save_pretrained(folder)
    torch.manual_seed(seed)
    config = family.config(tokenizer.convert_tokens_to_ids, len(tokenizer), width)
    model = getattr(transformers, family.model)(config)
    for key, parameter in model.named_parameters():
        if "norm" not in key and parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.2)
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.save_pretrained(folder)
    if family.options:
        (folder / "processor_config.json").write_text(json.dumps(family.options))


def picture(seed: int, width: int = 40, height: int = 24) -> vf.Image:
    """Return a random image."""
    generator = torch.Generator().manual_seed(seed)
    pixels = torch.randint(0, 256, (height, width, 3), generator=generator, dtype=torch.uint8)
    return vf.Image.of(Pillow.fromarray(pixels.numpy()))

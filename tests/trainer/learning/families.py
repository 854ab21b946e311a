"""A tiny random model of every family that the documentation names as trainable.

Each has a layer of every kind that its family has, windows and original lengths of a few tokens, so
that they matter in a short sequence, and weights that are wide enough for attention to matter.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import transformers

VOCABULARY = 304
WINDOW = 8  # tokens that a sliding window or a chunk holds
ORIGINAL = 24  # tokens after which LongRoPE takes its long factors
HEAD = 16
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
HEADS = {"head_dim": HEAD}
SLIDING = {"sliding_window": WINDOW, "layer_types": ["sliding_attention", "full_attention"]}
LINEAR = {
    "layer_types": ["linear_attention", "full_attention"],
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
}
MOE = {"moe_intermediate_size": 32, "num_experts": 4, "num_experts_per_tok": 2}
SHARED = {**MOE, "shared_expert_intermediate_size": 32}
LOCAL = {"num_local_experts": 4, "num_experts_per_tok": 2}
ROUTED = {
    "moe_intermediate_size": 32,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
}
GEMMA4 = {
    "hidden_size_per_layer_input": 8,
    "vocab_size_per_layer_input": VOCABULARY,
    "global_head_dim": 2 * HEAD,
    "num_kv_shared_layers": 1,
    "num_hidden_layers": 3,
    "layer_types": ["sliding_attention", "full_attention", "full_attention"],
}
LLAMA4 = {
    **HEADS,
    **LOCAL,
    "num_experts_per_tok": 1,
    "intermediate_size_mlp": 96,
    "attention_chunk_size": WINDOW,
    "no_rope_layers": [1, 0],
    "interleave_moe_layer_step": 2,
    "floor_scale": 16,
}
COHERE2 = {**HEADS, **SLIDING, "logit_scale": 0.5}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 150000.0,
    "factor": 32.0,
    "truncate": False,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "original_max_position_embeddings": 512 // 32,
}
CAPS = {"attn_logit_softcapping": 3.0, "final_logit_softcapping": 5.0}
GPT_OSS = {**HEADS, **SLIDING, **LOCAL, "rope_parameters": YARN}
VISION: dict[str, Any] = {
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}
PLACES = {"image_token_index": 5, "boi_token_index": 6, "eoi_token_index": 7}
SHORT = [1.0 + 0.1 * place for place in range(HEAD // 2)]
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": SHORT,
    "long_factor": [3.0 * factor for factor in SHORT],
    "factor": 512 / ORIGINAL,
    "original_max_position_embeddings": ORIGINAL,
}
MSCALE = {"short_mscale": 1.1, "long_mscale": 1.2}


@dataclass(frozen=True, slots=True)
class Family:
    """Models of one architecture.

    Attributes:
        name: As the documentation has it.
        kind: What is particular about its layers.
        config_class: Transformers'.
        settings: Of its config, or of the text part's in a composite; beside :data:`SIZES`.
        wrap: From the text part's settings to those of a composite config.
    """

    name: str
    kind: str
    config_class: str
    settings: dict[str, Any]
    wrap: Callable[[dict[str, Any]], dict[str, Any]] | None = None

    def config(self, **changes: Any) -> Any:
        """Return the config, with other settings of the text model where ``changes`` has some."""
        settings = {**SIZES, **self.settings, **changes}
        settings = settings if self.wrap is None else self.wrap(settings)
        return getattr(transformers, self.config_class)(**settings)

    def model(self, seed: int = 0, **changes: Any) -> Any:
        """Return a random float32 model in evaluation mode, as ``AutoModelForCausalLM`` makes it.

        Its attention is transformers' ``eager``, which every family has.
        """
        config = self.config(**changes)
        model = transformers.AutoModelForCausalLM.from_config(
            config, dtype=torch.float32, attn_implementation="eager"
        )
        widen(model, seed)
        return model.eval()


def widen(model: torch.nn.Module, seed: int = 0) -> None:
    """Draw a random model's parameters: matrices at 1.5/√(inputs), and noise of 0.1 on vectors.

    So queries meet keys in products of order one, and biases, sinks and norms are not trivial.
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator).to(parameter.dtype)
            if parameter.dim() > 1:
                parameter.copy_(noise * 1.5 / parameter.shape[-1] ** 0.5)
            else:
                parameter.add_(0.1 * noise)


def _gemma3(text: dict[str, Any]) -> dict[str, Any]:
    return {"text_config": text, "vision_config": VISION, "mm_tokens_per_image": 4, **PLACES}


def _gemma4(text: dict[str, Any]) -> dict[str, Any]:
    vision = {**VISION, "head_dim": 8, "num_key_value_heads": 2}
    return {"text_config": text, "vision_config": vision, "audio_config": None}


def _qwen(text: dict[str, Any]) -> dict[str, Any]:
    vision = {"depth": 1, "hidden_size": 16, "intermediate_size": 32, "num_heads": 2}
    return {"text_config": text, "vision_config": {**vision, "out_hidden_size": 64}}


def _llama4(text: dict[str, Any]) -> dict[str, Any]:
    vision = {**VISION, "vision_output_dim": 16, "projector_input_dim": 16}
    return {"text_config": text, "vision_config": {**vision, "projector_output_dim": 16}, **PLACES}


FAMILIES: tuple[Family, ...] = (
    Family("Llama 3", "dense", "LlamaConfig", {}),
    Family("Qwen2.5", "dense", "Qwen2Config", {}),
    Family("Qwen3", "dense", "Qwen3Config", {**HEADS, "tie_word_embeddings": True}),
    Family("SmolLM3", "dense", "SmolLM3Config", {"no_rope_layers": [1, 0]}),
    Family("Granite", "dense", "GraniteConfig", {"logits_scaling": 4.0, "embedding_multiplier": 2}),
    Family("Seed-OSS", "dense", "SeedOssConfig", HEADS),
    Family("GLM-4", "dense", "Glm4Config", HEADS),
    Family("Cohere (Command R)", "dense", "CohereConfig", {"logit_scale": 0.5}),
    Family(
        "Phi-3, Phi-4 (LongRoPE)",
        "dense",
        "Phi3Config",
        {"rope_parameters": LONGROPE, "original_max_position_embeddings": ORIGINAL},
    ),
    Family("Mistral", "sliding window", "MistralConfig", {**HEADS, "sliding_window": WINDOW}),
    Family("Gemma 3 (text)", "sliding window", "Gemma3TextConfig", {**HEADS, **SLIDING}),
    Family("OLMo 3", "sliding window", "Olmo3Config", SLIDING),
    Family("Cohere 2", "sliding window", "Cohere2Config", COHERE2),
    Family("Gemma 4 (text)", "sliding window", "Gemma4TextConfig", {**HEADS, **SLIDING, **GEMMA4}),
    Family("Gemma 2", "soft caps", "Gemma2Config", {**HEADS, **SLIDING, **CAPS}),
    Family("gpt-oss", "sinks", "GptOssConfig", GPT_OSS),
    Family("Qwen3-MoE", "MoE", "Qwen3MoeConfig", {**HEADS, **MOE}),
    Family("Mixtral", "MoE", "MixtralConfig", LOCAL),
    Family("MiniMax-M2", "MoE", "MiniMaxM2Config", {**HEADS, **LOCAL}),
    Family("Phi-MoE", "MoE", "PhimoeConfig", {**LOCAL, "rope_parameters": LONGROPE | MSCALE}),
    Family(
        "DeepSeek-V3, Kimi-K2",
        "MoE",
        "DeepseekV3Config",
        {
            **ROUTED,
            "num_key_value_heads": 4,
            "q_lora_rank": 24,
            "kv_lora_rank": 16,
            "qk_rope_head_dim": 8,
            "qk_nope_head_dim": 16,
            "v_head_dim": 16,
        },
    ),
    Family("GLM-4-MoE", "MoE", "Glm4MoeConfig", {**HEADS, **ROUTED, "use_qk_norm": True}),
    Family("Llama 4 (text)", "chunked attention", "Llama4TextConfig", LLAMA4),
    Family("Qwen3-Next", "linear attention", "Qwen3NextConfig", {**HEADS, **LINEAR, **SHARED}),
    Family("Qwen3.5 (text)", "linear attention", "Qwen3_5TextConfig", {**HEADS, **LINEAR}),
    Family(
        "Qwen3.5-MoE (text)",
        "linear attention",
        "Qwen3_5MoeTextConfig",
        {**HEADS, **LINEAR, **SHARED},
    ),
    Family("LFM2", "convolution", "Lfm2Config", {"layer_types": ["conv", "full_attention"]}),
    Family(
        "Falcon-H1",
        "state space",
        "FalconH1Config",
        {
            "mamba_d_ssm": 64,
            "mamba_n_heads": 4,
            "mamba_d_head": 16,
            "mamba_n_groups": 2,
            "mamba_d_state": 8,
            "mamba_chunk_size": 16,
            **HEADS,
        },
    ),
    Family(
        "Nemotron 3",
        "state space",
        "NemotronHConfig",
        {
            **HEADS,
            **ROUTED,
            "num_hidden_layers": 4,
            "n_groups": 2,
            "ssm_state_size": 8,
            "mamba_num_heads": 4,
            "mamba_head_dim": 16,
            "chunk_size": 16,
            "moe_shared_expert_intermediate_size": 32,
            "expand": 1,
            "layer_types": ["mamba", "moe", "attention", "mlp"],
        },
    ),
    Family("Gemma 3", "composite", "Gemma3Config", {**HEADS, **SLIDING}, _gemma3),
    Family("Gemma 4", "composite", "Gemma4Config", {**HEADS, **SLIDING, **GEMMA4}, _gemma4),
    Family(
        "Gemma 4 MoE",
        "composite",
        "Gemma4Config",
        {
            **HEADS,
            **SLIDING,
            **MOE,
            "num_experts_per_tok": 2,
            "top_k_experts": 2,
            "enable_moe_block": True,
            "hidden_size_per_layer_input": 0,
            "global_head_dim": 32,
            "attention_k_eq_v": True,
            "num_global_key_value_heads": 1,
        },
        _gemma4,
    ),
    Family("Qwen3.5", "composite", "Qwen3_5Config", {**HEADS, **LINEAR}, _qwen),
    Family("Qwen3.5-MoE", "composite", "Qwen3_5MoeConfig", {**HEADS, **LINEAR, **SHARED}, _qwen),
    Family("Llama 4", "composite", "Llama4Config", LLAMA4, _llama4),
)
BY_NAME = {family.name: family for family in FAMILIES}

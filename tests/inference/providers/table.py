"""What the large providers and the local servers answer, by their published formats.

Made by hand, and shortened where a provider says the same twice.
"""

from __future__ import annotations

import json

from tests.inference.providers.more import MORE
from tests.inference.providers.shapes import (
    Provider,
    Refusal,
    anthropic,
    anthropic_refuses,
    deepseek,
    deepseek_refuses,
    error_of,
    gemini,
    gemini_refuses,
    groq,
    groq_refuses,
    ids_differ,
    llama_cpp,
    mistral,
    mistral_refuses,
    ollama,
    openai,
    openai_refuses,
    openrouter,
    sglang,
    vllm,
)

_LONGER = "This model's maximum context length is 100 tokens. However, you requested 612 tokens."
_FILTERS = {"hate": {"filtered": False, "severity": "safe"}}

PROVIDERS: dict[str, Provider] = {
    "openai": Provider(
        openai,
        full=(
            (400, error_of(_LONGER, param="messages", code="context_length_exceeded")),
            (400, error_of("Your input exceeds the context window of this model.")),
        ),
        fails=(
            (500, error_of("The server had an error while processing your request.")),
            (520, "<html><title>520: Web server is returning an unknown error</title></html>"),
            (200, ""),
        ),
        thinks=False,
        whole={"service_tier": "default", "system_fingerprint": None},
        choice={"logprobs": None},
        refuses=openai_refuses,
    ),
    "azure": Provider(
        openai,
        full=((400, error_of(_LONGER, code="context_length_exceeded")),),
        fails=((429, {"error": {"code": "429", "message": "Please retry after 1 second."}}),),
        thinks=False,
        whole={"prompt_filter_results": [{"prompt_index": 0, "content_filter_results": _FILTERS}]},
        choice={"content_filter_results": _FILTERS, "logprobs": None},
    ),
    "openrouter": Provider(
        openrouter,
        full=(
            (400, {"error": {"message": _LONGER.replace("model", "endpoint"), "code": 400}}),
            (200, {"error": {"message": _LONGER.replace("model", "endpoint"), "code": 400}}),
            (
                400,
                {
                    "error": {
                        "message": "Provider returned error",
                        "code": 400,
                        "metadata": {"raw": json.dumps(error_of("prompt is too long: 9 > 8"))},
                    }
                },
            ),
        ),
        fails=(
            (200, {"error": {"message": "Upstream idle timeout exceeded", "code": 502}}),
            (200, {"error": {"message": "Provider returned error", "code": 524}}),
            (200, {"id": "gen-1", "choices": None, "user_id": "u"}),
        ),
        whole={"provider": "Some", "system_fingerprint": None},
        choice={"native_finish_reason": "STOP", "logprobs": None},
    ),
    "gemini": Provider(
        gemini,
        full=(
            (
                400,
                [
                    {
                        "error": {
                            "code": 400,
                            "message": "The input token count (1048580) exceeds the maximum number "
                            "of tokens allowed (1048576).",
                            "status": "INVALID_ARGUMENT",
                        }
                    }
                ],
            ),
        ),
        fails=(
            (503, [{"error": {"code": 503, "message": "The model is overloaded."}}]),
            (200, [{"error": {"code": 500, "message": "An internal error has occurred."}}]),
            (200, {"choices": [{"index": 0, "finish_reason": "stop"}]}),
        ),
        ended="stop",
        called="stop",
        cut=("length", "MAX_TOKENS"),
        filtered=("content_filter", "content_filter: PROHIBITED_CONTENT", "SAFETY"),
        thinks=False,
        refuses=gemini_refuses,
    ),
    "anthropic": Provider(
        anthropic,
        full=(
            (400, error_of("prompt is too long: 200001 tokens > 200000 maximum")),
            (
                400,
                error_of(
                    "input length and `max_tokens` exceed context limit: 199999 + 512 > 200000, "
                    "decrease input length or `max_tokens` and try again"
                ),
            ),
            (413, {"type": "error", "error": {"type": "request_too_large", "message": "Too big"}}),
        ),
        fails=(
            (
                529,
                {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}},
            ),
            (500, {"type": "error", "error": {"type": "api_error", "message": "Internal"}}),
        ),
        cut=("length", "max_tokens", "model_context_window_exceeded"),
        filtered=("content_filter", "refusal"),
        thinks=False,
        whole={
            "usage": {"prompt_tokens": 20, "completion_tokens": 5, "prompt_tokens_details": None}
        },
        refuses=anthropic_refuses,
    ),
    "groq": Provider(
        groq,
        full=(
            (
                400,
                error_of(
                    "Please reduce the length of the messages or completion.",
                    code="context_length_exceeded",
                ),
            ),
            (413, error_of("Request Entity Too Large", code="request_too_large")),
        ),
        fails=((503, error_of("Service unavailable")), (507, error_of("No capacity"))),
        whole={"x_groq": {"id": "req_1"}, "usage_breakdown": None},
        choice={"logprobs": None},
        refuses=groq_refuses,
    ),
    "mistral": Provider(
        mistral,
        full=(
            (
                400,
                {
                    "object": "error",
                    "message": "Prompt contains 40000 tokens and 0 draft tokens, too large for "
                    "model with 32768 maximum context length",
                    "type": "invalid_request_prompt",
                    "code": "3051",
                },
            ),
        ),
        fails=(
            (425, {"message": "Too early"}),
            (200, {"object": "error", "message": "Service tier capacity exceeded", "code": "3505"}),
        ),
        cut=("length", "model_length"),
        refuses=mistral_refuses,
    ),
    "deepseek": Provider(
        deepseek,
        full=((400, error_of(_LONGER, code="invalid_request_error")),),
        fails=((503, error_of("Service is too busy.")), (200, '{"id": "1", "choi')),
        refuses=deepseek_refuses,
    ),
    "vllm": Provider(
        vllm,
        full=(
            (400, error_of(_LONGER, type="BadRequestError", code=400)),
            (
                400,
                {
                    "object": "error",
                    "message": "The decoder prompt (length 100) is longer than the maximum model "
                    "length of 99.",
                    "code": 400,
                },
            ),
            (
                400,
                error_of(
                    "You passed 101 input tokens and requested 1 output tokens. However, the "
                    "model's context length is only 100 tokens, resulting in a maximum input "
                    "length of 99 tokens."
                ),
            ),
        ),
        fails=((500, error_of("EngineCore encountered an issue.", code=500)),),
        whole={"prompt_logprobs": None, "kv_transfer_params": None},
        choice={"logprobs": None, "stop_reason": None, "token_ids": None},
    ),
    "sglang": Provider(
        sglang,
        full=(
            (
                400,
                {
                    "object": "error",
                    "message": "Requested token count exceeds the model's maximum context length "
                    "of 100 tokens.",
                    "type": "BadRequestError",
                    "code": 400,
                },
            ),
            (
                400,
                {
                    "object": "error",
                    "message": "The input (120 tokens) is longer than the model's context length "
                    "(100 tokens).",
                    "code": 400,
                },
            ),
        ),
        fails=((503, {"object": "error", "message": "The server is not ready", "code": 503}),),
        whole={"metadata": {"weight_version": "default"}},
        choice={"logprobs": None, "matched_stop": 151645},
        refuses=ids_differ,
    ),
    "llama.cpp": Provider(
        llama_cpp,
        full=(
            (
                400,
                {
                    "error": {
                        "code": 400,
                        "message": "the request exceeds the available context size (100 tokens), "
                        "try increasing it",
                        "type": "exceed_context_size_error",
                        "n_prompt_tokens": 120,
                        "n_ctx": 100,
                    }
                },
            ),
        ),
        fails=((503, {"error": {"code": 503, "message": "Loading model"}}),),
        whole={"timings": {"prompt_n": 20, "predicted_n": 5}, "system_fingerprint": "b6000"},
        refuses=ids_differ,
    ),
    "ollama": Provider(
        ollama,
        full=((400, error_of("prompt is too long: it exceeds the context length")),),
        fails=((500, error_of("llama runner process has terminated", type="api_error")),),
        whole={"system_fingerprint": "fp_ollama"},
        refuses=ids_differ,
    ),
}
PROVIDERS |= MORE
# Ends of answers by which providers say that they have failed.
BROKEN_OFF: tuple[Refusal, ...] = (
    PROVIDERS["openrouter"].broken_off("error", error={"code": 502, "message": "cut off"}),
    PROVIDERS["openrouter"].broken_off("error"),
    PROVIDERS["mistral"].broken_off("error"),
    PROVIDERS["deepseek"].broken_off("insufficient_system_resource"),
    PROVIDERS["sglang"].broken_off("abort"),
    PROVIDERS["vllm"].broken_off("abort"),
    PROVIDERS["openai"].broken_off("network_error"),  # Zhipu
)

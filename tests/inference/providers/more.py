"""More providers: those that host open models, and others with an API like OpenAI's.

Made by hand from their published formats, as :mod:`tests.inference.providers.table` is.
"""

from __future__ import annotations

import json
from collections.abc import Callable

from tests.inference.providers.shapes import (
    THOUGHT,
    Body,
    Provider,
    call_of,
    error_of,
    ids_differ,
)


def said_by(
    id: str,
    thought: str = "reasoning_content",
    *,
    objects: bool = False,
    empty: str | None = None,
    **more: object,
) -> Callable[[str, str | None, int], Body]:
    """Return what makes a provider's messages.

    Args:
        id: Of a call; ``{}`` stands for the number of the request.
        thought: The field with the reasoning; ``""`` for none.
        objects: Whether arguments are an object in place of a text.
        empty: The content of an answer without a text.
        more: Further fields of a message.
    """

    def said(text: str, arguments: str | None, number: int) -> Body:
        message: Body = {"role": "assistant", "content": text or empty, **more}
        if thought:
            message[thought] = THOUGHT
        if arguments is not None:
            call = call_of(arguments, id.format(number))
            if objects:
                call["function"]["arguments"] = json.loads(arguments)
            message["tool_calls"] = [call]
        return message

    return said


def parts(text: str, arguments: str | None, number: int) -> Body:
    """A message whose text is in parts, next to its calls."""
    message = said_by("call_{}", "")(text, arguments, number)
    return message | {"content": [{"type": "text", "text": text}] if text else []}


def _usage(**more: object) -> Body:
    return {"usage": {"prompt_tokens": 20, "completion_tokens": 5, "total_tokens": 25, **more}}


MORE: dict[str, Provider] = {
    "cohere": Provider(
        parts,
        full=(
            (
                400,
                {
                    "id": "5e0a",
                    "message": "too many tokens: size limit exceeded by 11326 tokens. Try using "
                    "shorter or fewer inputs.",
                },
            ),
        ),
        fails=((503, {"message": "The server is unavailable"}),),
        called="TOOL_CALL",
        ended="COMPLETE",
        cut=("MAX_TOKENS", "length"),
        filtered=(),
        thinks=False,
    ),
    "together": Provider(
        said_by("call_{:024d}", "reasoning"),
        full=(
            (
                422,
                error_of(
                    "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 8193. "
                    "Given: 9000 `inputs` tokens and 64 `max_new_tokens`",
                    param="max_tokens",
                ),
            ),
        ),
        fails=((503, error_of("The server is overloaded or not ready yet.")),),
        ended="eos",
        filtered=(),
        choice={"seed": 4294967296000000000, "logprobs": None},
        whole={"prompt": []},
    ),
    "fireworks": Provider(
        said_by("call_{}", function_call=None),
        full=(
            (400, error_of("The prompt is too long: 40000, model maximum context length: 32767")),
        ),
        fails=((429, error_of("Request was rejected: server overloaded")),),
        filtered=(),
        whole=_usage(prompt_tokens_details={"cached_tokens": None}),
    ),
    "xai": Provider(
        said_by("call_{}", refusal=None),
        full=(
            (
                400,
                {
                    "code": "Client specified an invalid argument",
                    "error": "This model's maximum prompt length is 131072 but the request "
                    "contains 140000 tokens.",
                },
            ),
        ),
        fails=((503, {"code": "The service is currently unavailable", "error": "Try later"}),),
        whole=_usage(num_sources_used=0, completion_tokens_details={"reasoning_tokens": 3}),
    ),
    "bedrock": Provider(
        said_by("chatcmpl-tool-{:032x}", "reasoning"),
        full=(
            (400, {"message": "Input is too long for requested model."}),
            (400, error_of("prompt is too long: 9 > 8", code="validation_error")),
        ),
        fails=(
            (503, {"message": "Bedrock is unable to process your request."}),
            (424, {"message": "The model failed"}),
        )[:1],
        filtered=("content_filter", "guardrail_intervened"),
    ),
    "lm studio": Provider(
        said_by("{:09d}"),
        full=(
            (
                400,
                {
                    "error": "Trying to keep the first 9000 tokens when context the overflows. "
                    "However, the model is loaded with context length of only 4096 tokens, which "
                    "is not enough."
                },
            ),
            (400, {"error": "The number of tokens is greater than the context length."}),
        ),
        fails=((500, {"error": "The model has crashed without additional information."}),),
        filtered=(),
        whole={"stats": {}, "system_fingerprint": "qwen3-4b"},
        refuses=ids_differ,
    ),
    "nvidia": Provider(
        said_by("chatcmpl-tool-{:032x}", tool_calls=[], refusal=None, audio=None),
        full=(
            (
                400,
                {
                    "object": "error",
                    "message": "This model's maximum context length is 100 tokens. However, you "
                    "requested 612 tokens.",
                    "type": "BadRequestError",
                    "code": 400,
                },
            ),
        ),
        fails=((500, {"type": "urn:inference-service", "detail": "Inference connection error"}),),
        filtered=(),
        whole=_usage(prompt_tokens_details=None),
    ),
    "cerebras": Provider(
        said_by("{:09d}", "reasoning"),
        full=(
            (
                400,
                {
                    "message": "Please reduce the length of the messages or completion. Current "
                    "length is 9000 while limit is 8192",
                    "type": "invalid_request_error",
                    "param": "messages",
                    "code": "context_length_exceeded",
                },
            ),
        ),
        fails=((429, {"message": "We're experiencing high traffic", "code": "queue_exceeded"}),),
        filtered=(),
        whole={"time_info": {"queue_time": 0.0001, "created": 1764000000.5}},
    ),
    "sambanova": Provider(
        said_by("call_{:017x}", ""),
        full=((400, error_of("Requested tokens exceeded context window", code=None)),),
        fails=((503, error_of("Service temporarily unavailable", code=None)),),
        filtered=(),
        thinks=False,
        whole=_usage(time_to_first_token=0.04, is_last_response=True, stop_reason="stop"),
    ),
    "moonshot": Provider(
        said_by("functions.calculate:{}"),
        full=((400, error_of("Invalid request: Your request exceeded model token limit: 8192")),),
        fails=((429, error_of("The engine is currently overloaded", code=None)),),
        whole=_usage(cached_tokens=20),
    ),
    "zhipu": Provider(
        said_by("call_{}"),
        full=((400, {"error": {"code": "1261", "message": "Prompt exceeds max length"}}),),
        fails=((429, {"error": {"code": "1305", "message": "The model is overloaded"}}),),
        filtered=("sensitive",),
        cut=("length", "model_context_window_exceeded"),
        whole={"request_id": "20251111", "web_search": None},
    ),
    "dashscope": Provider(
        said_by("call_{:022x}", empty=""),
        full=(
            (
                400,
                error_of(
                    "<400> InternalError.Algo.InvalidParameter: Range of input length should be "
                    "[1, 129024]",
                    code="invalid_parameter_error",
                ),
            ),
        ),
        fails=((503, error_of("Too many requests. Your requests are being throttled")),),
        filtered=(),
        choice={"logprobs": None},
        whole=_usage(prompt_tokens_details={"cached_tokens": 0}),
    ),
    "minimax": Provider(
        said_by("call_function_{}", name="MiniMax AI", audio_content=""),
        full=(
            (
                200,
                {
                    "choices": None,
                    "base_resp": {
                        "status_code": 2013,
                        "status_msg": "invalid params, context window exceeds limit (2013)",
                    },
                },
            ),
            (200, {"choices": None, "base_resp": {"status_code": 1039, "status_msg": "token"}}),
        ),
        fails=(
            (200, {"choices": None, "base_resp": {"status_code": 1002, "status_msg": "RPM"}}),
            (200, {"base_resp": {"status_code": 1000, "status_msg": "unknown error"}}),
        ),
        filtered=("content_filter",),
        cut=("length", "max_output"),
        whole={
            "input_sensitive": False,
            "base_resp": {"status_code": 0, "status_msg": ""},
            **_usage(total_characters=0),
        },
    ),
    # Gateways in front of APIs whose arguments are objects, as Ollama's own and Bedrock's are.
    "gateway": Provider(
        said_by("tooluse_{:020d}", "", objects=True, refusal=None),
        full=((400, {"detail": "Input is too long for requested model."}),),
        fails=((502, "<html>502 Bad Gateway</html>"), (200, {"error": "upstream timed out"})),
        called="stop",
        thinks=False,
    ),
}

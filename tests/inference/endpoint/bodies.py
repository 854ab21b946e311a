"""A request of each dialect that uses most of its fields, and ways to get one wrong."""

from __future__ import annotations

from typing import Any

from tests.inference.endpoint.rollout_talk import TOOL

CALLED = {
    "id": "call_0_0",
    "type": "function",
    "function": {"name": "look", "arguments": '{"what": "tea"}'},
}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {
        "model": "policy",
        "messages": [
            {"role": "system", "content": [{"type": "text", "text": "Be brief."}]},
            {"role": "user", "content": "Tea?"},
            {"role": "assistant", "content": None, "tool_calls": [CALLED]},
            {"role": "tool", "tool_call_id": "call_0_0", "content": "green"},
        ],
        "tools": [TOOL],
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "stream": True,
        "stream_options": {"include_usage": True},
        "n": 2,
        "stop": ["END"],
        "temperature": 0.5,
        "top_p": 0.9,
        "seed": 3,
        "max_completion_tokens": 9,
        "response_format": {"type": "text"},
        "metadata": {"a": "b"},
        "user": "me",
    },
    "/v1/responses": {
        "model": "policy",
        "instructions": "Be brief.",
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "Tea?"}]},
            {"type": "reasoning", "id": "rs_1", "summary": [], "content": []},
            {
                "type": "function_call",
                "id": "fc_1",
                "call_id": "call_0_0",
                "name": "look",
                "arguments": "{}",
            },
            {"type": "function_call_output", "call_id": "call_0_0", "output": "green"},
            {
                "type": "message",
                "role": "assistant",
                "content": [{"type": "output_text", "text": "Green.", "annotations": []}],
            },
            {"role": "user", "content": "More."},
        ],
        "tools": [{"type": "function", "name": "look", "parameters": {"type": "object"}}],
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "stream": True,
        "max_output_tokens": 9,
        "temperature": 0.5,
        "top_p": 0.9,
        "reasoning": {"effort": "low", "summary": "auto"},
        "text": {"format": {"type": "text"}},
        "include": ["reasoning.encrypted_content"],
        "store": False,
        "metadata": {"a": "b"},
    },
    "/v1/messages": {
        "model": "policy",
        "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
        "messages": [
            {"role": "user", "content": "Tea?"},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "Hm.", "signature": "x"},
                    {"type": "text", "text": "I look."},
                    {"type": "tool_use", "id": "call_0_0", "name": "look", "input": {}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {
                        "type": "tool_result",
                        "tool_use_id": "call_0_0",
                        "content": [{"type": "text", "text": "green"}],
                    },
                    {"type": "text", "text": "More."},
                ],
            },
        ],
        "tools": [{"name": "look", "description": "Look.", "input_schema": {"type": "object"}}],
        "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
        "stream": True,
        "max_tokens": 9,
        "stop_sequences": ["END"],
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 5,
        "thinking": {"type": "enabled", "budget_tokens": 1024},
        "metadata": {"user_id": "me"},
    },
}

IMAGES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"type": "image_url", "image_url": {"url": "data:image/png;base64,A"}},
    "/v1/responses": {"type": "input_image", "image_url": "data:image/png;base64,A"},
    "/v1/messages": {
        "type": "image",
        "source": {"type": "base64", "media_type": "image/png", "data": "A"},
    },
}


def with_part(path: str, part: dict[str, Any]) -> dict[str, Any]:
    """Return a request whose first message of the user's holds this part alone."""
    said = "input" if path == "/v1/responses" else "messages"
    return BODIES[path] | {said: [{"role": "user", "content": [part]}]}

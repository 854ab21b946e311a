"""What the endpoint's benchmark reports, and how its agents put a stream together."""

from __future__ import annotations

import json

from endpoint import figures, streamed

from vf.inference.endpoint.chat import Chat
from vf.inference.endpoint.dialect import Answered
from vf.inference.model import Reply
from vf.traces.messages import Message, ToolCall


def test_a_streamed_answer_is_the_one_that_is_not_streamed() -> None:
    chat = Chat()
    body = {"model": "policy", "messages": [{"role": "user", "content": "x"}], "stream": True}
    asked = chat.read(body, {})
    calls = [ToolCall("call_0", "calculate", '{"a": 1}'), ToolCall("call_1", "submit", "{}")]
    answered = Answered([Reply(Message("assistant", "Hm.", tool_calls=calls))], "policy")
    whole = json.loads(json.dumps(chat.answer(asked, answered)))["choices"][0]["message"]
    message = streamed(b"".join(chat.events(asked, answered)))
    assert message == {name: whole[name] for name in ("role", "content", "tool_calls")}


def test_the_ratio_is_the_target_over_what_a_call_costs_more() -> None:
    cpu = {"direct": 1.25, "floor": 0.5, "ours": 1.75, "verifiers": 7.0}
    results = {name: {"cpu_ms_per_call": value} for name, value in cpu.items()}
    found = figures(results)
    assert (found["ratio"], found["added_ms"], found["peer_ratio"]) == (2.0, 0.5, 4.0)
    del results["verifiers"]
    assert figures(results)["peer_ratio"] is None

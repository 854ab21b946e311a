"""The trace of an agent with several conversations, as the endpoint of a rollout records it."""

from __future__ import annotations

import vf
from vf.traces.trace import Branch, Fork, Lineage, Score, StopReason, ToolEvent, Turn

OFFERED = [{"type": "function", "function": {"name": "ask_helper", "parameters": {}}}]
SEARCH = [{"type": "function", "function": {"name": "search", "parameters": {}}}]


def delegated() -> vf.Trace:
    """Return a rollout in which an agent asks a helper, and then tries its last step twice.

    Three conversations: the agent's (turns 0 and 3), its helper's (turns 1 and 2), and a second
    sample of the last step (turn 4), whose tokens begin with a copy of the first 12 of the agent's.
    Turns sampled 3, 20, 4, 2 and 2 tokens.
    """
    asked = [vf.Message("system", "You lead."), vf.Message("user", "Which river?")]
    call = vf.ToolCall("a", "ask_helper", '{"about": "river"}')
    told = vf.Message("tool", "The Akerselva.", tool_call_id="a", name="ask_helper")
    shared = [*asked, vf.Message("assistant", "I delegate.", tool_calls=[call]), told]
    search = vf.ToolCall("b", "search", '{"query": "river"}')
    helper = [
        vf.Message("system", "You help."),
        vf.Message("user", "Find the river."),
        vf.Message("assistant", "word " * 18, reasoning="hm", tool_calls=[search]),
        vf.Message("tool", "found it", tool_call_id="b", name="search"),
        # An example that the agent puts in by itself: no model said it.
        vf.Message("assistant", "[noted]"),
        vf.Message("user", "Report."),
        vf.Message("assistant", "The Akerselva."),
    ]
    main, sub, again = Branch(), Branch(), Branch()
    main.add_context([1, 2, 3, 4, 5], 0)
    main.add_sampled([10, 11, 12], [-0.1, -0.2, -0.3], [3] * 3, 0)
    sub.add_context([1, 6, 7], 1)
    sub.add_sampled([*range(20, 40)], [-0.5] * 20, [3] * 20, 1)
    sub.add_context([8, 9], 2)
    sub.add_sampled([40, 41, 42, 43], [-0.5] * 4, [4] * 4, 2)
    main.add_context([13, 14, 15, 16], 3)
    again.add_context(main.token_ids, 4)
    main.add_sampled([50, 51], [-0.7, -0.8], [4] * 2, 3)
    again.add_sampled([60, 61], [-0.9, -1.0], [4] * 2, 4)
    lineages = [
        Lineage(
            [*shared, vf.Message("assistant", "Answer: A")], 2, OFFERED, [0], [0, 3], answers=[2, 4]
        ),
        Lineage(helper, 2, SEARCH, [1], [1, 2], answers=[2, 6]),
        Lineage(
            [*shared, vf.Message("assistant", "Answer: B")],
            4,
            OFFERED,
            [2],
            [4],
            answers=[4],
            parent=0,
        ),
    ]
    return vf.Trace(
        environment="program",
        task=vf.Task("river", "Which river?", answer="Akerselva"),
        seed=0,
        id="agent",
        messages=lineages[-1].messages,
        prompt_messages=4,
        tools=OFFERED,
        branches=[main, sub, again],
        forks=[
            Fork(1, "the first message differs: 'You help.'", "conversation"),
            Fork(4, "asked again after 4 messages", "parallel"),
        ],
        lineages=lineages,
        turns=[
            Turn(5, 3, "stop", 0.5),
            Turn(3, 20, "stop", 1.0),
            Turn(25, 4, "stop", 0.2),
            Turn(12, 2, "stop", 0.1),
            Turn(12, 2, "stop", 0.1),
        ],
        tool_events=[ToolEvent(1, "b", "search", "ok"), ToolEvent(0, "a", "ask_helper", "ok")],
        score=Score(1.0, 1.0),
        stop_reason=StopReason.TERMINATED,
        timing={"total": 2.0},
        info={
            "output": "Answer: B\n",
            "program": {"exit_code": 0, "stdout": "Answer: B\n", "stderr": "a warning\n"},
            "files": {"notes.md": "# Notes"},
        },
    )

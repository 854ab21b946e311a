"""Traces to look at: ordinary ones, and one in which every text is an attack."""

from __future__ import annotations

import random

import vf
from vf.traces.trace import (
    Branch,
    Failure,
    Fork,
    Lineage,
    Origin,
    Score,
    StopReason,
    ToolEvent,
    Turn,
)

ATTACK = (
    '</script><script>window.pwned=1</script><img src=x onerror="window.pwned=2">'
    "<svg onload=window.pwned=3></svg><!-- --><style>*{display:none}</style>"
)
TRICKS = (
    "safe \u202egpj.exe\u202c zero\u200bwidth \x1b[31mred\x07 \u2028 مرحبا می\u200cخواهم 👩\u200d👩"
)


def research(index: int = 0) -> vf.Trace:
    """Return a rollout of three turns with three calls, two branches, and four to a task."""
    rng = random.Random(index)
    messages = [
        vf.Message("system", "Use the tools."),
        vf.Message("user", f"Which river flows through city {index}?"),
        vf.Message(
            "assistant",
            "Let me look.",
            reasoning="I should search first.",
            tool_calls=[
                vf.ToolCall("a", "search", '{"query": "city"}'),
                vf.ToolCall("b", "open", '{"doc_id": "oslo"}'),
            ],
        ),
        vf.Message("tool", "found the river", tool_call_id="a", name="search"),
        vf.Message("tool", "no such document", tool_call_id="b", name="open"),
        vf.Message("assistant", tool_calls=[vf.ToolCall("c", "python", "print(1")]),
        vf.Message("tool", "SyntaxError", tool_call_id="c", name="python"),
        vf.Message("assistant", f"Answer: river {index}"),
    ]
    first = Branch()
    for turn in range(2):
        first.add_context([rng.randrange(500) for _ in range(30)], turn)
        first.add_sampled([7 * turn + i for i in range(10)], [-0.5] * 10, [turn + 3] * 10, turn)
    second = Branch()
    second.add_context(first.token_ids[:50], 2)
    second.add_context([499], 2)
    second.add_sampled([4, 5, 6], [-0.25, -float("inf"), -70.0], [5] * 3, 2)
    reward = [1.0, 0.0, 0.63][index % 3]
    return vf.Trace(
        environment="quiz",
        task=vf.Task(f"river-{index // 4}", messages[1].content, answer="Akerselva"),
        seed=2**62 + 1,
        id=f"trace-{index}",
        messages=messages,
        prompt_messages=2,
        branches=[first, second],
        forks=[Fork(2, "the template rewrote turn 1")],
        turns=[
            Turn(30, 10, "stop", 1.5),
            Turn(60, 10, "stop", 0.5),
            Turn(51, 3, "length", 0.25),
        ],
        tool_events=[
            ToolEvent(0, "a", "search", "ok", seconds=0.25),
            ToolEvent(0, "b", "open", "rejected", "no document oslo", 0.05),
            ToolEvent(1, "c", "python", "invalid_json", "not JSON"),
        ],
        step_rewards=[0.0, 0.0, reward],
        score=Score(
            reward,
            1.0,
            penalties={"tool_errors": 0.37},
            gates={"keeps_policy": True, "no_hack": index % 3 != 1},
            parts={"partial": 0.5},
            metrics={"words": float("nan"), "skipped": None},
        ),
        stop_reason=StopReason.TERMINATED,
        timing={"reset": 0.02, "model": 2.25, "step": 0.35, "score": 0.1, "total": 2.75},
        origin=Origin(step=4, group=12, rollout=0),
    )


def hostile() -> vf.Trace:
    """Return a trace in which every text tries to be markup, and one message is huge."""
    trace = research()
    trace.id = ATTACK
    trace.environment = ATTACK
    trace.task = vf.Task(
        ATTACK, ATTACK, answer=ATTACK, info={ATTACK: ATTACK, "__proto__": {"x": 1}}
    )
    trace.messages = [
        vf.Message("user", ATTACK),
        vf.Message("user", TRICKS),
        vf.Message(
            "assistant",
            "x" * 3_000_000,
            reasoning=ATTACK,
            tool_calls=[vf.ToolCall(ATTACK, ATTACK, ATTACK, malformed=ATTACK)],
        ),
        vf.Message("tool", ATTACK, tool_call_id=ATTACK, name=ATTACK),
    ]
    trace.tool_events = [ToolEvent(0, ATTACK, ATTACK, "error", ATTACK, 0.3)]
    trace.forks = [Fork(0, ATTACK)]
    trace.score = Score(0.5, 0.5, penalties={ATTACK: 0.5}, metrics={ATTACK: 1.0})
    trace.timing = {ATTACK: 1.0, "total": 1.0}
    trace.stop_reason = StopReason.ERROR
    trace.error = Failure(ATTACK, ATTACK, ATTACK, ATTACK)
    trace.info = {
        "eval": {"model": ATTACK},
        "output": ATTACK,
        "program": {"exit_code": ATTACK, ATTACK: ATTACK, "stderr": [ATTACK]},
        "files": {ATTACK: ATTACK, "number": 3},
    }
    said = trace.conversations[0]
    trace.lineages = [said, Lineage(said.messages, 2, branches=[9], parent=1)]
    return trace

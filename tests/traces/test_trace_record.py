"""The trace as a record: JSON round trip, properties, branches."""

from __future__ import annotations

import json
import math
import random
from array import array
from dataclasses import asdict
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import vf
from vf.runtime.errors import ToolFailure
from vf.traces.trace import Branch, Failure, Fork, ForkKind, Lineage, Origin, Score, ToolEvent, Turn

TEXT = st.text(max_size=12)
INTS = st.integers(-(2**40), 2**40)
REAL = st.floats(allow_nan=False)
ANY_JSON = st.recursive(
    st.none() | st.booleans() | INTS | st.floats(-1e9, 1e9) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=5,
)
MESSAGES = st.builds(
    vf.Message,
    role=st.sampled_from(["system", "user", "assistant", "tool"]),
    content=TEXT,
    reasoning=st.none() | TEXT,
    tool_calls=st.lists(st.builds(vf.ToolCall, TEXT, TEXT, TEXT, st.none() | TEXT), max_size=2),
)


SAID = st.lists(MESSAGES, min_size=1, max_size=3).flatmap(
    lambda few: st.lists(st.sampled_from(few), max_size=5)  # so that some are said again
)
OFFERED = st.lists(st.dictionaries(TEXT, ANY_JSON, max_size=1), max_size=1)


@st.composite
def lineages(draw: st.DrawFn) -> Lineage:
    said, turns = draw(SAID), draw(st.lists(INTS, max_size=3))
    answers = [len(said) - 1] * len(turns) if said else []
    parent = draw(st.sampled_from([None, 0]))
    tools, branches = draw(OFFERED), draw(st.lists(INTS))
    return Lineage(said, draw(INTS), tools, branches, turns[: len(answers)], answers, parent)


@st.composite
def branches(draw: st.DrawFn) -> Branch:
    size = draw(st.integers(0, 4))

    def integers() -> list[int]:
        return draw(st.lists(INTS, min_size=size, max_size=size))

    logprobs = draw(st.lists(REAL, min_size=size, max_size=size))
    experts = draw(st.lists(st.binary(min_size=4, max_size=4), max_size=size))
    return Branch(integers(), integers(), logprobs, integers(), integers(), experts)


TRACES = st.builds(
    vf.Trace,
    environment=TEXT,
    task=st.builds(
        vf.Task,
        id=TEXT,
        prompt=TEXT,
        answer=ANY_JSON,
        info=st.dictionaries(TEXT, ANY_JSON, max_size=2),
    ),
    seed=st.integers(0, 2**63 - 1),
    messages=st.lists(MESSAGES, max_size=3),
    branches=st.lists(branches(), max_size=2),
    forks=st.lists(st.builds(Fork, INTS, TEXT, st.sampled_from(get_args(ForkKind))), max_size=1),
    lineages=st.lists(lineages(), max_size=3),
    turns=st.lists(
        st.builds(Turn, INTS, INTS, st.sampled_from(["stop", "length"]), REAL), max_size=2
    ),
    tool_events=st.lists(
        st.builds(ToolEvent, INTS, TEXT, TEXT, st.sampled_from(["ok", "rejected"]), TEXT, REAL),
        max_size=2,
    ),
    step_rewards=st.lists(REAL, max_size=2),
    score=st.none() | st.builds(Score, REAL, REAL, st.dictionaries(TEXT, REAL, max_size=2)),
    stop_reason=st.none() | st.sampled_from(vf.StopReason),
    error=st.none() | st.builds(Failure, TEXT, TEXT, TEXT, TEXT),
    timing=st.dictionaries(TEXT, REAL, max_size=2),
    info=st.dictionaries(TEXT, ANY_JSON, max_size=2),
    origin=st.none() | st.builds(Origin, INTS, INTS, INTS),
)


@given(TRACES)
@settings(deadline=None, max_examples=25)
def test_a_trace_is_one_json_line_and_reads_back_equal(trace: vf.Trace) -> None:
    line = trace.to_json()
    assert b"\n" not in line
    assert vf.Trace.from_json(line) == trace


def growing(size: int, turns: int) -> Branch:
    """Return a branch of so many tokens, half of them sampled, as an engine reports them."""
    rng, branch, each = random.Random(0), Branch(), size // turns // 2
    for turn in range(turns):
        branch.add_context([rng.randrange(150_000) for _ in range(each)], turn)
        logprobs = array("f", [-5.0 * rng.random() for _ in range(each)]).tolist()
        ids = [rng.randrange(150_000) for _ in range(each)]
        branch.add_sampled(ids, logprobs, [turn // 8] * each, turn)
    return branch


def test_token_arrays_are_compact_and_exact() -> None:
    branch = growing(32_768, turns=32)
    trace = make_trace(branches=[branch])
    line = trace.to_json()
    assert len(line) < 9 * len(branch), "text of numbers takes some 25 bytes a token"
    assert vf.Trace.from_json(line) == trace


def test_supports_are_kept_where_there_are_any() -> None:
    plain = growing(64, turns=2)
    assert "supports" not in json.loads(make_trace(branches=[plain]).to_json())["branches"][0]
    branch = growing(64, turns=2)
    branch.add_sampled([5, 70_000], [-0.5, -0.25], [1, 1], 2, [[], [3, 70_000]])
    branch.add_context([6], 3)
    branch.add_sampled([8], [-0.5], [1], 3)
    branch.add_sampled([9], [-0.5], [1], 4, [[9]])
    assert branch.supports == [[]] * 65 + [[3, 70_000], [], [], [9]]
    trace = make_trace(branches=[plain, branch])  # which begin alike
    assert vf.Trace.from_json(trace.to_json()) == trace
    raw = json.loads(trace.to_json())
    raw["branches"][1]["supports"]["counts"] = [1] * 69
    with pytest.raises(ValueError, match="their counts are not those of their ids"):
        vf.Trace.from_json(json.dumps(raw))
    with pytest.raises(ValueError, match="2 sampled tokens and 1 supports"):
        branch.add_sampled([1, 2], [0.0, 0.0], [1, 1], 5, [[1]])


def test_a_line_with_lists_of_numbers_is_read() -> None:
    branch = growing(64, turns=2)
    raw = json.loads(make_trace(branches=[branch]).to_json())
    raw["branches"] = [asdict(branch)]
    assert vf.Trace.from_json(json.dumps(raw)).branches == [branch]


def test_a_beginning_that_branches_share_is_written_once() -> None:
    """So are a copied context, and the system prompt of sub-agents."""
    first = growing(8192, turns=8)
    branches = [first]
    for turn in range(20):
        branch = Branch()
        branch.add_context(first.token_ids[: 300 * turn], turn)
        branch.add_sampled([7, 8], [-0.5, -0.25], [turn, turn], turn)
        branches.append(branch)
    trace = make_trace(branches=branches)
    line = trace.to_json()
    assert len(line) < 1.1 * len(make_trace(branches=[first]).to_json())
    assert vf.Trace.from_json(line) == trace


def test_what_conversations_share_is_written_once() -> None:
    """An agent of 50 calls that changes its history before each has 50 conversations."""
    tools = [{"type": "function", "function": {"name": "t", "description": "d" * 4000}}]
    history, lineages = [vf.Message("system", "s" * 4000)], []
    for turn in range(50):
        history = [*history, vf.Message("user", f"{turn}" * 400), vf.Message("assistant", "a" * 99)]
        changed = [*history[:1], vf.Message("user", f"turn {turn}"), *history[1:]]
        lineages.append(Lineage(changed, len(changed) - 1, tools, [], [turn], [len(changed) - 1]))
    trace = make_trace(messages=lineages[-1].messages, tools=tools, lineages=lineages)
    once = len(make_trace(messages=lineages[-1].messages, tools=tools).to_json())
    line = trace.to_json()
    assert len(line) < 3 * once
    assert vf.Trace.from_json(line) == trace


@pytest.mark.parametrize(
    "wrong",
    [
        {"messages": [[0, 1]]},
        {"messages": [{"role": "user"}, [0, 2]]},
        {"messages": [{"role": "user"}, [-1, 1]]},
        {"messages": [[0]]},
        {"tools": 0},
        {"tools": -1},
        {"turns": [0]},
        {"turns": [0], "answers": [0]},
        {"turns": [0], "answers": ["0"], "messages": [{"role": "assistant"}]},
        {"parent": 1},
        {"turns": 3, "answers": 3},
    ],
)
def test_a_conversation_that_refers_to_nothing_makes_a_line_that_is_no_trace(
    wrong: dict[str, Any],
) -> None:
    raw = json.loads(make_trace().to_json()) | {"lineages": [wrong]}
    with pytest.raises(ValueError, match="validation error"):
        vf.Trace.from_json(json.dumps(raw))


def test_a_line_from_before_there_were_conversations_is_read() -> None:
    trace = vf.Trace.from_json(
        '{"environment":"e","task":{"id":"t","prompt":"p","answer":null,"info":{}},"seed":0,'
        '"id":"x","messages":[{"role":"user","content":"p","reasoning":null,"tool_calls":[],'
        '"tool_call_id":null,"name":null},{"role":"assistant","content":"a","reasoning":null,'
        '"tool_calls":[],"tool_call_id":null,"name":null}],"prompt_messages":1,"tools":[],'
        '"branches":[{"token_ids":"u2:BQAHAA==","logprobs":"f4:AAAAvw==",'
        '"loss_mask":[[0,1],[1,1]],"turn_index":[[0,2]],"weight_version":[[-1,1],[3,1]]}],'
        '"forks":[{"turn":0,"reason":"the template rewrites history"}],"turns":[{"prompt_tokens":1,'
        '"completion_tokens":1,"finish_reason":"stop","seconds":0.5}],"tool_events":[],'
        '"step_rewards":[],"score":null,"stop_reason":"terminated","error":null,"timing":{},'
        '"info":{},"origin":null}'
    )
    assert trace.branches == [Branch([5, 7], [0, 1], [0.0, -0.5], [0, 0], [-1, 3])]
    assert trace.forks == [Fork(0, "the template rewrites history", "template")]
    assert trace.lineages == []
    (only,) = trace.conversations
    assert (only.messages, only.branches, only.turn_of) == (trace.messages, [0], {1: 0})
    assert trace.answers == [trace.messages[1]]


def test_lists_that_differ_in_length_are_kept() -> None:
    broken = make_trace(branches=[Branch([1, 2], [1], [math.inf, 0.0], [0], [])])
    assert vf.Trace.from_json(broken.to_json()) == broken


@pytest.mark.parametrize(
    "wrong",
    [
        {"loss_mask": [[1, 10**15]]},  # would fill the memory
        {"loss_mask": [[1, -2], [0, 4]]},
        {"turn_index": 3},
        {"token_ids": "u4:AAA"},
        {"token_ids": "x9:AAAA"},
        {"logprobs": "f4:"},
        {"begins": [0, 0]},  # there is none before
        {"begins": [-1, 1]},
        {"begins": "x"},
    ],
)
def test_arrays_that_are_none_make_a_line_that_is_no_trace(wrong: dict[str, Any]) -> None:
    raw = json.loads(
        make_trace(branches=[Branch([7, 8], [1, 0], [-1.0, 0.0], [0, 0], [2, -1])]).to_json()
    )
    raw["branches"][0] |= wrong
    with pytest.raises(ValueError, match="validation error"):
        vf.Trace.from_json(json.dumps(raw))


def test_a_logprob_of_nan_can_be_read_back() -> None:
    trace = make_trace(branches=[Branch([7], [1], [math.nan], [0], [0])])
    assert math.isnan(vf.Trace.from_json(trace.to_json()).branches[0].logprobs[0])


@pytest.mark.parametrize("line", ["", "{}", "[]", '{"environment": 3}', "x"])
def test_what_is_not_a_trace_is_a_value_error(line: str) -> None:
    with pytest.raises(ValueError, match="validation error"):
        vf.Trace.from_json(line)


def test_an_unscored_trace_has_no_reward_rather_than_zero() -> None:
    assert make_trace().reward is None
    assert make_trace(score=Score(reward=0.0, outcome=0.0)).reward == 0.0
    assert json.loads(make_trace().to_json())["score"] is None


def test_reply_is_the_models_last_message_and_never_the_prompts() -> None:
    shots = [vf.Message("user", "1+1"), vf.Message("assistant", "2"), vf.Message("user", "2+2")]
    assert make_trace(messages=shots, prompt_messages=3).reply == ""
    answered = [*shots, vf.Message("assistant", "4"), vf.Message("user", "Right.")]
    assert make_trace(messages=answered, prompt_messages=3).reply == "4"


@pytest.mark.parametrize("reason", vf.StopReason)
def test_limits_truncate_but_ends_and_errors_do_not(reason: vf.StopReason) -> None:
    ended = {vf.StopReason.TERMINATED, vf.StopReason.ERROR}
    assert make_trace(stop_reason=reason).truncated is (reason not in ended)
    assert make_trace(stop_reason=reason).ended is (reason is not vf.StopReason.ERROR)
    assert make_trace().ended is False


def test_a_failure_names_the_boundary_and_the_root_cause() -> None:
    error = ToolFailure("tool 'add' raised KeyError: 'x'")
    error.__cause__ = KeyError("x")
    failure = Failure.of(error)
    assert (failure.boundary, failure.type) == ("tool", "KeyError")
    assert "KeyError: 'x'" in failure.traceback


SAMPLED = st.lists(st.tuples(INTS, REAL, INTS), max_size=4)


@given(st.lists(st.lists(INTS, max_size=4) | SAMPLED, max_size=5))
@settings(deadline=None, max_examples=25)
def test_branch_lists_stay_parallel_and_only_sampled_tokens_carry_loss(
    pieces: list[list[Any]],
) -> None:
    branch, expected = Branch(), []
    for turn, piece in enumerate(pieces):
        if piece and isinstance(piece[0], tuple):
            ids, logprobs, versions = (list(column) for column in zip(*piece, strict=True))
            branch.add_sampled(ids, logprobs, versions, turn)
            expected += [(i, 1, p, turn, v) for i, p, v in piece]
        else:
            branch.add_context(piece, turn)
            expected += [(i, 0, 0.0, turn, -1) for i in piece]
    rows = zip(
        branch.token_ids,
        branch.loss_mask,
        branch.logprobs,
        branch.turn_index,
        branch.weight_version,
        strict=True,
    )
    assert list(rows) == expected
    assert len(branch) == len(expected)


@pytest.mark.parametrize(("logprobs", "versions"), [([0.0], [1, 1]), ([0.0, 0.0], [1])])
def test_unequal_lists_are_refused_and_leave_the_branch_untouched(
    logprobs: list[float], versions: list[int]
) -> None:
    branch = Branch()
    with pytest.raises(ValueError, match="2 sampled tokens"):
        branch.add_sampled([1, 2], logprobs, versions, 0)
    assert branch == Branch()


def make_trace(**fields: Any) -> vf.Trace:
    return vf.Trace(environment="e", task=vf.Task("t", "p"), seed=0, **fields)


def test_a_trace_is_shown_in_a_line() -> None:
    trace = vf.Trace("calculator", vf.Task("17 * 3", "Compute 17 * 3."), seed=0)
    trace.messages = [vf.Message("user", "Compute. " * 500)]
    assert repr(trace) == "<Trace of calculator, task '17 * 3': 0 turns, not scored>"
    trace.turns = [Turn(9, 1, "stop", 0.5), Turn(12, 1, "stop", 0.5)]
    trace.tool_events = [ToolEvent(0, "a", "add", "ok"), ToolEvent(1, "b", "add", "rejected")]
    trace.score = Score(0.5, 0.5)
    shown = "2 turns, reward 0.500, 1 of 2 tool calls failed"
    assert str(trace) == f"<Trace of calculator, task '17 * 3': {shown}>"
    trace.error = Failure("model", "ModelError", "no answer\n" + "x" * 500, "")
    assert "error in the model: no answer xxx" in repr(trace)
    assert len(repr(trace)) < 250
    assert vf.Trace.from_json(trace.to_json()) == trace

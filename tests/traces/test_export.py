"""Traces as OpenAI chat lines and as Parquet, and back."""

from __future__ import annotations

import asyncio
import json
import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
from openai.types.chat import ChatCompletionMessageParam, ChatCompletionToolUnionParam
from pydantic import TypeAdapter

import vf
from tests.traces.agents import delegated
from vf.runtime.errors import ConfigError
from vf.traces.export import parquet
from vf.traces.export.openai_chat import chat_lines, read_chat
from vf.traces.export.parquet import read_parquet, schema
from vf.traces.export.write import export_traces
from vf.traces.messages import Message, ToolCall
from vf.traces.trace import Branch, Failure, Fork, Origin, Score, StopReason, ToolEvent, Trace, Turn


def rich(**changes: Any) -> Trace:
    """A trace that uses every field."""
    branch = Branch()
    branch.add_context([5, 6], 0)
    branch.add_sampled([7, 8], [-0.1, -math.pi], [3, 3], 0, [[2, 7, 9], []])
    other = Branch()
    other.add_context([5, 6, 7], 1)
    other.add_sampled([9], [float("-inf")], [4], 1)
    schemas = [{"type": "function", "function": {"name": "add", "parameters": {"a": [1, None]}}}]
    trace = Trace(
        environment="calculator",
        task=vf.Task("t", [{"role": "user", "content": "2 + 3?"}], answer=[5, None], info={"x": 1}),
        seed=2**63 - 1,
        messages=[
            Message("system", "Use the tool."),
            Message("assistant", "an example"),
            Message("user", "2 + 3? ü 🙂"),
            Message("assistant", "", "think", [ToolCall("c0", "add", '{"a": 2}')]),
            Message("tool", "5", tool_call_id="c0", name="add"),
            Message("assistant", "oh", tool_calls=[ToolCall("c1", "", "{bad", "not JSON")]),
            Message("assistant", "5"),
        ],
        prompt_messages=3,
        tools=schemas,
        branches=[branch, other],
        forks=[Fork(1, "the template rewrites history")],
        turns=[Turn(2, 2, "stop", 0.5), Turn(3, 1, "length", 0.25)],
        tool_events=[ToolEvent(0, "c0", "add", "ok", seconds=0.1)],
        step_rewards=[0.0, 1.0],
        score=Score(0.9, 1.0, {"late": 0.1, "rude": None}, {"safe": True}, {"p": 0.2}, {"n": 3.0}),
        stop_reason=StopReason.MAX_TURNS,
        timing={"model": 1.5, "total": 2.0},
        info={"group": 4, "nested": {"list": [1, "ü"]}},
        origin=Origin(2, 4, 7),
    )
    return replace(trace, **changes)


TRACES = [
    rich(),
    rich(id="plain", task=vf.Task("u", "text"), branches=[], forks=[], tools=[]),
    rich(
        id="failed", score=None, stop_reason=StopReason.ERROR, error=Failure("tool", "E", "m", "")
    ),
    rich(id="no-reward", score=Score(None, None)),
]


def test_parquet_reads_back_equal(tmp_path: Path) -> None:
    file = tmp_path / "new" / "all.parquet"
    done = export_traces([(trace, "tiny") for trace in TRACES], file)
    assert (done.traces, done.forked, done.without_tokens, done.without_tools) == (4, 3, 1, 1)
    assert list(read_parquet(file)) == TRACES
    table = pyarrow.parquet.read_table(file)
    assert table.schema.equals(schema())
    first = table.to_pylist()[0]
    assert first["model"] == "tiny"
    assert (first["num_turns"], first["num_tokens"], first["num_sampled"]) == (2, 8, 3)
    assert first["branches"][0]["logprobs"] == [0.0, 0.0, -0.1, -math.pi]
    assert [each.name for each in file.parent.iterdir()] == ["all.parquet"]


def test_parquet_is_read_by_datasets(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    file = tmp_path / "all.parquet"
    export_traces(TRACES, file)
    rows = datasets.load_dataset(
        "parquet", data_files=str(file), cache_dir=str(tmp_path / "cache"), split="train"
    )
    assert rows["reward"] == [0.9, 0.9, None, None]
    assert rows[0]["branches"][1]["token_ids"] == [5, 6, 7, 9]
    assert rows[0]["messages"][3]["tool_calls"][0]["function"]["name"] == "add"


def test_row_groups_are_written_as_they_fill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet, "BATCH_ROWS", 2)
    monkeypatch.setattr(parquet, "GROUP_ROWS", 3)
    file = tmp_path / "all.parquet"
    export_traces([rich(id=str(index)) for index in range(8)], file)
    written = pyarrow.parquet.ParquetFile(file).metadata
    assert [written.row_group(i).num_rows for i in range(written.num_row_groups)] == [4, 4]
    assert [trace.id for trace in read_parquet(file)] == list("01234567")


def test_chat_lines_are_what_the_api_takes(tmp_path: Path) -> None:
    file = tmp_path / "all.jsonl"
    export_traces(TRACES, file, bare=True)
    messages = TypeAdapter(list[ChatCompletionMessageParam])
    tools = TypeAdapter(list[ChatCompletionToolUnionParam])
    known = {"role", "content", "tool_calls", "tool_call_id", "weight"}
    for text in file.read_text(encoding="utf-8").splitlines():
        line = json.loads(text)
        assert set(line) <= {"messages", "tools"}
        assert all(set(message) <= known for message in line["messages"])
        messages.validate_python(line["messages"])
        tools.validate_python(line.get("tools", []))


def test_chat_lines_say_what_is_not_to_be_learned() -> None:
    [line] = chat_lines(rich())
    assert [message.get("weight", 1) for message in line["messages"]] == [1, 0, 1, 1, 1, 0, 1]
    assert line["messages"][3]["reasoning_content"] == "think"
    assert line["messages"][4]["tool_call_id"] == "c0"
    assert line["tools"] == rich().tools
    assert line["metadata"]["forks"] == ["turn 1: the template rewrites history"]
    assert line["metadata"]["reward"] == 0.9


def test_chat_lines_are_read_back_as_conversations() -> None:
    trace = read_chat(json.loads(json.dumps(chat_lines(rich())[0])), 1)
    assert trace is not None
    assert trace.info == {"foreign": True, "unlearned": [1, 5]}
    assert [m.content for m in trace.messages] == [m.content for m in rich().messages]
    assert trace.messages[3] == rich().messages[3]
    assert (trace.tools, trace.reward, trace.task.id) == (rich().tools, 0.9, "t")
    assert trace.stop_reason is StopReason.MAX_TURNS
    [again] = chat_lines(trace)
    assert [message.get("weight", 1) for message in again["messages"]] == [1, 0, 1, 1, 1, 0, 1]


def test_each_conversation_of_an_agent_is_a_line_and_each_answer_learned_from_in_one(
    tmp_path: Path,
) -> None:
    file = tmp_path / "all.jsonl"
    done = export_traces([delegated()], file)
    assert (done.traces, done.forked, done.without_tools) == (1, 1, 0)
    main, helper, again = map(json.loads, file.read_text(encoding="utf-8").splitlines())
    weights = [
        [m.get("weight", 1) for m in each["messages"] if m["role"] == "assistant"]
        for each in (main, helper, again)
    ]
    assert weights == [[1, 1], [1, 0, 1], [0, 1]]
    assert [tool["function"]["name"] for tool in helper["tools"]] == ["search"]
    about = [each["metadata"] for each in (main, helper, again)]
    assert {each["id"] for each in about} == {"agent"}
    assert [(each["conversation"], each["of"], each["parent"]) for each in about] == [
        (0, 3, None),
        (1, 3, None),
        (2, 3, 0),
    ]
    assert ["forks" in each for each in about] == [False, True, True]
    assert about[2]["forks"] == ["turn 4: asked again after 4 messages"]


def test_conversations_are_in_parquet_and_files_from_before_are_read(tmp_path: Path) -> None:
    new, old = tmp_path / "new.parquet", tmp_path / "old.parquet"
    export_traces([delegated()], new)
    assert list(read_parquet(new)) == [delegated()]
    export_traces([rich(id="old")], old)
    table = pyarrow.parquet.read_table(old)
    forks = [[{"turn": f["turn"], "reason": f["reason"]} for f in table["forks"][0].as_py()]]
    kept = table.drop_columns(["lineages", "forks"]).append_column("forks", pyarrow.array(forks))
    pyarrow.parquet.write_table(kept, old)
    assert list(read_parquet(old)) == [rich(id="old")]


@pytest.mark.parametrize("raw", [{"messages": 3}, {"messages": ["x"]}, {"messages": [{}]}, [], 1])
def test_lines_of_another_form_are_none(raw: Any) -> None:
    assert read_chat(raw, 1) is None


def test_a_rollout_says_which_tools_it_had() -> None:
    task = vf.Task("2 + 3", "Compute 2 + 3.", answer=5, info={"operations": 1})
    trace = asyncio.run(vf.rollout(vf.make("calculator"), task, vf.ScriptedModel(["Answer: 5"])))
    assert [tool["function"]["name"] for tool in chat_lines(trace)[0]["tools"]] == ["calculate"]


def test_filters_leave_out_and_count(tmp_path: Path) -> None:
    done = export_traces(TRACES, tmp_path / "a.jsonl", min_reward=0.9)
    assert (done.traces, dict(done.left_out)) == (2, {"have no reward of 0.9 or more": 2})
    done = export_traces(TRACES, tmp_path / "b.jsonl", stop_reasons=["error", "terminated"])
    assert done.traces == 1
    assert dict(done.left_out) == {"did not stop for error or terminated": 3}


def test_what_does_not_fit_is_left_out_and_counted(tmp_path: Path) -> None:
    file = tmp_path / "all.parquet"
    broken = [rich(id="a\ud800"), rich(seed=2**80), rich(seed=2**80)]
    done = export_traces([rich(id="one"), *broken, rich(id="two")], file)
    assert done.traces == 2
    assert [trace.id for trace in read_parquet(file)] == ["one", "two"]
    assert sorted(done.left_out.values()) == [1, 2]
    assert all("do not fit the schema" in why for why in done.left_out)


@pytest.mark.parametrize(
    ("name", "bare", "said"),
    [
        ("a.csv", False, r"'.csv' is not known. Known: .jsonl \(OpenAI chat\), .parquet"),
        ("a", False, "'none' is not known"),
        ("a.parquet", True, "bare is about OpenAI chat lines"),
        ("there.jsonl", False, "exists and is never overwritten"),
    ],
)
def test_bad_outputs(tmp_path: Path, name: str, bare: bool, said: str) -> None:
    (tmp_path / "there.jsonl").write_text("mine")
    with pytest.raises(ConfigError, match=said):
        export_traces(TRACES, tmp_path / name, bare=bare)
    assert (tmp_path / "there.jsonl").read_text() == "mine"


def test_what_fails_on_the_way_leaves_nothing(tmp_path: Path) -> None:
    def broken() -> Any:
        yield rich()
        raise ConfigError("line 2 is bad")

    for name in ("a.jsonl", "a.parquet"):
        with pytest.raises(ConfigError, match="line 2"):
            export_traces(broken(), tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_other_parquet_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "other.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"a": [1]}), file)
    with pytest.raises(ConfigError, match="holds no traces that were exported here"):
        list(read_parquet(file))
    file.write_bytes(b"junk")
    with pytest.raises(ConfigError, match="cannot read"):
        list(read_parquet(file))


def test_without_pyarrow_the_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ConfigError, match=r"pip install 'vf-rl\[data\]'"):
        export_traces(TRACES, tmp_path / "a.parquet")
    assert list(tmp_path.iterdir()) == []

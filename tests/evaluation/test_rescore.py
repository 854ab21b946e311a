"""Scoring saved traces again: in order, lazily, and failed rollouts left alone."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import vf
from tests.evaluation.commands import call
from tests.rubrics.traces import make_trace
from vf.evaluation.rescore import rescore
from vf.traces.trace import Failure, Origin
from vf.trainer.commands.main import main


def length(trace: vf.Trace) -> float:
    return len(trace.reply) / 10


def rescored(
    traces: Iterable[vf.Trace] | Path, rubric: vf.Rubric | vf.WeightedSum, **kwargs: Any
) -> list[vf.Trace]:
    async def run() -> list[vf.Trace]:
        return [trace async for trace in rescore(traces, rubric, **kwargs)]

    return asyncio.run(run())


def failed() -> vf.Trace:
    trace = make_trace("abc")
    trace.error = Failure("model", "ModelError", "gone", "")
    return trace


def test_a_file_is_scored_again_in_its_order(tmp_path: Path) -> None:
    path = tmp_path / "traces.jsonl"
    with vf.TraceStore(path) as store:
        for n in (3, 1, 2):
            store.append(make_trace("a" * n, outcome=1.0))
    found = rescored(path, vf.Rubric(length, metrics=[length]))
    assert [trace.reward for trace in found] == [0.3, 0.1, 0.2]
    assert [trace.reward for trace in vf.TraceStore(path)] == [1.0, 1.0, 1.0]  # as it was


def test_the_order_holds_whoever_is_done_first() -> None:
    async def later_is_sooner(trace: vf.Trace) -> float:
        await asyncio.sleep(0.01 * (5 - len(trace.reply)))
        return length(trace)

    traces = [make_trace("a" * n) for n in range(1, 5)]
    found = rescored(traces, vf.Rubric(later_is_sooner), max_concurrent=3)
    assert [trace.reward for trace in found] == [0.1, 0.2, 0.3, 0.4]


def test_no_more_is_read_than_is_in_hand() -> None:
    read = 0

    def many() -> Iterator[vf.Trace]:
        nonlocal read
        for _ in range(100):
            read += 1
            yield make_trace("abc")

    async def first() -> vf.Trace:
        async for trace in rescore(many(), vf.Rubric(length), max_concurrent=4):
            return trace
        raise AssertionError

    assert asyncio.run(first()).reward == 0.3
    assert read == 4


def test_a_failed_rollout_is_passed_on_and_never_scored() -> None:
    [found] = rescored([failed()], vf.Rubric(length))
    assert found.reward is None
    assert found.error is not None
    assert found.error.boundary == "model"


def test_a_rollout_whose_scoring_failed_is_scored_and_one_that_failed_is_not(
    tmp_path: Path,
) -> None:
    class Unlucky(vf.Environment):
        max_turns = 1
        timeout = 1.0

        def step(self, reply: vf.Message) -> vf.Step:
            if reply.content == "breaks":
                raise KeyError(reply.content)
            return vf.Step(terminated=True)

    async def hangs(trace: vf.Trace) -> float:
        await asyncio.Event().wait()
        return 1.0

    path = tmp_path / "traces.jsonl"
    with vf.TraceStore(path) as store:
        for outcome in (lambda trace: 1 / 0, hangs):
            environment = Unlucky()
            environment.rubric = vf.Rubric(outcome)
            for said in ("abc", "breaks"):
                rollout = vf.rollout(environment, vf.Task("t", "p"), vf.ScriptedModel([said]))
                store.append(asyncio.run(rollout))
    before = list(vf.TraceStore(path))
    assert [trace.error is None for trace in before] == [False] * 4
    assert [str(trace.stop_reason) for trace in before] == ["terminated", "error"] * 2
    found = rescored(path, vf.Rubric(length))
    assert [trace.reward for trace in found] == [0.3, None] * 2
    assert [trace.error is None for trace in found] == [True, False] * 2
    assert [str(trace.stop_reason) for trace in found] == ["terminated", "error"] * 2


def test_a_trace_that_cannot_be_scored_says_why_and_keeps_no_old_score() -> None:
    def picky(trace: vf.Trace) -> float:
        return 1 / (len(trace.reply) - 3)

    bad, good = rescored([make_trace("abc", outcome=1.0), make_trace("abcd")], vf.Rubric(picky))
    assert bad.score is None
    assert bad.error is not None
    assert bad.error.boundary == "rubric"
    assert "'picky' raised ZeroDivisionError" in bad.error.message
    assert good.reward == 1.0


def test_scoring_that_takes_too_long_is_an_error() -> None:
    async def hangs(trace: vf.Trace) -> float:
        await asyncio.Event().wait()
        return 1.0

    [found] = rescored([make_trace("x")], vf.Rubric(hangs), timeout=0.05)
    assert found.error is not None
    assert "longer than 0.05 s" in found.error.message


def test_groups_are_found_wherever_their_members_stand() -> None:
    def best(traces: Sequence[vf.Trace]) -> list[float]:
        most = max(len(trace.reply) for trace in traces)
        return [float(len(trace.reply) == most) for trace in traces]

    def trace(text: str, task: str, step: int) -> vf.Trace:
        found = make_trace(text, task=task)
        found.origin = Origin(step, group=step, rollout=0)
        return found

    traces = [
        trace("a", "x", 1),
        trace("aaaa", "y", 1),
        trace("aa", "x", 1),
        trace("aaa", "x", 2),
        trace("a", "x", 2),
        failed(),
        trace("a", "y", 1),
    ]
    rubric = vf.Rubric(lambda trace: 1.0, group_rewards=[vf.GroupReward(best, 0.5)])
    rewards = [trace.reward for trace in rescored(traces, rubric)]
    assert rewards == [0.5, 1.0, 1.0, 1.0, 0.5, None, 0.5]


@pytest.mark.parametrize("settings", [{"max_concurrent": 0}, {"timeout": 0}])
def test_bad_settings_and_missing_files_are_config_errors(settings: Any, tmp_path: Path) -> None:
    with pytest.raises(vf.ConfigError, match="must be positive"):
        rescored([], vf.Rubric(length), **settings)
    with pytest.raises(vf.ConfigError, match="no traces file"):
        rescored(tmp_path / "none.jsonl", vf.Rubric(length))


def exported(traces: Path) -> bytes:
    """Return traces as OpenAI chat lines."""
    file = traces.parents[1] / "chat.jsonl"
    assert main(["view", str(traces), "--export", str(file)]) == 0
    return file.read_bytes()


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("chat.jsonl", exported, "chat.jsonl holds OpenAI chat lines, not traces. They lack what"),
        ("one.jsonl", lambda t: exported(t).rstrip(), "one.jsonl holds OpenAI chat lines"),
        ("empty.jsonl", lambda t: b"", "empty.jsonl is empty: there is nothing to score"),
        ("torn.jsonl", lambda t: t.read_bytes()[:99], "line 1: not JSON, and the file ends in the"),
        ("tasks.jsonl", lambda t: b'{"prompt": "p"}\n', "tasks.jsonl does not hold traces: line 1"),
        ("gone.jsonl", None, "there is no "),
    ],
)
def test_what_holds_no_traces_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, content: Any, words: str
) -> None:
    traces = tmp_path / "traces" / "step-000001.jsonl"
    with vf.TraceStore(traces) as store:
        store.append(make_trace("abc", outcome=1.0))
    if content is not None:
        (tmp_path / name).write_bytes(content(traces))
    rubric = ["--rubric", "reverse-text"]
    capsys.readouterr()
    code, out, err = call(capsys, "--rescore", str(tmp_path / name), *rubric)
    assert (code, out) == (2, "")
    assert words in err
    code, out, _ = call(capsys, "--rescore", str(tmp_path), *rubric)  # as a run's folder
    assert (code, out.splitlines()[0]) == (0, "1 traces; failed rollouts left unchanged: 0")


RUBRIC = "rubric = vf.Rubric(lambda trace: 0.25)\n"


@pytest.mark.parametrize(
    ("text", "name", "said"),
    [
        (RUBRIC, "my_rubric.py", None),
        (RUBRIC, "./my_rubric.py:rubric", None),
        (RUBRIC + "same = rubric\n", "my_rubric.py", None),
        (f"def strict():\n    {RUBRIC}    return rubric\n", "my_rubric.py:strict", None),
        (
            f"def strict():\n    {RUBRIC}    return rubric\n",
            "my_rubric.py",
            "there is no rubric in my_rubric.py. Write `rubric = vf.Rubric(...)` in it, or name a "
            "function that returns one: my_rubric.py:strict",
        ),
        (
            RUBRIC + "strict = vf.Rubric(lambda trace: 0.0)\n",
            "my_rubric.py",
            "there are 2 rubrics in my_rubric.py; name one: my_rubric.py:rubric, "
            "my_rubric.py:strict",
        ),
        (RUBRIC, "my_rubric.py:rubrik", "no 'rubrik' in my_rubric.py. Did you mean 'rubric'?"),
        (
            f"{RUBRIC}class Mine(vf.Environment):\n    rubric = rubric\n"
            "    def tasks(self, split):\n        yield vf.Task('1', '')\n",
            "my_rubric.py",
            None,
        ),
    ],
)
def test_a_file_that_holds_a_rubric(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    text: str,
    name: str,
    said: str | None,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.delitem(sys.modules, "my_rubric", raising=False)
    Path("my_rubric.py").write_text(f"import vf\n{text}")
    with vf.TraceStore(Path("traces.jsonl")) as store:
        store.append(make_trace("abc", outcome=1.0))
    code, out, err = call(capsys, "--rescore", "traces.jsonl", "--rubric", name)
    sys.modules.pop("my_rubric", None)
    if said is None:
        assert code == 0, err
        assert "→ 0.2500" in out
    else:
        assert (code, out) == (2, "")
        assert said in err

"""Tools that run in a sandbox: what the model sees, and what ends a rollout instead."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

import vf
from vf.runtime.errors import SandboxError
from vf.sandbox.contract import ExecResult, OpenSandbox, Sandbox
from vf.sandbox.hosting.source import sandbox_source
from vf.sandbox.scripted_sandbox import ScriptedSandbox
from vf.tools.sandbox_tools import clip, describe

TASK = vf.Task("t", "Go.")


class Bench(vf.Environment):
    """All the tools, on one source."""

    def __init__(self, open_sandbox: OpenSandbox, **settings: Any) -> None:
        source = sandbox_source(open_sandbox)
        self.tools = [
            vf.PythonTool(source, **settings),
            vf.BashTool(source, **settings),
            vf.FileTools(source),
        ]


def giving(sandbox: Sandbox) -> OpenSandbox:
    def open_it() -> AbstractAsyncContextManager[Sandbox]:
        return sandbox

    return open_it


def play(env: vf.Environment, *script: Any) -> vf.Trace:
    return asyncio.run(vf.rollout(env, TASK, vf.ScriptedModel([*script, "Done."])))


def heard(trace: vf.Trace) -> list[str]:
    """What the tools said."""
    assert trace.error is None
    return [message.content for message in trace.messages if message.role == "tool"]


def at_once(*calls: tuple[str, str]) -> vf.Message:
    return vf.Message(
        "assistant",
        tool_calls=[vf.ToolCall(f"c{i}", name, text) for i, (name, text) in enumerate(calls)],
    )


def test_python_and_bash_remember_and_share_files(open_local: OpenSandbox) -> None:
    trace = play(
        Bench(open_local),
        {"python": {"code": "x = 41"}},
        {"bash": {"command": "mkdir new && cd new && export WHO=me"}},
        {"python": {"code": "open('new/a.txt', 'w').write('hi')\nx + 1"}},
        {"bash": {"command": 'cat a.txt; echo " $WHO"'}},
        {"read_file": {"path": "new/a.txt"}},
        {"list_files": {}},
    )
    assert heard(trace) == ["(no output)", "(no output)", "42", "hi me", "hi", "new/"]


def test_what_goes_wrong_is_reported(open_local: OpenSandbox) -> None:
    trace = play(
        Bench(open_local, timeout=4.0),
        {"python": {"code": "1 / 0"}},
        {"bash": {"command": "echo out; echo err >&2; (exit 3)"}},
        {"python": {"code": "print('begun', flush=True)\nimport time; time.sleep(60)"}},
        {"python": {"code": "'still here'"}},
    )
    division, failed, hung, after = heard(trace)
    assert "ZeroDivisionError" in division
    assert division.endswith("[exit code 1]")
    assert failed == "out\nstderr:\nerr\n[exit code 3]"
    assert hung.startswith("begun")
    assert "[timed out after" in hung
    assert after == "'still here'"
    assert [event.kind for event in trace.tool_events] == ["ok"] * 4


def test_files_are_written_edited_read_and_listed(open_local: OpenSandbox) -> None:
    trace = play(
        Bench(open_local),
        {"write_file": {"path": "d/a b.txt", "content": "one\ntwo\nthree\n"}},
        {"edit_file": {"path": "d/a b.txt", "old": "two", "new": "zwei"}},
        {"read_file": {"path": "d/a b.txt"}},
        {"read_file": {"path": "d/a b.txt", "first_line": 2, "lines": 1}},
        {"list_files": {"path": "d"}},
        {"bash": {"command": "mkdir leer"}},
        {"list_files": {"path": "leer"}},
    )
    assert heard(trace) == [
        "Wrote d/a b.txt: 3 lines.",
        "Edited d/a b.txt.",
        "one\nzwei\nthree\n",
        "zwei\n[lines 2 to 2 of 3]",
        "a b.txt",
        "(no output)",
        "(empty)",
    ]


WRONG_CALLS: list[tuple[dict[str, Any], str]] = [
    ({"read_file": {"path": "none"}}, "there is no file none"),
    ({"read_file": {"path": "d"}}, "d is a directory"),
    ({"read_file": {"path": "d/a/x"}}, "d/a/x"),
    ({"read_file": {"path": " "}}, "path must not be empty"),
    ({"read_file": {"path": "d/a", "first_line": 0}}, "must be at least 1"),
    ({"read_file": {"path": "d/a", "first_line": 9}}, "d/a has only 2 lines"),
    ({"list_files": {"path": "none"}}, "No such file"),
    ({"list_files": {"path": "x" * 5000}}, "path is longer than 4096 bytes"),
    ({"write_file": {"path": "d", "content": "x"}}, "d is a directory"),
    ({"write_file": {"path": "big", "content": "x" * 2**21}}, "at most 1048576"),
    ({"edit_file": {"path": "d/a", "old": "", "new": "x"}}, "use write_file"),
    ({"edit_file": {"path": "d/a", "old": "q", "new": "x"}}, "in d/a 0 times"),
    ({"edit_file": {"path": "d/a", "old": "l", "new": "x"}}, "in d/a 2 times"),
    ({"edit_file": {"path": "d/b", "old": "l", "new": "x"}}, "d/b is not UTF-8 text"),
    ({"edit_file": {"path": "none", "old": "l", "new": "x"}}, "there is no file none"),
]


def test_a_wrong_call_of_a_file_tool_is_reported(open_local: OpenSandbox) -> None:
    prepare = {"bash": {"command": "mkdir d; printf 'l 1\\nl 2\\n' > d/a; printf '\\377' > d/b"}}
    bench = Bench(open_local)
    bench.max_turns = len(WRONG_CALLS) + 2
    trace = play(bench, prepare, *(call for call, _ in WRONG_CALLS))
    for (call, said), answer in zip(WRONG_CALLS, heard(trace)[1:], strict=True):
        assert said in answer, call
    assert [event.kind for event in trace.tool_events[1:]] == ["rejected"] * len(WRONG_CALLS)


class Timed(Bench):
    """A tool whose timeout is the model's."""

    @vf.tool
    async def run(self, timeout: float) -> str:
        """Run a program.

        Args:
            timeout: Seconds.
        """
        done = await self.sandbox.use(lambda box: box.exec("echo ran", timeout=timeout))
        return done.stdout

    @vf.tool
    async def count(self, timeout: float) -> str:
        """Run Python.

        Args:
            timeout: Seconds.
        """
        done = await self.sandbox.use(lambda box: box.python("print('ran')", timeout=timeout))
        return done.stdout


def test_a_timeout_of_the_models_own_is_never_an_error_of_the_rollout(
    open_local: OpenSandbox,
) -> None:
    timeouts = ["0", "-1", "1e400", "NaN", "Infinity", "true", '"5"', "1e308"]
    calls = [(name, f'{{"timeout": {text}}}') for name in ("run", "count") for text in timeouts]
    for call, answer in zip(calls, heard(play(Timed(open_local), at_once(*calls))), strict=True):
        assert answer.startswith("ran\n" if "1e308" in call[1] else "Error: "), call


def test_more_code_than_a_sandbox_takes_is_reported() -> None:
    env = Bench(giving(ScriptedSandbox(python=[ValueError("python takes no such amount")])))
    assert heard(play(env, {"python": {"code": "1"}})) == ["Error: python takes no such amount"]


def test_a_listing_too_long_to_fetch_is_cut_and_says_so() -> None:
    names = "".join(f"{number:0250}\n" for number in range(5000))
    cut = ExecResult(0, f"{names[: 2**19]}\n[... 9 bytes are missing ...]\nz\n", truncated=True)
    env = Bench(giving(ScriptedSandbox(exec=lambda command: cut)))
    (said,) = heard(play(env, {"list_files": {}}))
    assert said.endswith("[too many more to count]")
    assert len(said) < 9000


def test_a_long_listing_and_a_long_file_are_cut(open_local: OpenSandbox) -> None:
    trace = play(
        Bench(open_local),
        {"bash": {"command": "mkdir d; cd d; touch $(seq 250); seq 100000 > ../long"}},
        {"list_files": {"path": "d"}},
        {"read_file": {"path": "long", "lines": 100000}},
    )
    _, listing, text = heard(trace)
    assert listing.endswith("[50 more]")
    assert "characters left out" in text
    assert len(text) < 8200


def test_the_calls_of_a_turn_run_in_their_order(open_local: OpenSandbox) -> None:
    calls = [("bash", f'{{"command": "sleep 0.0{9 - i}; echo {i} >> log"}}') for i in range(8)]
    trace = play(Bench(open_local), at_once(*calls), {"bash": {"command": "paste -sd, log"}})
    assert heard(trace)[-1] == "0,1,2,3,4,5,6,7"


@pytest.mark.slow
def test_one_turn_cannot_take_more_than_its_share_of_time(open_local: OpenSandbox) -> None:
    env = Bench(open_local)
    env.tool_timeout = 3.0
    trace = play(env, at_once(*[("bash", '{"command": "sleep 60"}')] * 4))
    said = heard(trace)
    assert "[timed out after" in said[0]
    assert said[-1].startswith("Not run: the calls of this turn have used up their time")


def test_the_sandbox_is_opened_at_the_first_call_once_and_closed() -> None:
    sandbox = ScriptedSandbox(python=["1\n", "2\n"])
    opened = 0

    def open_it() -> AbstractAsyncContextManager[Sandbox]:
        nonlocal opened
        opened += 1
        return sandbox

    assert play(Bench(open_it)).error is None
    assert opened == 0
    trace = play(Bench(open_it), {"python": {"code": "1"}}, {"python": {"code": "2"}})
    assert heard(trace) == ["1", "2"]
    assert opened == 1
    assert sandbox.closed


def test_tools_with_different_sources_have_different_sandboxes(open_local: OpenSandbox) -> None:
    env = vf.Environment()
    env.tools = [vf.PythonTool(lambda: open_local()), vf.BashTool(lambda: open_local())]
    trace = play(
        env,
        {"python": {"code": "open('a', 'w').close()"}},
        {"bash": {"command": "ls"}},
    )
    assert heard(trace) == ["(no output)", "(no output)"]


@pytest.mark.parametrize(
    "call",
    [
        {"python": {"code": "1"}},
        {"bash": {"command": "ls"}},
        {"read_file": {"path": "a"}},
        {"write_file": {"path": "a", "content": "x"}},
        {"list_files": {}},
    ],
    ids=lambda call: str(next(iter(call))),
)
def test_a_lost_sandbox_ends_the_rollout_without_a_reward(call: dict[str, Any]) -> None:
    sandbox = ScriptedSandbox()
    sandbox.lose("it fell down")
    env = Bench(giving(sandbox))
    env.rubric = vf.Rubric(outcome=lambda trace: 1.0)
    trace = play(env, call)
    assert trace.error is not None
    assert trace.error.boundary == "sandbox"
    assert "it fell down" in trace.error.message
    assert trace.reward is None
    assert sandbox.closed


def test_a_sandbox_that_cannot_be_had_is_a_failure_too() -> None:
    def none() -> AbstractAsyncContextManager[Sandbox]:
        raise SandboxError("there is none")

    trace = play(Bench(none), {"python": {"code": "1"}})
    assert trace.error is not None
    assert trace.error.boundary == "sandbox"
    assert trace.reward is None


def test_a_tool_is_described_to_the_model_with_its_arguments() -> None:
    env = Bench(giving(ScriptedSandbox())).episode(0)
    schemas = {s["function"]["name"]: s["function"] for s in env.toolbox.schemas()}
    assert set(schemas) == {
        "python",
        "bash",
        *("list_files", "read_file", "write_file", "edit_file"),
    }
    assert schemas["python"]["parameters"]["required"] == ["code"]
    assert "Variables stay" in schemas["python"]["description"]


@pytest.mark.parametrize(
    ("result", "text"),
    [
        (ExecResult(0), "(no output)"),
        (ExecResult(0, "a\n"), "a"),
        (ExecResult(0, "a\n", "b\n"), "a\nstderr:\nb"),
        (ExecResult(1, "", "b\n"), "b\n[exit code 1]"),
        (
            ExecResult(137, "a", oom_killed=True),
            "a\n[out of memory: killed at the sandbox's limit]",
        ),
        (ExecResult(137, "a", timed_out=True, duration=2.0), "a\n[timed out after 2.0 s]"),
        (
            ExecResult(0, "a", truncated=True),
            "a\n[the output was too long: a part of it is missing]",
        ),
    ],
)
def test_how_a_result_reads(result: ExecResult, text: str) -> None:
    assert describe(result, 100) == text


@pytest.mark.parametrize("most", range(20, 80))
def test_clipping_does_not_cut_through_what_says_that_output_is_missing(most: int) -> None:
    note = "\n[... 12345 bytes are missing ...]\n"
    text, cut = clip("a" * 20 + note + "b" * 30, most)
    assert note in text or ("missing" not in text and "bytes" not in text and "..." not in text)
    assert cut is (len(text) != 50 + len(note) or "left out" in text)


def test_clipping_keeps_head_and_tail() -> None:
    assert clip("abcdefghij", 10) == ("abcdefghij", False)
    assert clip("abcdefghij", 5) == ("abc\n[5 characters left out]\nij", True)


@pytest.mark.parametrize("limit", [0, -1, float("nan"), True, "3"])
@pytest.mark.parametrize("tool", [vf.PythonTool, vf.BashTool])
def test_limits_must_be_positive(tool: Callable[..., Any], limit: Any) -> None:
    with pytest.raises(vf.ConfigError, match="timeout must be a positive number"):
        tool(ScriptedSandbox, timeout=limit)
    with pytest.raises(vf.ConfigError, match="max_output must be a positive number"):
        tool(ScriptedSandbox, max_output=limit)

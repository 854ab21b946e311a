"""The scripted sandbox answers from its script, and says so where the script has nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest

import vf
from vf.runtime.errors import SandboxError
from vf.sandbox.contract import ExecResult
from vf.sandbox.scripted_sandbox import SandboxCall

T = TypeVar("T")


def wait(call: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(call)


def test_a_list_answers_in_its_order() -> None:
    late = ExecResult(137, "part", timed_out=True)
    box = vf.ScriptedSandbox(python=["1\n", late], bash=iter(["b"]))
    assert wait(box.python("a")) == ExecResult(0, "1\n")
    assert wait(box.bash("x")).stdout == "b"
    assert wait(box.python("b")) is late
    with pytest.raises(LookupError, match=r"no answer to call 3 of python: '1 \+ 1'"):
        wait(box.python("1 + 1"))
    assert box.alive


def test_a_mapping_answers_what_is_asked() -> None:
    box = vf.ScriptedSandbox(exec={"ls -a": "f\n", "echo 'a b'": "a b\n"})
    assert wait(box.exec("ls -a")).stdout == "f\n"
    assert wait(box.exec(["ls", "-a"])).stdout == "f\n"
    assert wait(box.exec(["echo", "a b"])).stdout == "a b\n"
    with pytest.raises(LookupError, match=r"call 4 of exec: 'ls'.*ScriptedSandbox\(exec="):
        wait(box.exec("ls"))


def test_a_function_answers() -> None:
    box = vf.ScriptedSandbox(bash=lambda command: command.upper())
    assert wait(box.bash("echo")).stdout == "ECHO"


def test_what_is_not_scripted_is_a_clear_error() -> None:
    box = vf.ScriptedSandbox()
    for call in (box.exec, box.python, box.bash):
        with pytest.raises(LookupError, match="the scripted sandbox has no answer"):
            wait(call("x"))


def test_it_keeps_every_call() -> None:
    box = vf.ScriptedSandbox(exec=["", ""], files={"a": "1"})
    wait(box.exec(["cat", "a b"], input="i", timeout=3, cwd="/", env={"A": "b"}))
    wait(box.write_file("b", "2"))
    wait(box.read_file("a", max_bytes=9))
    options = {"input": "i", "cwd": "/", "env": {"A": "b"}, "timeout": 3, "user": None}
    assert box.calls == [
        SandboxCall("exec", "cat 'a b'", {**options, "max_output": 100_000}),
        SandboxCall("write_file", "b", {"content": "2"}),
        SandboxCall("read_file", "a", {"max_bytes": 9}),
    ]


def test_files_behave_like_files() -> None:
    async def run() -> None:
        async with vf.ScriptedSandbox(files={"d/f": "ä", "/etc/x": b"\0"}) as box:
            assert await box.read_file("/workspace/d/f") == "ä".encode()
            assert await box.read_file("d/../d/./f") == "ä".encode()
            assert await box.read_file("../etc/x") == b"\0"
            await box.write_file("new/g", "text")
            assert box.files["/workspace/new/g"] == b"text"
            for path in ("nope", "d/f/x"):
                with pytest.raises(FileNotFoundError) as error:
                    await box.read_file(path)
                assert error.value.filename == path
            for path in ("d", ".", "/", "", "/workspace"):
                with pytest.raises(IsADirectoryError):
                    await box.read_file(path)
                with pytest.raises(IsADirectoryError):
                    await box.write_file(path, "x")
            with pytest.raises(NotADirectoryError):
                await box.write_file("d/f/x", "x")
            with pytest.raises(ValueError, match="more than max_bytes = 1"):
                await box.read_file("d/f", max_bytes=1)

    asyncio.run(run())


def test_an_exception_is_raised_and_a_sandbox_error_lasts() -> None:
    box = vf.ScriptedSandbox(python=[ValueError("odd"), "fine", SandboxError("gone"), "no"])
    with pytest.raises(ValueError, match="odd"):
        wait(box.python("1"))
    assert wait(box.python("2")).stdout == "fine"
    with pytest.raises(SandboxError, match="gone"):
        wait(box.python("3"))
    assert not box.alive
    with pytest.raises(SandboxError, match="is lost: gone"):
        wait(box.read_file("f"))


def test_it_can_be_lost_after_some_calls_or_at_any_time() -> None:
    box = vf.ScriptedSandbox(bash=["1", "2", "3"], lost_after=2)
    assert [wait(box.bash("a")).stdout, wait(box.bash("b")).stdout] == ["1", "2"]
    with pytest.raises(SandboxError, match="lost: it answers 2 calls"):
        wait(box.bash("c"))
    other = vf.ScriptedSandbox(files={"f": ""})
    assert wait(other.read_file("f")) == b""
    other.lose("the engine burned down")
    with pytest.raises(SandboxError, match="the engine burned down"):
        wait(other.read_file("f"))


def test_a_closed_one_answers_nothing() -> None:
    async def run() -> vf.ScriptedSandbox:
        async with vf.ScriptedSandbox(bash=["1"]) as box:
            assert box.alive
        with pytest.raises(SandboxError, match="closed"):
            await box.bash("x")
        await box.close()
        return box

    box = asyncio.run(run())
    assert (box.closed, box.alive) == (True, False)


def test_a_timeout_of_zero_is_an_error_as_in_the_real_one() -> None:
    with pytest.raises(ValueError, match="timeout"):
        wait(vf.ScriptedSandbox(python=["1"]).python("x", timeout=0))


def test_it_keeps_the_contract() -> None:
    box: vf.Sandbox = vf.ScriptedSandbox(python={"x": "y"})
    assert wait(box.python("x")).stdout == "y"

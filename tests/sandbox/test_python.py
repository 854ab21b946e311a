"""The persistent Python: its state, and what code can do to it."""

from __future__ import annotations

import asyncio
from itertools import count
from pathlib import Path

import pytest

from tests.sandbox.local_box import boxes, inside, mark, running
from tests.waiting import until
from vf.sandbox.contract import ExecResult
from vf.sandbox.local import UnsafeLocalSandbox

LOST = "its state is lost"
MARK = mark(50)


def run(*codes: str, timeout: float = 30.0) -> list[ExecResult]:
    """Run one piece of code after the other in one interpreter."""

    async def body(box: UnsafeLocalSandbox) -> list[ExecResult]:
        return [await box.python(code, timeout=timeout) for code in codes]

    return inside(body)


def test_an_exception_is_a_result_and_shows_no_frame_of_the_interpreter() -> None:
    cases = [
        ("x = 1\n1/0", "1/0"),
        ("def", "SyntaxError"),
        ("'\0'", "null bytes"),
        ("'\ud800'", "surrogates"),
        ("input()", "EOFError"),
        ("class E(Exception):\n    def __str__(self): 1/0\nraise E", "E"),
        ("raise BaseException('b')", "BaseException: b"),
        ("import asyncio\nraise asyncio.CancelledError", "CancelledError"),
    ]
    *results, after = run(*(code for code, _ in cases), "x")
    for (code, says), result in zip(cases, results, strict=True):
        assert result.returncode == 1, code
        assert says in result.stderr, code
        assert 'File "<string>"' not in result.stderr, code
        assert "ast.py" not in result.stderr, code
    assert after.stdout == "1\n"


def test_sys_exit_ends_the_call_not_the_interpreter() -> None:
    results = run("import sys; a = 1; sys.exit(3)", "sys.exit()", "sys.exit('bye')", "a")
    assert [r.returncode for r in results] == [3, 0, 1, 0]
    assert results[2].stderr == "bye\n"
    assert results[3].stdout == "1\n"


HANGING = [
    "while True: pass",
    "import time; print('partial'); time.sleep(10**6)",
    "import subprocess; subprocess.run(['sleep', 'MARK'])",
    "import subprocess; subprocess.Popen(['setsid', 'sleep', 'MARK']).wait()",
    "import threading; threading.Event().wait()",
    "import os; os.read(os.pipe()[0], 1)",
]


async def test_on_timeout_the_code_stops_and_the_state_is_kept() -> None:
    async def stops(box: UnsafeLocalSandbox, number: int, code: str) -> None:
        result = await box.python(code.replace("MARK", mark(number)), timeout=0.5)
        assert (result.timed_out, result.returncode) == (True, 130), code
        assert "KeyboardInterrupt" in result.stderr, code
        assert "in interrupted" not in result.stderr, code
        assert LOST not in result.stderr, code
        assert ("partial" in code) == (result.stdout == "partial\n"), code
        assert running(mark(number)) == [], code
        assert (await box.python("kept")).stdout == "7\n", code

    async with boxes(len(HANGING)) as opened:
        await asyncio.gather(*(box.python("kept = 7") for box in opened))
        cases = zip(opened, count(50), HANGING, strict=False)
        await asyncio.gather(*(stops(*case) for case in cases))


@pytest.mark.slow
@pytest.mark.parametrize(
    "code",
    [
        "import time\ntry: time.sleep(10**6)\nexcept KeyboardInterrupt: time.sleep(10**6)",
        "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)",
        "import os; os.close(101); f = open('x', 'w'); import time; time.sleep(10**6)",
    ],
)
def test_code_that_does_not_stop_is_killed_and_the_state_is_reported_as_lost(code: str) -> None:
    async def body(box: UnsafeLocalSandbox) -> None:
        await box.python("1")
        result = await box.python(f"print('partial')\n{code}", timeout=0.5)
        assert (result.timed_out, result.returncode) == (True, 137)
        assert (result.stdout, LOST in result.stderr) == ("partial\n", True)
        assert (await box.python("'new'")).stdout == "'new'\n"
        assert (await box.python("1")).stdout == "1\n"

    inside(body)


def test_an_interpreter_that_ends_is_reported_as_lost_and_replaced() -> None:
    ends = {
        "import os, signal; os.kill(os.getpid(), signal.SIGKILL)": 137,
        "import ctypes; ctypes.string_at(0)": 139,
        "import os; os.execvp('true', ['true'])": 0,
        "import os; os.closerange(3, 200)": 1,
        "import os; os.abort()": 134,
    }
    results = run(*(text for end in ends for text in (f"x = 1; print('out')\n{end}", "x")))
    for end, result, after in zip(ends, results[::2], results[1::2], strict=True):
        assert (result.returncode, result.stdout) == (ends[end], "out\n"), end
        assert LOST in result.stderr, end
        assert "NameError" in after.stderr, end


def test_one_that_ends_between_calls_is_reported_as_lost_by_the_next() -> None:
    async def body(box: UnsafeLocalSandbox) -> None:
        code = """
import os, threading
def end():
    while not os.path.exists("go"): pass
    os._exit(1)
x = 5
threading.Thread(target=end).start()
os.getppid()
"""
        keeper = int((await box.python(code)).stdout)
        await box.write_file("go", "")
        await until(lambda: not Path(f"/proc/{keeper}").exists())
        result = await box.python("print('x' in dir())")
        assert (result.stdout, LOST in result.stderr) == ("False\n", True)
        assert LOST not in (await box.python("1")).stderr

    inside(body)


def test_calls_that_meet_a_dying_interpreter_lose_no_sandbox() -> None:
    async def body(box: UnsafeLocalSandbox) -> None:
        for pause in (0, 0, 0.001, 0.002, 0.004, 0.008):
            code = "import os, threading, time\n"
            code += "ending = threading.Thread(target=lambda: (time.sleep(0.005), os._exit(1)))\n"
            code += "ending.start()"
            await box.python(code)
            await asyncio.sleep(pause)
            await box.python("1")
        await box.python("ending.join()")  # what dies is dead now
        assert (await box.python("'fine'")).stdout == "'fine'\n"

    inside(body)


def test_a_fork_answers_once() -> None:
    fork = "import os\npid = os.fork()\nif pid == 0: raise SystemExit(4)\n"
    wait = "os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])"
    first, second, third = run(fork + wait, fork, wait)
    assert first.stdout == "4\n"
    assert second.returncode == 0  # the parent's, while the child may still run
    assert third.stdout == "4\n"


def test_code_that_writes_answers_fools_only_itself() -> None:
    results = run(
        "import os; os.write(101, b'1 0\\n2 0\\n3 0\\n4 0\\nnonsense\\n5 x\\n\\xff\\n')",
        *("1/0" for _ in range(4)),
        "6",
    )
    assert results[-1].stdout == "6\n"
    forged = "import os; os.write(101, b'x' * 60000 + b'\\n')"
    assert run(forged, "'fine'")[1].stdout == "'fine'\n"


@pytest.mark.parametrize(
    "code",
    [
        "import sys; sys.stdout.close()",
        "import sys; sys.stdout = sys.stderr = None; 1/0",
        "import os; os.close(1); os.close(2)",
        "import sys; sys.displayhook = None; 1",
        "import builtins; del builtins.print, builtins.len, builtins.isinstance, builtins.compile",
        "import sys; sys.modules.clear()",
        "import os; os.chdir('/'); os.environ.clear()",
        "import gc; [o.clear() for o in gc.get_objects() if type(o) is dict and 'Console' in o]",
    ],
)
def test_code_that_breaks_its_interpreter_breaks_nothing_else(code: str) -> None:
    async def body(box: UnsafeLocalSandbox) -> None:
        await box.python(code, timeout=2)
        await box.python("1", timeout=2)
        assert (await box.exec("echo fine")).stdout == "fine\n"
        assert (await box.bash("echo fine")).stdout == "fine\n"

    inside(body)


def test_threads_that_keep_printing_block_nobody() -> None:
    async def body(box: UnsafeLocalSandbox) -> None:
        code = "import threading\ndef flood():\n    while True: print('x' * 1000)\n"
        code += "threading.Thread(target=flood, daemon=True).start()"
        await box.python(code)
        result = await box.python("40 + 2", timeout=20)
        assert (result.returncode, result.timed_out) == (0, False)
        assert len(result.stdout) < 110_000

    inside(body)


def test_what_is_printed_between_calls_comes_with_the_next() -> None:
    async def body(box: UnsafeLocalSandbox) -> None:
        code = """
import os, threading
def later():
    while not os.path.exists("go"): pass
    print("late")
    os.rename("go", "said")
threading.Thread(target=later).start()
print("now")
"""
        assert (await box.python(code)).stdout == "now\n"
        assert (await box.exec("touch go; until [ -e said ]; do sleep 0.01; done")).ok
        assert (await box.python("1")).stdout == "late\n1\n"

    inside(body)


def test_a_cancelled_call_is_interrupted_and_the_state_kept() -> None:
    async def body(box: UnsafeLocalSandbox) -> None:
        await box.python("kept = 1")
        endless = "open('begun', 'w')\nwhile True: pass"
        running_call = asyncio.create_task(box.python(endless, timeout=60))
        waiting = asyncio.create_task(box.python("kept = 2"))
        await box.exec("until [ -e begun ]; do sleep 0.01; done")
        waiting.cancel()
        running_call.cancel()
        assert (await box.python("kept", timeout=20)).stdout == "1\n"

    inside(body)


def test_classes_can_be_pickled_and_tracebacks_show_the_code() -> None:
    code = "import pickle\nclass A: pass\ntype(pickle.loads(pickle.dumps(A()))) is A"
    result, _, error = run(code, "def f():\n    raise ValueError('deep')", "f()")
    assert result.stdout == "True\n"
    assert "raise ValueError('deep')" in error.stderr

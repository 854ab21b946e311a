"""The persistent interpreter and shell, concurrent calls, and the end."""

from __future__ import annotations

import asyncio

from vf.runtime.errors import SandboxError
from vf.sandbox.contract import ExecResult, Sandbox
from vf.sandbox.selfcheck.check import check, expect, refusal, require


@check("python", "its state lives on between calls")
async def python_state(sandbox: Sandbox) -> None:
    await sandbox.python("import math\nx = 20\ndef twice(n):\n    return 2 * n")
    expect("the echo", "43\n", (await sandbox.python("twice(x) + math.ceil(2.5)")).stdout)


@check("python", "the value of a last expression is echoed, None is not")
async def echo(sandbox: Sandbox) -> None:
    result = await sandbox.python("print('first')\n'sec' + 'ond'")
    expect("stdout", "first\n'second'\n", result.stdout)
    expect("the last value", "'seconds'\n", (await sandbox.python("_ + 's'")).stdout)
    for silent in ("y = 3", "None", "print('', end='')", "", "# nothing"):
        expect(f"stdout of {silent!r}", "", (await sandbox.python(silent)).stdout)


@check("python", "an exception is a result with its traceback, and the state stays")
async def exception(sandbox: Sandbox) -> None:
    result = await sandbox.python("z = 7\nprint('before')\n1 / 0")
    expect("the return code", 1, result.returncode)
    expect("stdout", "before\n", result.stdout)
    require("ZeroDivisionError" in result.stderr, "a traceback on stderr", result.stderr)
    result = await sandbox.python("this is no Python")
    expect("the return code of a syntax error", 1, result.returncode)
    require("SyntaxError" in result.stderr, "SyntaxError on stderr", result.stderr)
    expect("the state", "7\n", (await sandbox.python("z")).stdout)


@check("python", "UTF-8 and 1 MiB of code arrive")
async def python_text(sandbox: Sandbox) -> None:
    code = "import sys\nprint('世界 🦀')\nprint('ä', file=sys.stderr)\n'ö\\ud800'"
    result = await sandbox.python(code)
    expect("stdout and stderr", ("世界 🦀\n'ö\\ud800'\n", "ä\n"), (result.stdout, result.stderr))
    code = "long = '" + "é" * 2**20 + "'\nlen(long)"
    expect("the length", f"{2**20}\n", (await sandbox.python(code)).stdout)
    expect_cut(await sandbox.python("print(long)"))


@check("python", "it runs in the working directory, and reads no stdin")
async def python_place(sandbox: Sandbox) -> None:
    workdir = (await sandbox.exec(["pwd"])).stdout
    expect("its directory", workdir, (await sandbox.python("import os; print(os.getcwd())")).stdout)
    result = await sandbox.python("input()", timeout=20)
    require("EOFError" in result.stderr, "EOFError from input()", result)


def expect_cut(result: ExecResult) -> None:
    """Expect the head and tail of much output."""
    expect("truncated", True, result.truncated)
    size = len(result.stdout.encode())
    require(size < 110_000, "about 100 kB of stdout", size)


def ended(result: ExecResult, code: int) -> None:
    """Expect a result that reports a lost state."""
    expect("the return code", code, result.returncode)
    require("lost" in result.stderr, "a word on stderr that the state was lost", result.stderr)


@check("python", "what ends it is said, and a new one comes")
async def python_end(sandbox: Sandbox) -> None:
    ended(await sandbox.python("import os\nos._exit(3)"), 3)
    expect("the echo afterwards", "2\n", (await sandbox.python("1 + 1")).stdout)


@check("bash", "directory, variables and functions live on between calls")
async def bash_state(sandbox: Sandbox) -> None:
    await sandbox.bash("mkdir -p inner && cd inner; name='a  b'; greet() { echo \"hello $1\"; }")
    result = await sandbox.bash('basename "$PWD"; greet "$name"')
    expect("stdout", "inner\nhello a  b\n", result.stdout)


@check("bash", "return codes and both streams are the command's")
async def bash_result(sandbox: Sandbox) -> None:
    result = await sandbox.bash("echo out; echo err >&2; (exit 5)")
    expect("the return code", 5, result.returncode)
    expect("stdout and stderr", ("out\n", "err\n"), (result.stdout, result.stderr))
    expect("$? in the next call", "5\n", (await sandbox.bash("echo $?")).stdout)
    for line, code in (("no-such-program-here", 127), ("return 4", 4), ("true", 0)):
        expect(f"the return code of {line!r}", code, (await sandbox.bash(line)).returncode)
    result = await sandbox.bash("cat; read x; echo $?")
    expect("the return code of a read from an empty stdin", "1\n", result.stdout)


@check("bash", "a syntax error is a result, and the state stays")
async def bash_syntax(sandbox: Sandbox) -> None:
    await sandbox.bash("kept=yes")
    result = await sandbox.bash("if then )(")
    require(result.returncode and result.stderr, "a failure and a word on stderr", result)
    expect("the state", "yes\n", (await sandbox.bash("echo $kept")).stdout)


@check("bash", "a here-document, UTF-8 and 1 MiB arrive")
async def bash_text(sandbox: Sandbox) -> None:
    result = await sandbox.bash("cat <<'END'\n$HOME 世界\nEND")
    expect("stdout", "$HOME 世界\n", result.stdout)
    result = await sandbox.bash(f"x={'x' * 2**20}; echo ${{#x}}")
    expect("the length", f"{2**20}\n", result.stdout)
    expect_cut(await sandbox.bash("yes | head -c 5000000"))


@check("bash", "what ends it is said, and a new one comes")
async def bash_end(sandbox: Sandbox) -> None:
    ended(await sandbox.bash("exit 4"), 4)
    expect("stdout afterwards", "new\n", (await sandbox.bash("echo new")).stdout)


@check("calls", "many run at the same time, each with its own output")
async def at_once(sandbox: Sandbox) -> None:
    results = await asyncio.gather(
        *(
            sandbox.exec(f"sleep 0.2; tr -d x; echo {number}", input="x" * 2**17 + str(number))
            for number in range(8)
        ),
        *(sandbox.python(str(number)) for number in range(8, 16)),
    )
    got = [result.stdout.strip() for result in results]
    expected = [f"{number}{number}" for number in range(8)] + [str(n) for n in range(8, 16)]
    expect("stdout of each", expected, got)


@check("calls", "a cancelled one harms no other")
async def cancelled(sandbox: Sandbox) -> None:
    call = asyncio.create_task(sandbox.exec("sleep 30", timeout=60))
    await asyncio.sleep(0.2)
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    expect("stdout", "alive\n", (await sandbox.exec("echo alive")).stdout)


# The last one: the sandbox cannot be used after it.
@check("close", "a second time does nothing, and then every call is SandboxError")
async def close(sandbox: Sandbox) -> None:
    process = await sandbox.start("cat")
    await sandbox.close()
    await sandbox.close()
    with refusal(SandboxError, "waiting for a program after close"):
        await process.wait(timeout=5)
    await process.kill()
    with refusal(SandboxError, "start after close"):
        await sandbox.start(["true"])
    with refusal(SandboxError, "exec after close"):
        await sandbox.exec(["true"])
    with refusal(SandboxError, "python after close"):
        await sandbox.python("1")
    with refusal(SandboxError, "read_file after close"):
        await sandbox.read_file("x")

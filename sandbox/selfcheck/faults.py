"""Code that harms its sandbox gets a result, and so does every call after it; never an error."""

from __future__ import annotations

from vf.runtime.errors import SandboxError
from vf.sandbox.contract import ExecResult, Sandbox
from vf.sandbox.selfcheck.check import Broken, check, require

GIB = 2**30


async def result_of(sandbox: Sandbox, code: str, timeout: float = 20.0) -> ExecResult:
    """Run code that harms its own sandbox, and check that the calls after it are answered."""
    try:
        result = await sandbox.python(code, timeout=timeout)
        await sandbox.exec(["true"])
        await sandbox.bash("true")
        await sandbox.python("1")
    except SandboxError as error:
        raise Broken("results, whatever the code did", repr(error)) from error
    return result


@check("faults", "code that takes all the memory gets a result, and so does what follows")
async def memory(sandbox: Sandbox) -> None:
    code = f"data = []\nfor _ in range({4 * GIB} // 2**20): data.append(bytearray(2**20))"
    await result_of(sandbox, code, timeout=60.0)


@check("faults", "code that closes every descriptor gets a result, and so does what follows")
async def descriptors(sandbox: Sandbox) -> None:
    await result_of(sandbox, "import os\nos.closerange(0, 4096)\nwhile True: pass", timeout=1.0)


@check("faults", "code that kills its own processes gets a result, and so does what follows")
async def signals(sandbox: Sandbox) -> None:
    result = await result_of(sandbox, "import os\nos.killpg(0, 9)")
    require(not result.ok, "a failure", result)


@check("faults", "code that stops itself gets a result, and so does what follows")
async def stopped(sandbox: Sandbox) -> None:
    code = "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)"
    result = await result_of(sandbox, code, timeout=1.0)
    require(result.timed_out, "a timeout", result)


@check("faults", "code that fills a pipe nobody reads gets a result, and so does what follows")
async def flood(sandbox: Sandbox) -> None:
    code = "import os\nwhile True: os.write(1, bytes(2**16))"
    result = await result_of(sandbox, code, timeout=1.0)
    require(result.timed_out, "a timeout", result)

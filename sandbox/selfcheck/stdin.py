"""Standard input, and what is given on the command line."""

from __future__ import annotations

import hashlib
import json

from vf.sandbox.contract import Sandbox
from vf.sandbox.selfcheck.check import check, expect

LARGE = 50 * 2**20
SPECIAL = "$HOME `id` $(id) 'a' \"b\" \\ * ? [x] {y,z} ~ ! # & | ; < > ( ) \t end\n-n\n"
HASH = "import hashlib, sys; print(hashlib.sha256(sys.stdin.buffer.read()).hexdigest())"


@check("stdin", "a text arrives")
async def text(sandbox: Sandbox) -> None:
    expect("stdout of cat", "one\ntwö", (await sandbox.exec("cat", input="one\ntwö")).stdout)


@check("stdin", "it is empty by default, and where it is empty")
async def empty(sandbox: Sandbox) -> None:
    for given in (None, "", b""):
        result = await sandbox.exec(["wc", "-c"], input=given, timeout=20)
        expect(f"the size of stdin with input={given!r}", "0", result.stdout.strip())


@check("stdin", "every byte arrives")
async def binary(sandbox: Sandbox) -> None:
    data = bytes(range(256)) * 40
    result = await sandbox.exec(["python3", "-c", HASH], input=data)
    expect("its SHA-256", hashlib.sha256(data).hexdigest(), result.stdout.strip())


@check("stdin", "50 MiB arrive")
async def large(sandbox: Sandbox) -> None:
    data = (bytes(range(251)) * (LARGE // 251 + 1))[:LARGE]
    result = await sandbox.exec(["sha256sum"], input=data, timeout=120)
    expect("its SHA-256", hashlib.sha256(data).hexdigest(), result.stdout[:64])


@check("stdin", "a program need not read it")
async def unread(sandbox: Sandbox) -> None:
    result = await sandbox.exec("echo done", input=b"x" * 2**22, timeout=20)
    expect("stdout", "done\n", result.stdout)
    expect("the return code", 0, result.returncode)


@check("stdin", "nothing in it is expanded")
async def special(sandbox: Sandbox) -> None:
    expect("stdout of cat", SPECIAL, (await sandbox.exec(["cat"], input=SPECIAL)).stdout)


@check("commands", "nothing in an argument is expanded")
async def arguments(sandbox: Sandbox) -> None:
    given = [SPECIAL, "", " two  spaces ", "世界", "-n"]
    code = "import json, sys; print(json.dumps(sys.argv[1:]))"
    result = await sandbox.exec(["python3", "-c", code, *given])
    result_of = await sandbox.exec(["python3", "-c", "import sys; print(len(sys.argv))", *given])
    expect("the number of arguments", "6\n", result_of.stdout)
    expect("the arguments", given, json.loads(result.stdout or "null"))


@check("commands", "a line is the shell's")
async def shell(sandbox: Sandbox) -> None:
    result = await sandbox.exec("x=4; echo $((x * 2)) | sed s/8/eight/ && (exit 3)")
    expect("stdout", "eight\n", result.stdout)
    expect("the return code", 3, result.returncode)


@check("commands", "a shell line may have 1 MiB")
async def long_line(sandbox: Sandbox) -> None:
    word = "x" * 2**20
    result = await sandbox.exec(f"printf %s {word} | wc -c", timeout=60)
    expect("stdout", str(2**20), result.stdout.strip())


@check("commands", "arguments may have 1 MiB together")
async def long_arguments(sandbox: Sandbox) -> None:
    words = ["y" * 2**16] * 16
    code = "import sys; print(sum(map(len, sys.argv[1:])))"
    result = await sandbox.exec(["python3", "-c", code, *words], timeout=60)
    expect("stdout", str(2**20), result.stdout.strip())

"""Running programs: output, return codes, standard input and arguments."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from vf.sandbox.contract import Sandbox
from vf.sandbox.selfcheck.check import check, expect, refusal, require, short

WORDS = "Grüße, 世界, 🦀\n"


@check("output", "stdout and stderr come apart")
async def streams(sandbox: Sandbox) -> None:
    result = await sandbox.exec("echo out; echo err >&2")
    expect("stdout", "out\n", result.stdout)
    expect("stderr", "err\n", result.stderr)
    expect("truncated", False, result.truncated)


@check("output", "UTF-8 is kept, and what is none is replaced")
async def utf8(sandbox: Sandbox) -> None:
    result = await sandbox.exec(["printf", "%s", WORDS])
    expect("stdout", WORDS, result.stdout)
    code = r"import os; os.write(1, b'a\0b\xff\xc3(\xf0\x9f\n'); os.write(2, b'\x80' * 3); None"
    for result in (await sandbox.exec(["python3", "-c", code]), await sandbox.python(code)):
        expect("stdout of bytes that are not text", "a\0b\ufffd\ufffd(\ufffd\n", result.stdout)
        expect("stderr of bytes that are not text", "\ufffd" * 3, result.stderr)


@check("output", "a program may be silent, and a last line needs no end")
async def silent(sandbox: Sandbox) -> None:
    result = await sandbox.exec(["true"])
    expect("stdout and stderr", ("", ""), (result.stdout, result.stderr))
    expect("stdout", "x", (await sandbox.exec(["printf", "x"])).stdout)


@check("output", "return codes are the program's")
async def codes(sandbox: Sandbox) -> None:
    for code in (0, 1, 2, 42, 255):
        result = await sandbox.exec(["sh", "-c", f"exit {code}"])
        expect("the return code", code, result.returncode)
        expect(f"ok at return code {code}", code == 0, result.ok)


@check("output", "no such program is 127, what cannot be run is 126")
async def cannot_run(sandbox: Sandbox) -> None:
    result = await sandbox.exec(["no-such-program-at-all"])
    expect("the return code of a missing program", 127, result.returncode)
    require("no-such-program" in result.stderr, "its name on stderr", result.stderr)
    result = await sandbox.exec("no-such-program-at-all")
    expect("the shell's return code for a missing program", 127, result.returncode)
    require(result.stderr, "a word of the shell on stderr", result)
    await sandbox.write_file("text.txt", "no program")
    for path in ("./text.txt", "/"):
        result = await sandbox.exec([path])
        expect(f"the return code of {path}, which is no program", 126, result.returncode)


@check("output", "too much is cut in the middle: head and tail stay, and the cut is said")
async def cut(sandbox: Sandbox) -> None:
    result = await sandbox.exec("echo HEAD; seq 100000; echo TAIL", max_output=1000)
    expect("truncated", True, result.truncated)
    require(result.stdout.startswith("HEAD\n"), "the head of stdout", result.stdout)
    require(result.stdout.endswith("TAIL\n"), "the tail of stdout", result.stdout)
    require(len(result.stdout) < 1200, "about 1000 bytes of stdout", len(result.stdout))
    require("missing" in result.stdout, "a line that says what is missing", result.stdout)
    result = await sandbox.exec("seq 100000 >&2; echo short", max_output=1000)
    expect("stdout beside a long stderr", "short\n", result.stdout)
    require("missing" in result.stderr, "a line that says what is missing", result.stderr)


@check("output", "what just fits is not cut")
async def fits(sandbox: Sandbox) -> None:
    result = await sandbox.exec(["printf", "%1000s", ""], max_output=1000)
    expect("stdout", " " * 1000, result.stdout)
    expect("truncated", False, result.truncated)


@check("output", "5 MiB on both streams come whole where that is allowed")
async def much(sandbox: Sandbox) -> None:
    code = "import sys; sys.stdout.write('o' * 5 * 2**20); sys.stderr.write('e' * 5 * 2**20)"
    result = await sandbox.exec(["python3", "-c", code], max_output=6 * 2**20, timeout=60)
    expect("stdout", "o" * 5 * 2**20, result.stdout)
    expect("stderr", "e" * 5 * 2**20, result.stderr)


@check("output", "the duration is the program's wall time")
async def duration(sandbox: Sandbox) -> None:
    result = await sandbox.exec(["sleep", "0.3"])
    require(0.28 <= result.duration < 20, "duration of about 0.3 s", result.duration)


@check("output", "a limit must be positive")
async def bad_limit(sandbox: Sandbox) -> None:
    with refusal(ValueError, "max_output=0"):
        await sandbox.exec(["true"], max_output=0)


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
    for line in ("echo done", "head -c 10 >head; echo done", "exec <&-; sleep 0.1; echo done"):
        result = await sandbox.exec(line, input=b"x" * 2**22, timeout=20)
        expect(f"stdout of {line!r}", "done\n", result.stdout)
        expect("the return code", 0, result.returncode)
    result = await sandbox.exec("sleep 30", input=b"x" * 2**22, timeout=0.3)
    expect("timed_out with input that nobody reads", True, result.timed_out)


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


@check("commands", "what no program can be given is a result that says why")
async def impossible(sandbox: Sandbox) -> None:
    calls: list[dict[str, Any]] = [
        {"cmd": words, **more}
        for words in (["echo", "a\0b"], ["echo", "a\ud800b"], "echo a\0b", "echo a\ud800b")
        for more in ({}, {"cwd": "/"})
    ]
    calls += [{"cmd": ["echo", "x" * 2**20]}, {"cmd": ["echo", *["x" * 2**16] * 600]}]
    calls += [{"cmd": "echo \0" + "x" * 2**17}, {"cmd": [""]}, {"cmd": ["x" * 5000]}, {"cmd": []}]
    calls += [{"cmd": "echo", "cwd": cwd} for cwd in ("a\0b", "a\ud800b", "x" * 5000)]
    names = ("A\0", "A=B", "A\ud800")
    calls += [{"cmd": "echo", "env": {name: "1"}} for name in names]
    calls += [{"cmd": "echo", "env": {"A": value}} for value in ("\0", "\ud800", "x" * 2**20)]
    for call in calls:
        shown = short(call)
        for result in (
            await sandbox.exec(**call),
            await (await sandbox.start(**call)).wait(),
        ):
            expect(f"stdout of {shown}", "", result.stdout)
            require(
                result.returncode in (126, 127) and result.stderr,
                f"126 or 127, and the reason on stderr, of {shown}",
                result,
            )
    result = await sandbox.exec("wc -c", input="a\ud800b")
    expect("the size of stdin with a lone surrogate", "3", result.stdout.strip())


@check("commands", "arguments may have 1 MiB together")
async def long_arguments(sandbox: Sandbox) -> None:
    words = ["y" * 2**16] * 16
    code = "import sys; print(sum(map(len, sys.argv[1:])))"
    result = await sandbox.exec(["python3", "-c", code, *words], timeout=60)
    expect("stdout", str(2**20), result.stdout.strip())

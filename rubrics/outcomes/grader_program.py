"""The program that evaluates calls inside a sandbox. It stands alone: only its text goes there.

It receives what to evaluate and never the expected values. So whatever the code under test does to
this program, it cannot know the right output: the values are compared outside.
"""

from __future__ import annotations

import ast
import contextlib
import json
import math
import os
import resource
import select
import signal
import sys
import time
from typing import Any

MAX_VALUE = 65_536  # bytes of one value as JSON
MAX_TIMEOUTS = 2  # after so many, the other calls are not run
# Limits are of processor time, so that a busy machine fails no right answer. Code that sleeps may
# take so many times as long.
WAITING = 4
TIMED_OUT = '{"timed_out": true}'


def main() -> None:
    """Read source, calls, limits (seconds) and nonce as JSON; write a line for each call."""
    request = json.load(sys.stdin)
    _limit(request["start_limit"])
    results = os.dup(1)
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nothing, descriptor)
    namespace: dict[str, Any] = {"__name__": "solution"}

    def report(index: int, outcome: str) -> None:
        os.write(results, f"{request['nonce']} {index} {outcome}\n".encode())

    try:
        exec(compile(request["source"], "solution.py", "exec"), namespace)
    except BaseException as error:
        report(-1, _failure(error))
        return
    timeouts = 0
    for index, code in enumerate(request["calls"]):
        outcome = _apart(code, namespace, request["limit"])
        report(index, outcome)
        timeouts += outcome == TIMED_OUT
        if timeouts == MAX_TIMEOUTS:
            return


def _limit(seconds: float) -> None:
    """End this process after so much processor time."""
    _, most = resource.getrlimit(resource.RLIMIT_CPU)
    limit = math.ceil(seconds)
    resource.setrlimit(
        resource.RLIMIT_CPU, (limit if most == resource.RLIM_INFINITY else min(limit, most), most)
    )


def _apart(code: str, namespace: dict[str, Any], limit: float) -> str:
    """Evaluate in a process of its own, so that no call changes what the next one sees."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.setsid()
        _limit(limit)
        try:
            text = _evaluate(code, namespace)
        except BaseException as error:
            text = _failure(error)
        os.write(writing, text.encode() + b"\n")
        os._exit(0)
    os.close(writing)
    deadline, data = time.monotonic() + WAITING * limit, b""
    outcome = TIMED_OUT
    while (left := deadline - time.monotonic()) > 0:
        if select.select([reading], [], [], left)[0]:
            part = os.read(reading, 65_536)
            data += part
            if data.endswith(b"\n"):
                outcome = data[:-1].decode()
                break
            if not part:
                outcome = '{"lost": true}'
                break
    os.close(reading)
    for kill in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError):
            kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGXCPU:
        outcome = TIMED_OUT
    return outcome


def _evaluate(code: str, namespace: dict[str, Any]) -> str:
    """Run the statements; return the value of the last one, an expression, as JSON."""
    tree = ast.parse(code)
    last = tree.body.pop()
    assert isinstance(last, ast.Expr)
    exec(compile(tree, "call", "exec"), namespace)
    value = eval(compile(ast.Expression(last.value), "call", "eval"), namespace)
    text = json.dumps({"value": value})
    if len(text) > MAX_VALUE:
        raise ValueError("the value is too long")
    return text


def _failure(error: BaseException) -> str:
    return json.dumps({"raised": [cls.__name__ for cls in type(error).__mro__]})


if __name__ == "__main__":
    main()

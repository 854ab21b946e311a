"""A policy that does nothing but try not to be scored: it has no such choice."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest

import vf
from vf.environments.environment import Split
from vf.tools.sandbox_tools import BashTool, PythonTool
from vf.traces.messages import Message, ToolCall

ROUNDS = 2  # of every way
DEEP = "import os\nfor _ in range(40):\n    os.mkdir('d' * 250)\n    os.chdir('d' * 250)"
IN_PYTHON = [
    DEEP,
    "import os\nos.chmod('.', 0)",
    "import os\nos._exit(3)",
    "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)",
    "import os, signal\nos.kill(-1, signal.SIGKILL)",
    "import os\nwhile True:\n    os.fork()",
    "x = bytearray(10**10)",
    "while True: pass",
    "print('x' * 10**8)",
    "print('\\x1b]0;title\\x07\\x1b[2J' * 1000, '\\ud800', '\\x00')",
    "import sys\nsys.setrecursionlimit(10**9)\nf = lambda: f()\nf()",
    "import os\nfor n in range(3, 4096):\n    try: os.close(n)\n    except OSError: pass",
    "import os\nfor n in (0, 1, 2): os.close(n)",
    "import shutil, os\nshutil.rmtree(os.getcwd(), ignore_errors=True)",
    "for n in range(50_000): open(f'f{n}', 'w')",
    "open(b'\\xff\\xfe', 'w').write('x')",
    "import os\nos.symlink('loop', 'loop')\nopen('loop')",
    "raise SystemExit(KeyboardInterrupt)",
    "import threading, time\nthreading.Thread(target=time.sleep, args=(99,)).start()",
    "import sys\nsys.stdout = sys.stderr = None\nprint(1)",
]
IN_BASH = [
    "kill -9 -1",
    "exec 1>&- 2>&- 0<&-; sleep 99",
    "exit 255",
    "cat /dev/zero | head -c 1000000000 > /tmp/full; echo done",
    "for f in hostname hosts resolv.conf; do head -c 1000000000 /dev/zero > /etc/$f; done",
    "rm -rf --no-preserve-root / 2>/dev/null; ls",
    "mkfifo p; cat p",
    ":(){ :|:& };:",
    "cat /dev/urandom | head -c 1000000",
    "trap '' TERM INT HUP; sleep 99 & disown; set +e; false",
    "ulimit -n 0; ls",
    "mv /bin /nib; ls",
]
OTHER_CALLS = [
    ("python", '{"code": ' + "[" * 20_000 + "]" * 20_000 + "}"),
    ("python", '{"code": 1e999}'),
    ("python", '{"code": "' + "x" * 2_000_000 + '"}'),
    ("python", "not JSON \ud800"),
    ("python", '{"code": "1", "code": null, "more": 1}'),
    ("python", '{"code": "\\u0000\\ud800"}'),
    ("no_such_tool", "{}"),
    ("__init__", "{}"),
    ("", ""),
]
WORDS = [
    "",
    "\ud800",
    "[/]" * 1000,
    "Answer: " + "9" * 100_000,
    "Answer: [[[" + "(" * 50_000,
    "\\frac{" * 10_000,
    "Answer: 10**10**10**10",
    "x" * 3_000_000,
    "\x00\x1b[2J\u202e",
]


def ways() -> list[list[Message]]:
    """Return what a policy says in each of its episodes."""
    calls = [("python", json.dumps({"code": code})) for code in IN_PYTHON]
    calls += [("bash", json.dumps({"command": command})) for command in IN_BASH]
    said = [
        Message("assistant", tool_calls=[ToolCall("c", tool, arguments)])
        for tool, arguments in calls + OTHER_CALLS
    ]
    last = Message("assistant", "Answer: 41")
    return [
        *([each, each, last] for each in said),
        *([Message("assistant", words)] for words in WORDS),
    ]


class Answered(vf.Environment):
    """Two tools, and a reward for saying 42."""

    max_turns = 4
    tool_timeout = 30.0

    def __init__(self, **sandbox: Any) -> None:
        source = vf.sandbox_source({"backend": "docker", **sandbox})
        self.tools = [PythonTool(source, timeout=3.0), BashTool(source, timeout=3.0)]
        self.rubric = vf.Rubric(outcome=vf.outcomes.math_equal())

    def tasks(self, split: Split) -> Iterator[vf.Task]:
        yield vf.Task("one", "What is 6 times 7?", answer="42")


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("containers")
@pytest.mark.parametrize(
    "sandbox",
    [{}, {"image": "vf-sandbox:latest", "writable": True, "user": "0", "workdir": "/root"}],
    ids=["tight", "writable root"],
)
async def test_nobody_goes_unscored_by_choice(sandbox: dict[str, Any]) -> None:
    """100 rollouts in each of two kinds of sandbox, all of which are scored."""
    environment = Answered(**sandbox)
    [task] = environment.tasks("train")
    scripts = ways() * ROUNDS
    assert len(scripts) == 100
    places = asyncio.Semaphore(8)

    async def play(script: list[Message]) -> vf.Trace:
        async with places:
            return await vf.rollout(environment, task, vf.ScriptedModel(script))

    traces = await asyncio.gather(*map(play, scripts))
    voids = {
        str(script[0])[:200]: trace.error
        for script, trace in zip(scripts, traces, strict=True)
        if trace.reward is None
    }
    assert voids == {}
    assert {trace.reward for trace in traces} == {0.0}

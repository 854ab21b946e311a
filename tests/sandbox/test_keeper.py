"""A process that waits for an order, when something goes wrong just then."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tests.sandbox.local_box import inside
from tests.waiting import until
from vf.sandbox.contract import ExecResult
from vf.sandbox.local import UnsafeLocalSandbox

ORDERS = """
import json, os, signal, socket, sys
from vf.sandbox.inside.keeper import Keeper
from vf.sandbox.inside.kernel import Identity
from vf.sandbox.inside.loop import Loop
from vf.sandbox.inside.program import Stage

flag, when = sys.argv[1:]
take = socket.recv_fds

def killed(orders, *rest):
    '''Have the first process that takes an order be killed; a rehearsal's socket blocks.'''
    if orders.getblocking():
        return take(orders, *rest)
    try:
        os.mkdir(flag)
    except FileExistsError:
        return take(orders, *rest)
    if when == "after it has taken the order":
        take(orders, *rest)
    os.kill(os.getpid(), signal.SIGKILL)

socket.recv_fds = killed
said = []

class Owner:
    def __init__(self, name): self.name = name
    def exited(self, code, trouble): said.append([self.name, code, trouble])
    def settled(self): pass
    def ended(self): said.append([self.name, "ended"])

def order(keeper, number):
    path = f"{flag}.{number}"
    keeper.run(Owner(number), ["touch", path], dict(os.environ), "/", {})

def idle(keeper):
    if len(said) == 2:
        order(keeper, "second")
    else:
        loop.stopped = True

loop = Loop()
who = Identity(os.getuid(), os.getgid(), (), "/", os.getuid(), False, 0, 0)
order(Keeper(loop, Stage(who, [], -1), idle), "first")
loop.later(20.0, lambda: setattr(loop, "stopped", True))
loop.run()
print(json.dumps(said))
"""


@pytest.mark.parametrize("when", ["before it has taken the order", "after it has taken the order"])
def test_an_order_whose_process_is_killed_ends(tmp_path: Path, when: str) -> None:
    flag = tmp_path / "killed"
    command = [sys.executable, "-c", ORDERS, str(flag), when]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    first = [["first", 137, ""], ["first", "ended"]]
    assert json.loads(done.stdout) == [*first, ["second", 0, ""], ["second", "ended"]]
    # Nor is an order carried out after it was said to have ended.
    assert sorted(path.name for path in tmp_path.iterdir()) == ["killed", "killed.second"]


def below(pid: int) -> int:
    """Return how many living processes are below one."""
    parents = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                state, parent = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
            except OSError:
                continue
            if state not in "ZX":
                parents[int(folder.name)] = int(parent)
    found = {pid}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return len(found) - 1


def test_a_supervisor_without_descriptors_leaves_no_process_waiting() -> None:
    async def body(box: UnsafeLocalSandbox) -> None:
        assert box._session is not None
        pid = box._session.info["pid"]

        def held() -> int:
            return len(os.listdir(f"/proc/{pid}/fd"))

        # A program's descriptors have numbers from 64 on for a moment: have so many in use.
        sleepers = [await box.start(["sleep", "600"]) for _ in range(20)]
        assert (await box.exec("true")).ok
        await until(lambda: below(pid) in (42, 44))  # each has a keeper; and one or two spare ones
        kind, whole = resource.RLIMIT_NOFILE, resource.prlimit(pid, resource.RLIMIT_NOFILE)
        processes, descriptors, codes = below(pid), held(), set()
        most = max(int(name) for name in os.listdir(f"/proc/{pid}/fd"))
        calls: list[Callable[[str], Awaitable[ExecResult]]] = [*[box.exec] * 5, box.bash]
        for call in calls:
            for room in range(2, 16):
                resource.prlimit(pid, kind, (most + room, whole[1]))
                codes.add((await call("true")).returncode)
                resource.prlimit(pid, kind, whole)
        assert codes == {0, 126}
        assert (await box.exec("true")).ok
        assert (await box.bash("true")).ok
        # The shell has come, and perhaps another spare one.
        await until(lambda: below(pid) <= processes + 4)
        await until(lambda: held() <= descriptors + 9)
        for sleeper in sleepers:
            await sleeper.kill()

    inside(body)

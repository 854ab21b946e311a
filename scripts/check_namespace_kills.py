"""Kill the owners of bubblewrap's sandboxes at random, and see that nothing of them is left.

    python scripts/check_namespace_kills.py --times 500 --seed 0

Each time, a process opens sandboxes, one after the other and several at once, in which programs
start children in sessions of their own, write files and listen; after a random while it gets
SIGKILL. Then no process of a sandbox is left, nor a mount, nor a file in the folder for temporary
ones, nor a control group.

Prints a line for each time that something did not hold, with the seed that repeats it.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

from killing import repeat, wait_until

EACH = 10  # kills of one line
GONE_IN = 60.0  # seconds; how long it takes is printed
OWNER = """
import asyncio, sys
import vf

LEAVE = "(setsid sh -c 'setsid sleep 3000 & sleep 3000' &); head -c 1000000 /dev/zero > big"
SERVE = "import socket; kept = socket.create_server(('127.0.0.1', 0))"

async def one(number):
    sandbox = {"backend": "bubblewrap", "workdir": sys.argv[1], "memory": 2**29}
    async with vf.open_sandbox(sandbox) as box:
        if number == 0:
            print("ready", flush=True)
        await box.exec(LEAVE)
        await box.start("while :; do sleep 0.01; done")
        await box.python(SERVE)
        await asyncio.sleep(0.2 * number)

async def main():
    while True:
        await asyncio.gather(*(one(number) for number in range(3)))

asyncio.run(main())
"""


def sandboxed(workdir: str, spaces: set[str]) -> list[int]:
    """Return the living processes in sandboxes with that working directory, and of their zygote.

    Bubblewrap has it as an argument, and its child is the zygote; a sandbox has it as a mount.

    Args:
        workdir: The working directory.
        spaces: PID namespaces that count in any case; those that are found are added.
    """
    found = []
    folders = [folder for folder in Path("/proc").iterdir() if folder.name.isdigit()]
    own = os.readlink("/proc/self/ns/pid")
    for folder in folders:
        try:
            arguments = (folder / "cmdline").read_bytes().split(b"\0")
            if arguments[0].endswith(b"bwrap") and workdir.encode() in arguments:
                found.append(int(folder.name))
                children = (folder / "task" / folder.name / "children").read_text().split()
                spaces.update(os.readlink(f"/proc/{child}/ns/pid") for child in children)
            if f" {workdir} " in (folder / "mountinfo").read_text():
                spaces.add(os.readlink(folder / "ns/pid"))
        except OSError:
            continue
    for folder in folders:
        try:
            dead = (folder / "stat").read_text().rpartition(")")[2].split()[0] in "ZX"
            if os.readlink(folder / "ns/pid") in spaces - {own} and not dead:
                found.append(int(folder.name))
        except OSError:
            continue
    return sorted(set(found))


def ended(workdir: str, spaces: set[str]) -> bool:
    """Whether none of them is left."""
    return not sandboxed(workdir, spaces)


def left() -> dict[str, object]:
    """Return what a sandbox could leave on this machine."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    mounts = sum("/docker/" not in line.split()[4] for line in lines)  # containers come and go
    groups = sum(1 for _ in Path("/sys/fs/cgroup").glob("*/*"))
    return {"mounts": mounts, "groups": groups}


def check(seed: int) -> str:
    """Kill owners, and return what it came to.

    Raises:
        AssertionError: Something is left.
    """
    rng = random.Random(seed)
    slowest, in_sandboxes = 0.0, 0
    for number in range(EACH):
        workdir = f"/killed-{seed * EACH + number}-{os.getpid()}"
        before = left()
        with tempfile.TemporaryDirectory() as folder:
            owner = subprocess.Popen(
                [sys.executable, "-c", OWNER, workdir],
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=os.environ | {"TMPDIR": folder},
            )
            assert owner.stdout is not None
            assert owner.stdout.readline() == b"ready\n", "no sandbox was opened"
            time.sleep(rng.uniform(0.0, 1.0))
            spaces: set[str] = set()
            in_sandboxes += len(sandboxed(workdir, spaces))
            owner.kill()
            began = time.monotonic()
            owner.wait()
            wait_until(partial(ended, workdir, spaces), "all ended", GONE_IN)
            slowest = max(slowest, time.monotonic() - began)
            owner.stdout.close()
            names = os.listdir(folder)
            assert not names, f"left in the folder for temporary files: {names}"
        assert left() == before, f"{before} was left as {left()}"
    return f"{EACH} kills of {in_sandboxes} processes in sandboxes; gone within {slowest:.2f} s"


def main() -> int:
    """Run the checks and return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--times", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    times = -(-args.times // EACH)
    seeds = range(args.seed, args.seed + times)
    return repeat("namespace_kills", seeds, check, kills=times * EACH)


if __name__ == "__main__":
    sys.exit(main())

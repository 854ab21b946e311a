"""What the checks share that kill processes: waiting, finding processes, and an evaluation."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import vf

MARK = "VF_CHECK_KILLS"  # a variable of the processes that belong to one run
PATIENCE = 180.0  # seconds


def wait_until(condition: Callable[[], object], what: str, seconds: float = PATIENCE) -> None:
    """Wait, and fail where it takes too long."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"after {seconds:g} s still not: {what}")
        time.sleep(0.02)


def processes(mark: str) -> dict[int, str]:
    """Return the command lines of the processes whose environment holds the mark."""
    marked = {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            if f"{MARK}={mark}".encode() in (folder / "environ").read_bytes():
                line = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                if line:  # a zombie has none
                    marked[int(folder.name)] = line
        except OSError:
            continue
    return marked


class KilledEvaluation:
    """An evaluation in a folder with an `eval.toml`, started again and again.

    Args:
        folder: Where it runs.
        tasks: How many it has, `t0` and on.
        environ: More variables of its processes.
    """

    def __init__(self, folder: Path, tasks: int, environ: dict[str, str]) -> None:
        self.folder, self.tasks, self.environ = folder, tasks, environ
        self.evaluation: subprocess.Popen[bytes] | None = None

    def start(self, command: list[str]) -> subprocess.Popen[bytes]:
        """Start a command of vf-rl, whose output goes to the log."""
        code = "import sys; from vf.trainer.commands.main import main; sys.exit(main())"
        with (self.folder / "log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-c", code, *command],
                cwd=self.folder,
                env=os.environ | {"OPENAI_API_KEY": "none"} | self.environ,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def start_evaluation(self) -> None:
        """Start, or resume, the evaluation."""
        self.evaluation = self.start(["eval", "eval.toml"])

    def ended(self) -> bool:
        """Return whether the evaluation has ended."""
        return self.evaluation is not None and self.evaluation.poll() is not None

    def kill(self) -> int:
        """Kill the evaluation; return its process id."""
        assert self.evaluation is not None
        self.evaluation.kill()
        self.evaluation.wait()
        return self.evaluation.pid

    def traces(self) -> list[vf.Trace]:
        """Return the whole lines of the traces' file."""
        files = list(self.folder.rglob("traces.jsonl"))
        lines = [line for file in files for line in file.read_bytes().split(b"\n")[:-1]]
        return [vf.Trace.from_json(line) for line in lines if line]

    def scored(self) -> dict[str, bytes]:
        """Return the traces that have been scored, by id."""
        return {t.id: t.to_json() for t in self.traces() if t.error is None}

    def hold(self, before: dict[str, bytes], earned: Callable[[vf.Trace], bool]) -> list[vf.Trace]:
        """Check that what ended before a kill is unchanged, and that each reward is earned.

        Returns:
            The traces.
        """
        traces = self.traces()
        now = {trace.id: trace.to_json() for trace in traces}
        for id, line in before.items():
            assert now.get(id) == line, f"lost or changed: {id}"
        for trace in traces:
            assert trace.error is None or trace.reward is None, (
                f"a failure with a reward: {trace.id}"
            )
            assert not trace.reward or earned(trace), f"a reward that was not earned: {trace.id}"
        return traces

    def hold_whole(self) -> None:
        """Check that each task has been scored once."""
        scored = Counter(trace.task.id for trace in self.traces() if trace.error is None)
        expected = Counter(f"t{n}" for n in range(self.tasks))
        assert scored == expected, f"each task once, not {scored}"


def repeat(name: str, seeds: range, check: Callable[[int], str], **counts: int) -> int:
    """Check with each seed, print a line for each and a summary, and return the exit code."""
    began, bad = time.monotonic(), 0
    for seed in seeds:
        try:
            print(f"seed {seed}: {check(seed)}", flush=True)
        except AssertionError as error:
            bad += 1
            print(f"seed {seed}: FAILED: {error}", flush=True)
    seconds = round(time.monotonic() - began)
    print(json.dumps({"check": name, **counts, "failed": bad, "seconds": seconds}))
    return 1 if bad else 0

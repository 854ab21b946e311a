"""Kill agents, evaluations and engines at random, and see that nothing is lost, left or made up.

    python scripts/check_agent_kills.py --times 50 --seed 0

Each time, an evaluation of small programs runs against an engine of its own, and at a random moment
one process gets SIGKILL: an agent, the evaluation (where the endpoints are) or the engine. Then:

- nothing that did not finish has a reward;
- no process of the killed part is left;
- what had ended is still there, unchanged, when the evaluation has been resumed, and nothing is
  there twice.

Prints a line each time, with the seed that repeats it, and ends with 1 if anything did not hold.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import vf
from vf.inference.ports import choose_port

TASKS = 12
CALLS = 4  # of an agent
PARTS = ("agent", "evaluation", "engine")
MARK = "VF_CHECK_AGENT_KILLS"
PATIENCE = 120.0  # seconds

AGENT = f"""
import json, os, subprocess, sys, urllib.request

def ask(text):
    body = {{"model": os.environ["VF_MODEL"], "messages": [{{"role": "user", "content": text}}],
            "max_tokens": 24}}
    request = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + "/chat/completions", json.dumps(body).encode(),
        {{"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"],
         "Content-Type": "application/json"}})
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)["choices"][0]["message"]["content"]

# Something that would stay behind: a child in a session of its own.
subprocess.Popen([sys.executable, "-S", "-c", "import signal; signal.pause()"],
                 start_new_session=True, stdin=subprocess.DEVNULL,
                 stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
for number in range({CALLS}):
    ask(f"Call {{number}}.")
print("finished")
"""
RUBRIC = """
def outcome(trace):
    return float(trace.info["output"] == "finished\\n")
"""


def processes(mark: str) -> dict[int, str]:
    """Return the command lines of the processes whose environment holds the mark."""
    found = {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            if f"{MARK}={mark}".encode() in (folder / "environ").read_bytes():
                line = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                if line:  # a zombie has none
                    found[int(folder.name)] = line
        except OSError:
            continue
    return found


def wait_until(condition: Callable[[], object], what: str, seconds: float = PATIENCE) -> None:
    """Wait, and fail where it takes too long."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"after {seconds:g} s still not: {what}")
        time.sleep(0.02)


class Run:
    """One evaluation in a folder, with its engine."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.mark = folder, folder.name
        self.port = choose_port("127.0.0.1", 0)
        (folder / "agent.py").write_text(AGENT)
        (folder / "scoring.py").write_text(RUBRIC)
        rows = [{"id": f"t{n}", "prompt": f"Task {n}"} for n in range(TASKS)]
        (folder / "tasks.jsonl").write_text("\n".join(map(json.dumps, rows)))
        command = json.dumps([sys.executable, "-S", "agent.py"])
        (folder / "eval.toml").write_text(
            f'output = "evals"\nmax_concurrent = 4\n[[models]]\nmodel = "tiny"\n'
            f'base_url = "http://127.0.0.1:{self.port}/v1"\n'
            f'[[environments]]\nid = "program"\n[environments.args]\ncommand = {command}\n'
            f'tasks = {{ eval = "tasks.jsonl" }}\nrubric = "./scoring.py:outcome"\n'
            f'env = {{ {MARK} = "{self.mark}" }}\n'
        )
        self.engine: subprocess.Popen[bytes] | None = None
        self.evaluation: subprocess.Popen[bytes] | None = None

    def start(self, command: list[str]) -> subprocess.Popen[bytes]:
        """Start a command of vf-rl, marked."""
        log = (self.folder / "log").open("ab")
        environ = os.environ | {MARK: self.mark, "OPENAI_API_KEY": "none"}
        code = "import sys; from vf.trainer.commands.main import main; sys.exit(main())"
        return subprocess.Popen(
            [sys.executable, "-c", code, *command],
            cwd=self.folder,
            env=environ,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )

    def start_engine(self) -> None:
        """Start the engine, and wait until it answers."""
        self.engine = self.start(["serve", "tiny", "--port", str(self.port)])
        wait_until(self.answers, "the engine answers")

    def answers(self) -> bool:
        """Return whether the engine answers."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/v1/models", timeout=5):
                return True
        except OSError:
            return False

    def start_evaluation(self) -> None:
        """Start, or resume, the evaluation."""
        self.evaluation = self.start(["eval", "eval.toml"])

    def traces(self) -> list[vf.Trace]:
        """Return the whole lines of the traces' file."""
        files = list(self.folder.rglob("traces.jsonl"))
        lines = [line for file in files for line in file.read_bytes().split(b"\n")[:-1]]
        return [vf.Trace.from_json(line) for line in lines if line]

    def agents(self) -> list[int]:
        """Return the agents' processes, without their guards and children."""
        return [
            pid
            for pid, line in processes(self.mark).items()
            if "agent.py" in line and "lifeline" not in line and "-c" not in line.split()
        ]

    def stop(self) -> None:
        """Kill what still runs."""
        for process in (self.evaluation, self.engine):
            if process is not None:
                process.kill()
                process.wait()


@contextmanager
def opened() -> Iterator[Run]:
    """Return a run whose engine answers; it is ended with all that is left of it."""
    with tempfile.TemporaryDirectory(prefix="kills-") as name:
        run = Run(Path(name))
        try:
            run.start_engine()
            yield run
        finally:
            run.stop()


def check(seed: int) -> str:
    """Kill once, and return what was killed when.

    Raises:
        AssertionError: Something did not hold.
    """
    rng = random.Random(seed)
    part = PARTS[seed % len(PARTS)]
    with opened() as run:
        run.start_evaluation()
        assert run.evaluation is not None
        assert run.engine is not None
        some = rng.randint(0, TASKS - 4)
        wait_until(lambda: ended(run) or (run.agents() and len(run.traces()) >= some), "agents run")
        time.sleep(rng.uniform(0.0, 1.0))
        before = {trace.id: trace.to_json() for trace in run.traces()}
        killed = 0
        if part == "agent":
            agents = run.agents()
            if agents:
                killed = rng.choice(agents)
                with suppress(ProcessLookupError):  # it may have ended by now
                    os.kill(killed, signal.SIGKILL)
        else:
            process = run.evaluation if part == "evaluation" else run.engine
            killed = process.pid
            process.kill()
            process.wait()
        if part == "evaluation":
            wait_until(
                lambda: not (processes(run.mark).keys() - {run.engine.pid}),  # type: ignore[union-attr]
                "nothing of the evaluation is left",
            )
        elif part == "engine":
            run.start_engine()
        wait_until(lambda: ended(run), "the evaluation ends")
        middle = run.traces()
        hold(before, middle)
        unfinished = sum(not trace.reward for trace in middle)
        assert part != "agent" or unfinished <= 1, "only the killed agent has no reward"
        run.start_evaluation()
        wait_until(lambda: ended(run), "the resumed evaluation ends")
        after = run.traces()
        hold({t.id: t.to_json() for t in middle if t.error is None}, after)
        scored = [trace for trace in after if trace.error is None]
        tasks = Counter(trace.task.id for trace in scored)
        assert tasks == Counter(f"t{n}" for n in range(TASKS)), f"each task once, not {tasks}"
        left = processes(run.mark).keys() - {run.engine.pid}
        assert not left, f"left: {left}"
    return f"{part}, {len(before)} of {TASKS} had ended, {unfinished} without a reward"


def ended(run: Run) -> bool:
    """Return whether the evaluation has ended."""
    return run.evaluation is not None and run.evaluation.poll() is not None


def hold(before: dict[str, bytes], now: list[vf.Trace]) -> None:
    """Check that nothing which ended is lost, and nothing unfinished has a reward."""
    found = {trace.id: trace.to_json() for trace in now}
    for id, line in before.items():
        assert found.get(id) == line, f"lost or changed: {id}"
    for trace in now:
        finished = trace.info.get("output") == "finished\n" and len(trace.turns) == CALLS
        assert not trace.reward or finished, f"a reward for what did not finish: {trace.id}"
        assert trace.error is None or trace.reward is None


def main() -> int:
    """Run the checks and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--times", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    bad = 0
    for seed in range(args.seed, args.seed + args.times):
        try:
            print(f"seed {seed}: {check(seed)}", flush=True)
        except AssertionError as error:
            bad += 1
            print(f"seed {seed}: FAILED: {error}", flush=True)
    print(json.dumps({"check": "agent_kills", "times": args.times, "failed": bad}))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())

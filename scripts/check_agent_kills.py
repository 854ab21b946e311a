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
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from killing import MARK, KilledEvaluation, processes, repeat, wait_until

import vf
from vf.inference.ports import choose_port

TASKS = 12
CALLS = 4  # of an agent
PARTS = ("agent", "evaluation", "engine")

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


class Run(KilledEvaluation):
    """One evaluation in a folder, with its engine."""

    def __init__(self, folder: Path) -> None:
        self.mark = folder.name
        super().__init__(folder, TASKS, {MARK: self.mark})
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
        wait_until(
            lambda: run.ended() or (run.agents() and len(run.traces()) >= some), "agents run"
        )
        time.sleep(rng.uniform(0.0, 1.0))
        before = {trace.id: trace.to_json() for trace in run.traces()}
        if part == "agent":
            if agents := run.agents():
                with suppress(ProcessLookupError):  # it may have ended by now
                    os.kill(rng.choice(agents), signal.SIGKILL)
        elif part == "evaluation":
            run.kill()
        else:
            run.engine.kill()
            run.engine.wait()
        if part == "evaluation":
            wait_until(
                lambda: not (processes(run.mark).keys() - {run.engine.pid}),  # type: ignore[union-attr]
                "nothing of the evaluation is left",
            )
        elif part == "engine":
            run.start_engine()
        wait_until(run.ended, "the evaluation ends")
        middle = run.hold(before, finished)
        unfinished = sum(not trace.reward for trace in middle)
        assert part != "agent" or unfinished <= 1, "only the killed agent has no reward"
        run.start_evaluation()
        wait_until(run.ended, "the resumed evaluation ends")
        run.hold({t.id: t.to_json() for t in middle if t.error is None}, finished)
        run.hold_whole()
        left = processes(run.mark).keys() - {run.engine.pid}
        assert not left, f"left: {left}"
    return f"{part}, {len(before)} of {TASKS} had ended, {unfinished} without a reward"


def finished(trace: vf.Trace) -> bool:
    """Return whether the agent of a trace completed."""
    return trace.info.get("output") == "finished\n" and len(trace.turns) == CALLS


def main() -> int:
    """Run the checks and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--times", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    seeds = range(args.seed, args.seed + args.times)
    return repeat("agent_kills", seeds, check, times=args.times)


if __name__ == "__main__":
    sys.exit(main())

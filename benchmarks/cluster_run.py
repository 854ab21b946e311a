"""One measurement of `cluster.py`, in a separate process: `python cluster_run.py JSON FILE`.

The JSON says what to run (:class:`Work`); what was measured is written to the file, as JSON.
"""

from __future__ import annotations

import json
import os
import random
import shlex
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import psutil

HERE = Path(__file__).parent
UPDATES = 3  # timed in a row
SETTLE = 1.0  # seconds between them, in which what is under way in a process ends
VOCABULARY = 500  # of the tiny model's 512 tokens
UNBELIEVED = 1e9  # nats: the servers' log-probabilities are made up


@dataclass(frozen=True)
class Work:
    """Rollouts of four turns against servers whose latency dominates.

    Attributes:
        workers: Processes in which the rollouts run; 0 for the trainer's own.
        servers: Inference servers.
        slots: Requests that one server answers at once.
        answer_seconds: Of one answer.
        tool_seconds: Of one tool call.
        concurrent: Rollouts under way at most.
        rollouts: In all.
        updates: How often optimizer steps are timed beside the rollouts, and alone. With 0, the
            rollouts are what is timed.
    """

    workers: int
    servers: int
    slots: int
    answer_seconds: float
    tool_seconds: float
    concurrent: int
    rollouts: int
    updates: int = 0


def settings(work: Work) -> dict[str, Any]:
    """Return the run's settings, as a TOML holds them."""
    return {
        "model": "tiny",
        "env": {
            "id": str(HERE / "cluster_env.py:SimulatedTools"),
            "args": {"tasks": max(16, work.rollouts), "tool_seconds": work.tool_seconds},
        },
        "inference": {
            "engine": "vllm",
            "executable": shlex.join([sys.executable, str(HERE / "slow_server.py")]),
            "replicas": work.servers,
            "publish": "lora",
            "logprob_tolerance": UNBELIEVED,
            "args": {"max_num_seqs": work.slots, "answer_seconds": work.answer_seconds},
        },
        "rollouts": {"workers": work.workers},
        "trainer": {
            "args": {
                "max_steps": 1,
                "batch_size": 16,
                "rollouts_per_example": 8,
                "max_concurrent": work.concurrent,
                "eval_share": 1.0,
                "eval_examples": work.rollouts,
                "max_tokens": 64,
                "max_prompt_len": 400,
                "max_seq_len": 1024,
                "generation_timeout": 600.0,
                "micro_batch_tokens": 4096,
            }
        },
    }


@contextmanager
def trainer(work: Work) -> Iterator[Any]:
    """Return a trainer whose engine runs, and whose rollouts' loop is watched."""
    from cluster_watch import watch_loop

    from vf.runtime.open_files import raise_limit
    from vf.trainer.preflight import preflight
    from vf.trainer.rl_trainer import RLTrainer
    from vf.trainer.run.run_folder import RunFolder
    from vf.trainer.settings.load_config import parse_config

    raise_limit()
    with tempfile.TemporaryDirectory(prefix="cluster-") as name:
        folder = RunFolder(Path(name) / "run")
        folder.create()
        config, _ = parse_config(settings(work))
        with RLTrainer(preflight(config), folder) as made:
            made.collector.call(watch_loop())
            made.collector.try_each()  # a worker has started
            yield made


def rolled(work: Work) -> dict[str, Any]:
    """Run the rollouts as one evaluation, and time it."""
    with trainer(work) as made:
        started = time.perf_counter()
        metrics = made.evaluate()
        seconds = time.perf_counter() - started
        if metrics["eval/rollouts/scored"] != work.rollouts:
            errors = [trace.error for trace in made.folder.eval_traces(0)]
            causes = Counter(error.message[:200] for error in errors if error is not None)
            raise SystemExit(f"some rollouts failed: {causes.most_common(5)}")
        return {"seconds": seconds, "rollouts_per_s": work.rollouts / seconds}


def samples() -> list[Any]:
    """Return a quarter of a batch of the quickstart's: 16 rollouts of two answers each."""
    from vf.traces.trace import Branch
    from vf.trainer.learning.batches.batch import Sample

    rng = random.Random(0)

    def ids(count: int) -> list[int]:
        return [rng.randrange(16, VOCABULARY) for _ in range(count)]

    found = []
    for number in range(16):
        branch = Branch()
        for turn, count in enumerate((160, 16)):
            branch.add_context(ids(count), turn)
            branch.add_sampled(ids(32), [-6.0] * 32, [0] * 32, turn)
        found.append(Sample(branch, 1.0 if number % 2 else -1.0))
    return found


def overlapped(work: Work) -> dict[str, Any]:
    """Time optimizer steps alone and beside rollouts, in turn: other work disturbs both alike.

    While they are timed alone, the servers pause, and the rollouts wait for answers.
    """
    from cluster_watch import Cores

    batch = samples()
    with trainer(work) as made:
        cores, pause = Cores(), threading.Event()
        orchestrator = made.collector.orchestrator

        def updates() -> tuple[float, float]:
            """Return the seconds of an optimizer step, and those in which it had a core."""
            took = []
            for _ in range(UPDATES):
                started, waited = time.perf_counter(), cores.waited()
                made.learner.accumulate(batch)
                made.learner.optim_step(learning_rate=1e-12)
                seconds = time.perf_counter() - started
                took.append((seconds, seconds - (cores.waited() - waited)))
            return median(each for each, _ in took), median(each for _, each in took)

        updates()
        made.collector.begin_evaluation(0)
        while sum(each.turn > 0 for each in orchestrator.activities()) < work.concurrent // 2:
            pause.wait(0.05)  # until the first turn of most has been answered
        servers = [each for each in psutil.Process().children(recursive=True) if is_server(each)]
        pairs = []
        for _ in range(work.updates):
            beside = updates()
            under_way = len(orchestrator.activities())
            for each in servers:
                each.suspend()
            pause.wait(SETTLE)
            pairs.append((updates(), beside))
            for each in servers:
                each.resume()
            pause.wait(SETTLE)

    def ratio(which: int) -> float:
        return median(beside[which] / alone[which] for alone, beside in pairs)

    return {
        "alone": median(alone[0] for alone, _ in pairs),
        "beside": median(beside[0] for _, beside in pairs),
        "slower": ratio(0),
        "own_slower": ratio(1),
        "under_way": under_way,
    }


def is_server(process: psutil.Process) -> bool:
    """Return whether a process is an inference server, and no guard of one."""
    words = process.cmdline()
    return len(words) > 1 and words[1].endswith("slow_server.py")


def main() -> None:
    """Measure what was asked for."""
    import logging

    logging.disable()
    work = Work(**json.loads(sys.argv[1]))
    found = overlapped(work) if work.updates else rolled(work)
    Path(sys.argv[2]).write_text(json.dumps(found | {"cores": os.cpu_count()}))


if __name__ == "__main__":
    main()

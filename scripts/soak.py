"""Run the soak: the long checks that kill, measure, rotate versions or need the index.

    python scripts/soak.py                   # every part; writes its outcome into the table
    python scripts/soak.py kills lowest      # some parts
    python scripts/soak.py --turn            # the part whose turn it is, by the last commit's date

The gate (`.ci/run`) runs one part by turns, so that each is seen every few changes. All of them are
run before a large change is finished; `benchmarks/results/soak.md` says when each ran last, and
what came of it. They need what `make parts` installs. Exit code: 1 if a part failed.
"""

from __future__ import annotations

import argparse
import datetime
import os
import re
import shlex
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
TABLE = ROOT / "benchmarks" / "results" / "soak.md"
HEAD = """\
# The soak

`make soak` runs these long checks and writes this table; `python scripts/soak.py PART` runs one.
Continuous integration runs one part by turns.

| part | what it checks | commit | date | outcome | minutes |
|---|---|---|---|---|---|
"""
PYTEST = "python -m pytest -p no:cacheprovider -n 3 --dist worksteal -m slow"
# The slow tests in parts of some minutes each; the last two are what is left of their folder.
SLOW = {
    "slow-learning": ["tests/trainer/learning"],
    "slow-saving": ["tests/trainer/saving", "tests/trainer/collecting"],
    "slow-commands": [
        f"tests/trainer/{room}" for room in ("commands", "processes", "settings", "sft", "watching")
    ],
    "slow-environments": ["tests/environments", "tests/bridges", "tests/tools"],
    "slow-trainer": ["tests/trainer"],
    "slow-rest": ["tests"],
}


@dataclass(frozen=True)
class Part:
    """One part of the soak.

    Attributes:
        checks: What it checks, in the table's words.
        command: A line of shell; ``python`` is the environment's.
        by_turns: The gate runs it by turns: it ends within some minutes on two cores.
    """

    checks: str
    command: str
    by_turns: bool = True


def _slow(folders: list[str]) -> Part:
    """Return the part of the slow tests in folders, without those that a part before it has."""
    before = [f for each in SLOW.values() for f in each]
    before = before[: before.index(folders[0])]
    left_out = [f"--ignore={folder}" for folder in before]
    return Part(f"slow tests in {', '.join(folders)}", " ".join([PYTEST, *folders, *left_out]))


PARTS = {name: _slow(folders) for name, folders in SLOW.items()} | {
    "installs": Part(
        "every extra resolves, alone and together", "python scripts/check_installs.py"
    ),
    "extras": Part(
        "every extra alone does what it is for",
        "python scripts/bare_user.py --extras all",
        by_turns=False,
    ),
    "vllm-calls": Part("the calls of each vLLM version", "python scripts/check_vllm_calls.py"),
    "verifiers": Part("verifiers 0.4 and mcp 2", "bash scripts/check_verifiers_04.sh"),
    "verifiers-repository": Part(
        "environments of verifiers' repository",
        "bash scripts/check_verifiers_repository.sh",
        by_turns=False,
    ),
    "lowest": Part("the lowest transformers", "bash scripts/check_lowest.sh"),
    "quantized": Part("bitsandbytes", "bash scripts/check_quantized.sh"),
    "engines": Part("sandboxes on Podman and gVisor", "bash scripts/check_engines.sh"),
    "gpu-check": Part("the GPU check's small part, on a CPU", "make gpu-check"),
    "kills": Part(
        "a minute of runs whose parts are killed",
        "python scripts/check_cluster.py --seconds 60 --every 8 --steps 4",
    ),
    "agent-kills": Part("agents killed", "python scripts/check_agent_kills.py --times 20"),
    "sandbox-kills": Part(
        "containers killed", "python scripts/check_sandbox_kills.py --episodes 100"
    ),
    "namespace-kills": Part(
        "owners of namespaces killed", "python scripts/check_namespace_kills.py --times 100"
    ),
    "deterministic-kills": Part(
        "deterministic runs killed",
        "python scripts/check_deterministic_kills.py --runs 4",
        by_turns=False,
    ),
    "tinker-kills": Part(
        "servers of the Tinker API killed", "python scripts/check_tinker_kills.py --kills 30"
    ),
    "agents": Part(
        "agents from PyPI and npm, token by token", "python scripts/check_agents.py", by_turns=False
    ),
    "task-folders": Part(
        "reference solutions of task folders",
        "python scripts/check_task_folders.py",
        by_turns=False,
    ),
}


def run(name: str) -> tuple[bool, float]:
    """Run a part; return whether it passed, and its minutes."""
    print(f"soak: {name}: {PARTS[name].command}", flush=True)
    started = time.monotonic()
    path = f"{ROOT / '.venv' / 'bin'}{os.pathsep}{os.environ['PATH']}"
    environ = os.environ | {"PATH": path, "OMP_NUM_THREADS": "1", "VF_REQUIRE_ALL": "1"}
    done = subprocess.run(shlex.split(PARTS[name].command), cwd=ROOT, env=environ)
    minutes = (time.monotonic() - started) / 60
    said = "passed" if done.returncode == 0 else f"FAILED with exit code {done.returncode}"
    print(f"soak: {name}: {said} in {minutes:.1f} minutes", flush=True)
    return done.returncode == 0, minutes


def turn(seconds: int) -> str:
    """Return the part whose turn it is for a commit of that time, in seconds since 1970."""
    names = [name for name, part in PARTS.items() if part.by_turns]
    return names[seconds % len(names)]


def git(*words: str) -> str:
    """Return what git says."""
    return subprocess.check_output(["git", *words], cwd=ROOT, text=True).strip()


def record(name: str, outcome: str, minutes: float) -> None:
    """Write the row of a part into the table; the rows of the others stay."""
    table = TABLE.read_text() if TABLE.exists() else ""
    by_name = {part: row for row, part in re.findall(r"^(\| (\S+) \|.*)$", table, re.M)}
    today = datetime.date.today().isoformat()
    row = f"{git('rev-parse', '--short', 'HEAD')} | {today} | {outcome} | {minutes:.1f}"
    by_name[name] = f"| {name} | {PARTS[name].checks} | {row} |"
    lines = [by_name[part] for part in PARTS if part in by_name]
    TABLE.write_text(HEAD + "\n".join(lines) + "\n")


def main() -> int:
    """Run the parts."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("parts", nargs="*", help=f"of {', '.join(PARTS)}; by default all")
    parser.add_argument("--turn", action="store_true", help="run the one whose turn it is")
    args = parser.parse_args()
    if unknown := sorted(set(args.parts) - set(PARTS)):
        parser.error(f"no such part: {', '.join(unknown)}; there are {', '.join(PARTS)}")
    if args.turn:
        return 0 if run(turn(int(git("log", "-1", "--format=%ct"))))[0] else 1
    failed = []
    for name in args.parts or PARTS:
        good, minutes = run(name)
        record(name, "passed" if good else "FAILED", minutes)
        failed += [] if good else [name]
    print(f"soak: failed: {', '.join(failed)}" if failed else "soak: all passed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

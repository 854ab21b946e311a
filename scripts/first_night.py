"""Play a newcomer's first night: `python scripts/first_night.py`.

In a fresh clone, with what `make quickstart` installs and nothing else, it types the commands of
the README and of the first guides, edits an environment between two evaluations, kills runs and
resumes them, and makes the mistakes that people make.
The night fails at a traceback, at a long silence, at an exit code or an answer that is not the
expected one, and at a wrong number. Some acts are played at the same time as others, as in two
terminals: see `ROUNDS`.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import mean
from typing import Any

from common_mistakes import MISTAKEN_FILES, MISTAKES
from newcomer import Newcomer, Stopped

from vf.runtime.ports import free_port

ROOT = Path(__file__).parents[1]
README_PORT = "8000"
# The beginnings of the tutorial's blocks after the first.
TUTORIAL = (
    "vf-rl eval --validate sums",
    "vf-rl eval sums -n 40",
    "vf-rl sums",
    "vf-rl eval sums -m",
    "vf-rl export",
)
GUIDE = "docs/guide-authoring.md"  # begins with the shortest environment
BLOCK = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def blocks(page: str, kind: str) -> list[str]:
    """Return the fenced blocks of a page, of a language ("" for commands)."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return [code for language, code in BLOCK.findall(text) if language == kind]


def metrics(run: Path) -> list[dict[str, Any]]:
    """Return the lines of a run's metrics; none where the run has not begun to write them."""
    path = run / "metrics.jsonl"
    return lines(path) if path.exists() else []


def kill_at(user: Newcomer, command: str, run: str, step: int) -> None:
    """Start a run, and send it SIGKILL when its metrics have reached a step."""
    with user.running(command) as process:
        for _ in user.listen(process, command):
            if (rows := metrics(user.folder / run)) and rows[-1]["step"] >= step:
                os.killpg(process.pid, signal.SIGKILL)
                break
        process.wait()
    print(f"$ {command}  # killed at step {metrics(user.folder / run)[-1]['step']}", flush=True)


def check_steps(run: Path, last: int) -> None:
    """Every step is in the metrics once."""
    steps = [row["step"] for row in metrics(run)]
    if steps != list(range(last + 1)):
        raise Stopped(f"{run}/metrics.jsonl has the steps {steps}, expected 0 to {last}")


def commands(page: str, beginning: str) -> list[str]:
    """Return the lines of the block of commands that begins so, without their comments."""
    [block] = [code for code in blocks(page, "") if code.startswith(beginning)]
    return [shlex.join(shlex.split(line, comments=True)) for line in block.splitlines()]


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def check(what: str, found: float, expected: float, within: float = 0.0005) -> None:
    if abs(found - expected) > within:
        raise Stopped(f"{what} is {found}, expected {expected}")


def check_results(folder: Path) -> None:
    """The mean that an evaluation reports is the mean of its traces."""
    result = json.loads((folder / "results.json").read_text())["results"][0]
    rewards = [
        trace["score"]["reward"] for path in folder.glob("**/*.jsonl") for trace in lines(path)
    ]
    check(f"the mean reward in {folder}", result["reward"]["mean"], mean(rewards))


def install_and_train(user: Newcomer) -> None:
    """`make quickstart` installs what it needs, and the reward rises."""
    user.type("make quickstart", "Installing vf-rl in .venv", never="Warning")
    [metrics] = user.folder.glob("runs/quickstart-*/metrics.jsonl")
    held_out = [row["eval/reward/mean"] for row in lines(metrics) if "eval/reward/mean" in row]
    print(f"  held-out reward {held_out[0]:.3f} -> {held_out[-1]:.3f}", flush=True)
    if not (held_out[0] <= 0.5 and held_out[-1] >= 0.9):
        raise Stopped(f"the quickstart's held-out rewards are {held_out}")


def write_environments(user: Newcomer) -> None:
    """The first environments, each a file that is evaluated and validated."""
    for name, page in (("products", GUIDE), ("warehouse", "README.md")):
        code = blocks(page, "python")[0]
        (user.folder / f"{name}.py").write_text(code)
        user.type(f"vf-rl eval ./{name}.py -n 5 -r 2 --max-tokens 32", "reward")
        check_results(user.folder / "evals" / f"{name}-tiny")
        user.type(f"vf-rl eval --validate ./{name}.py", "passed")


def change_the_environment(user: Newcomer) -> None:
    """A result belongs to the environment that it was measured in."""
    file, command = (
        user.folder / "products.py",
        "vf-rl eval ./products.py -n 5 -r 2 --max-tokens 32",
    )
    code = file.read_text()
    folder = user.folder / "evals" / "products-tiny"
    before = (folder / "results.json").read_text()

    file.write_text(code.replace("vf.outcomes.numeric()", "lambda trace: 1.0"))
    user.type(command, "rubric", "--fresh", "--rescore", code=2)
    user.type(f"{command} --fresh", "1.000")
    file.write_text(code.replace('"""Multiply', 'system_prompt = "Be quick."\n    """Multiply'))
    user.type(command, "system_prompt", "--fresh", code=2, never="rubric")
    if (folder / "results.json").read_text() != before:
        raise Stopped("an evaluation that was refused has changed the results")
    file.write_text(code)
    user.type(command)
    check_results(folder)


def make_a_package(user: Newcomer) -> None:
    """`vf-rl init`, and what the guide does next."""
    for command in commands(GUIDE, "vf-rl init"):
        user.type(command)


def follow_the_tutorial(user: Newcomer) -> None:
    """From `vf-rl init` to an adapter, with what the tutorial shows."""
    page = "docs/tutorial.md"
    environment, play = blocks(page, "python")
    [toml] = blocks(page, "toml")
    for command in commands(page, "vf-rl init"):
        user.type(command)
    (user.folder / "sums/sums/environment.py").write_text(environment)
    (user.folder / "play.py").write_text(f"from sums.environment import *\n{play}")
    user.type("python play.py")
    (user.folder / "sums/sums.toml").write_text(toml)
    for block in TUTORIAL:
        for command in commands(page, block):
            user.type(command)
    [metrics] = user.folder.glob("runs/sums-1/metrics.jsonl")
    held_out = [row["eval/reward/mean"] for row in lines(metrics) if "eval/reward/mean" in row]
    print(f"  held-out reward {held_out[0]:.3f} -> {held_out[-1]:.3f}", flush=True)
    if held_out[-1] < held_out[0] + 0.1:
        raise Stopped(f"the tutorial's held-out rewards are {held_out}")


def write_run(user: Newcomer) -> None:
    """The README's first run, in a file."""
    [toml] = blocks("README.md", "toml")
    (user.folder / "run.toml").write_text(toml)


def train(user: Newcomer) -> None:
    """The README's run, and what it shows of `vf-rl`."""
    for command in commands("README.md", "vf-rl run.toml"):
        if command.startswith("vf-rl serve"):
            with user.running(f"{command} --port {(port := free_port('127.0.0.1'))}") as server:
                user.wait_for(server, "/v1")
                address = f"http://127.0.0.1:{port}/v1"
                model = user.type(f"curl -sf {address}/models")
                model = json.loads(model)["data"][0]["id"]
                user.type(f"vf-rl eval calculator -m {model} -b {address} -n 5 -o evals/served")
                check_results(user.folder / "evals" / "served")
        else:
            user.type(command)


def kill_and_resume(user: Newcomer) -> None:
    """SIGKILL in the README's run, and in the continuation that it suggests, loses nothing."""
    run = "runs/killed"
    begin = "vf-rl run.toml --set max_steps=20 --set output_dir=runs --set run_name=killed"
    kill_at(user, begin, run, 12)
    said = user.type(f"vf-rl --resume {run}", never="from the beginning")
    check_steps(user.folder / run, 20)
    suggested = re.search(rf"vf-rl --resume {run} --set max_steps=\d+", said)
    if suggested is None:
        raise Stopped(f"{said}\n=> suggests no way to continue")
    kill_at(user, suggested[0], run, 27)
    user.type(f"vf-rl --resume {run}")
    check_steps(user.folder / run, 40)
    user.type(f"vf-rl --resume {run}", "already finished")


def evaluate_twice(user: Newcomer) -> None:
    """Another number of tasks is another evaluation, with a folder of its own."""
    before = set((user.folder / "evals").glob("calculator-tiny*"))
    user.type("vf-rl eval calculator -n 10 -r 2")
    user.type("vf-rl eval calculator -n 4")
    new = set((user.folder / "evals").glob("calculator-tiny*")) - before
    if len(new) != 2:
        raise Stopped(f"two evaluations made {sorted(path.name for path in new)}")
    for folder in new:
        check_results(folder)


def search_notes(user: Newcomer) -> None:
    """An index of a folder of Markdown, with the extra that the answer names."""
    notes = user.folder / "notes"
    notes.mkdir()
    for number in range(30):
        text = f"# Note {number}\n\nThe code of locker {number} is {number**3 + 7}.\n"
        (notes / f"note-{number}.md").write_text(text)
    said = user.type("vf-rl search build notes/ -o indexes/notes", "vf-rl[search]", code=2)
    install = re.search(r"pip install '?vf-rl\[search\]'?", " ".join(said.split()))
    if install is None:
        raise Stopped(f"{said}\n=> names no command that installs the extra")
    user.type(install[0].replace("vf-rl[search]", ".[search]").replace("install", "install -qe"))
    user.type("vf-rl search build notes/ -o indexes/notes", "30")
    user.type("vf-rl search query indexes/notes 'code of locker 12'", "1735")


def measure(user: Newcomer) -> None:
    """The README's evaluations; `vf-rl serve` is the server that they expect."""
    results = user.folder / "evals"
    port = free_port("127.0.0.1")
    with user.running(f"vf-rl serve tiny --port {port} --name qwen3-8b") as server:
        user.wait_for(server, f"127.0.0.1:{port}")
        user.type(f"curl -sf http://127.0.0.1:{port}/v1/models", "qwen3-8b")
        (user.folder / "evals.toml").write_text(EVALS)
        (user.folder / "my_env.py").write_text(blocks("README.md", "python")[0])
        user.type("vf-rl eval evals.toml")
        for command in commands("README.md", "vf-rl eval calculator"):
            if "--compare" in command:
                user.type("vf-rl eval calculator -n 20 -r 2 -o evals/a")
                user.type("vf-rl eval calculator -n 20 -r 2 --temperature 0.5 -o evals/b")
            if "qwen3-8b" in command:  # the tiny model would fill its context in every answer
                command = f"{command.replace(README_PORT, str(port))} --max-tokens 64"
            user.type(command)
        user.type(f"vf-rl serve tiny --port {port}", f"port {port}", "--port", code=2)
        dry = f"vf-rl run.toml --dry-run --set inference.port={port}"
        user.type(dry, f"port {port}", "inference.port", code=2)
    for name in ("calculator-tiny", "guess-number-qwen3-8b", "a", "b"):
        check_results(results / name)


EVALS = """\
rollouts_per_example = 2
tasks = 10

[[environments]]
id = "calculator"

[[environments]]
id = "guess-number"

[[models]]
model = "tiny"
"""


def make_mistakes(user: Newcomer) -> None:
    """Each is answered with what is wrong, where, and what to write."""
    for name, code in MISTAKEN_FILES.items():
        (user.folder / name).write_text(code)
    for command, code, *says in MISTAKES:
        user.type(command, *says, code=code)
    both = "vf-rl run.toml --set max_steps=1 --set eval_strategy=no & " * 2
    user.type(f"{both} wait -n && wait -n", "runs/run-2", "runs/run-3")


Act = Callable[[Newcomer], None]
# Acts, each after the one before it, and those that are played beside them.
ROUNDS: list[tuple[list[Act], list[Act]]] = [
    ([install_and_train, make_a_package, write_run], []),
    (
        [write_environments, change_the_environment, follow_the_tutorial, kill_and_resume],
        [train, measure, evaluate_twice, make_mistakes],
    ),
    ([search_notes], []),
]
ACTS = [act for acts, beside in ROUNDS for act in acts + beside]


def play(user: Newcomer, acts: list[Act]) -> bool:
    """Play acts: one that fails does not keep the next from being played; return if all passed."""
    passed = True
    for act in acts:
        print(f"\n## {act.__doc__}", flush=True)
        try:
            act(user)
        except Stopped as error:
            print(f"STOPPED in {act.__name__}:\n{error}", flush=True)
            passed = False
    return passed


@contextmanager
def played_beside(folder: Path, silence: float, acts: list[Act]) -> Iterator[list[bool]]:
    """Play acts in another process, whose output follows; add to what is yielded if they passed."""
    if not acts:
        yield []
        return
    options = ["--folder", folder, "--silence", silence, "--acts", *(a.__name__ for a in acts)]
    results: list[bool] = []
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(
            [sys.executable, __file__, *map(str, options)], stdout=output, stderr=output
        )
        try:
            yield results
            results.append(process.wait() == 0)
        finally:
            process.terminate()
            process.wait()
            output.seek(0)
            print(output.read(), flush=True)


def main() -> int:
    """Play the night."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--folder", type=Path, help="of a clone that is there, to play on in it")
    parser.add_argument(
        "--silence", type=float, default=120.0, help="seconds that a command may say nothing"
    )
    parser.add_argument(
        "--acts", nargs="+", choices=[act.__name__ for act in ACTS], help="one after another"
    )
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that no server is left behind
    # A shell has its background jobs ignore it, and so would every command that is ended by Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    rounds = ROUNDS
    if args.acts:
        rounds = [([act for act in ACTS if act.__name__ in args.acts], [])]
    with tempfile.TemporaryDirectory(prefix="first-night-") as new:
        folder = args.folder
        if folder is None:
            folder = Path(new) / "vf-rl"
            subprocess.run(["git", "clone", "--quiet", str(ROOT), str(folder)], check=True)
        folder, passed = folder.resolve(), []
        for acts, others in rounds:
            with played_beside(folder, args.silence, others) as results:
                passed.append(play(Newcomer(folder, args.silence), acts))
            passed += results
    print("\na good night" if all(passed) else "\nstopped: see above")
    return not all(passed)


if __name__ == "__main__":
    sys.exit(main())

"""Play a newcomer's first night: `python scripts/first_night.py`.

In a fresh clone, with what `make quickstart` installs and nothing else, it types the commands of
the README and of the first guides, edits an environment between two evaluations, and makes the
mistakes that people make.
The night fails at a traceback, at ten seconds of silence, at an exit code or an answer that is not
the expected one, and at a wrong number.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import mean
from typing import Any

from newcomer import Newcomer, Stopped

ROOT = Path(__file__).parents[1]
PORT = 8000  # that the README's example of a server has
# The beginnings of the tutorial's blocks after the first.
TUTORIAL = (
    "vf-rl eval --validate sums",
    "vf-rl eval sums -n 40",
    "vf-rl sums",
    "vf-rl eval sums -m",
    "vf-rl export",
)
GUIDE = "docs/guide-authoring.md"  # begins with the shortest environment
# What the README shows and this night does not type: each with where it runs.
ELSEWHERE = {
    "make test": "CI runs all tests",
    ". .venv/bin/activate": "what a Newcomer does first",
}
BLOCK = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def blocks(page: str, kind: str) -> list[str]:
    """Return the fenced blocks of a page, of a language ("" for commands)."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return [code for language, code in BLOCK.findall(text) if language == kind]


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


def train(user: Newcomer) -> None:
    """The README's run, and what it shows of `vf-rl`."""
    [toml] = blocks("README.md", "toml")
    (user.folder / "run.toml").write_text(toml)
    for command in commands("README.md", "vf-rl run.toml"):
        if command.startswith("vf-rl serve"):
            with user.running(command) as server:
                user.wait_for(server, "/v1")
        else:
            user.type(command)


def measure(user: Newcomer) -> None:
    """The README's evaluations; `vf-rl serve` is the server that they expect."""
    results = user.folder / "evals"
    with user.running(f"vf-rl serve tiny --port {PORT} --name qwen3-8b") as server:
        user.wait_for(server, f"127.0.0.1:{PORT}")
        user.type(f"curl -sf http://127.0.0.1:{PORT}/v1/models", "qwen3-8b")
        (user.folder / "evals.toml").write_text(EVALS)
        (user.folder / "my_env.py").write_text(blocks("README.md", "python")[0])
        user.type("vf-rl eval evals.toml")
        for command in commands("README.md", "vf-rl eval calculator"):
            if "--compare" in command:
                user.type("vf-rl eval calculator -n 20 -r 2 -o evals/a")
                user.type("vf-rl eval calculator -n 20 -r 2 --temperature 0.5 -o evals/b")
            if "qwen3-8b" in command:  # the tiny model's context is short
                command += " --max-tokens 64"
            user.type(command)
        user.type(f"vf-rl serve tiny --port {PORT}", f"port {PORT}", "--port", code=2)
        dry = f"vf-rl run.toml --dry-run --set inference.port={PORT}"
        user.type(dry, f"port {PORT}", "inference.port", code=2)
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


TOOL = (
    """import vf

class Shop(vf.Environment):
    rubric = {rubric}

    def tasks(self, split):
        return [vf.Task(f"{{split}}-{{n}}", "How many?", answer=n) for n in range(4)]

    def reset(self, task):
        {reset}

    @vf.tool
    def count(self) -> {returns}:
        """
    + '"""Count them."""'
    + """
        return {count}
"""
)
RESET = "return self.first_messages(task)"


def shop(
    rubric: str = "vf.Rubric(outcome=vf.outcomes.numeric())",
    reset: str = RESET,
    returns: str = "int",
    count: str = "3",
) -> str:
    return TOOL.format(rubric=rubric, reset=reset, returns=returns, count=count)


MISTAKEN_FILES = {
    "wrong_table.toml": 'model = "tiny"\nenv.id = "calculator"\n[trainer]\nmax_steps = 2\n',
    "for_vllm.toml": 'model = "tiny"\nenv.id = "calculator"\n'
    '[inference]\nengine = "vllm"\nsleep = false\n'
    "[trainer.args]\nmax_steps = 1\nmax_prompt_len = 256\nmax_seq_len = 512\n",
    "torn.toml": "model = \n",
    "list_rubric.py": shop(rubric="[vf.outcomes.numeric()]"),
    "no_return.py": "def right(trace):\n    trace.reply == trace.task.answer\n\n"
    + shop(rubric="vf.Rubric(outcome=right)"),
    "image.py": shop(reset='return [vf.Message("user", [{"type": "image_url"}])]'),
    "torn.py": "class Shop(\n",
    "chat.jsonl": '{"messages": [{"role": "user", "content": "Hi."}]}\n',
}
# Each with its exit code and what the answer must say.
MISTAKES: list[tuple[Any, ...]] = [
    ("vf-rl run.toml --set max_step=3", 2, "max_steps"),
    ("vf-rl run.toml --set lerning_rate=1e-3", 2, "learning_rate"),
    ("vf-rl wrong_table.toml", 2, "max_steps", "[trainer.args]"),
    ("vf-rl torn.toml", 2, "torn.toml", "line 1"),
    ("vf-rl no-such.toml", 2, "no-such.toml"),
    ("vf-rl evaluate", 2, "eval"),
    ("vf-rl run.toml --dry-run --set loss_fn=grpo", 2, "loss_fn", "advantage"),
    ("vf-rl run.toml --dry-run --set trainer.gpus=[1]", 2, "trainer.gpus"),
    ("vf-rl for_vllm.toml --dry-run --set inference.gpus=[1]", 2, "inference.gpus"),
    ("vf-rl for_vllm.toml --dry-run --set inference.engine=embedded", 0, "inference.sleep"),
    ("vf-rl run.toml --dry-run --set model=./no-such-folder", 2, "no-such-folder"),
    ("vf-rl run.toml --dry-run --set model=Qwen/Qwen3-0.6B", 2, "Qwen/Qwen3-0.6B"),
    ("vf-rl run.toml --dry-run --set env.id=calculater", 2, "calculator"),
    ("vf-rl run.toml --dry-run --set env.args.most=3", 2, "max_operand"),
    ("vf-rl --resume runs/no-such-run", 2, "no-such-run"),
    ("vf-rl eval calculater", 2, "calculator"),
    ("vf-rl eval ./no_such.py", 2, "no_such.py"),
    ("vf-rl eval ./torn.py", 2, "torn.py", "line 1"),
    ("vf-rl eval calculator --rollouts 3", 2, "--rollouts-per-example"),
    ("vf-rl eval calculator -m x -b http://127.0.0.1:9/v1", 2, "http://127.0.0.1:9/v1"),
    ("vf-rl eval ./list_rubric.py -n 1", 2, "vf.WeightedSum"),
    ("vf-rl eval ./no_return.py -n 1 --max-tokens 8", 1, "None"),
    ("vf-rl eval ./image.py -n 1 --max-tokens 8", 2, "images"),
    ("vf-rl eval --rescore chat.jsonl --rubric calculator", 2, "chat.jsonl"),
]

ACTS: list[Callable[[Newcomer], None]] = [
    install_and_train,
    write_environments,
    change_the_environment,
    make_a_package,
    follow_the_tutorial,
    train,
    measure,
    make_mistakes,
]


def main() -> int:
    """Play the night, act by act: one that fails does not keep the next from being played."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--folder", type=Path, help="of a clone that is there, to play on in it")
    parser.add_argument("--acts", nargs="+", choices=[act.__name__ for act in ACTS])
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that no server is left behind
    # A shell has its background jobs ignore it, and so would every command that is ended by Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with tempfile.TemporaryDirectory(prefix="first-night-") as new:
        folder = args.folder
        if folder is None:
            folder = Path(new) / "vf-rl"
            subprocess.run(["git", "clone", "--quiet", str(ROOT), str(folder)], check=True)
        user, stopped = Newcomer(folder.resolve()), []
        for act in ACTS:
            if args.acts and act.__name__ not in args.acts:
                continue
            print(f"\n## {act.__doc__}", flush=True)
            try:
                act(user)
            except Stopped as error:
                print(f"STOPPED in {act.__name__}:\n{error}", flush=True)
                stopped.append(act.__name__)
    print(f"\n{f'stopped in {stopped}' if stopped else 'a good night'}")
    return bool(stopped)


if __name__ == "__main__":
    sys.exit(main())

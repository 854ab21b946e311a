"""`vf-rl init`: create the package of a new environment."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from vf.runtime.command import DONE, CommandParser, run_command

EXAMPLES = """\
examples:
  vf-rl init word-count                    one question, one answer
  vf-rl init word-count --tools            several turns, with a typed Python function as a tool
  vf-rl init word-count --sandbox          the answer is code, tested in a container
  vf-rl init word-count --tools --sandbox  a tool, and Python in a container
  vf-rl init word-count --agent            an agent with a loop of its own, on the openai client
  vf-rl init word-count --agents           several agents in an episode, each with its own reward
  vf-rl init word-count --prime-rl         verifiers and prime-rl can load it as well
  vf-rl init word-count --into ~/environments

The package works as written: install it, test it, validate it, train on it, change it.
Exit codes: 0 done, 1 failed, 2 bad usage.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    parser = CommandParser(
        prog="vf-rl init",
        description="Create the package of a new environment: tasks, rubric, tests, training run.",
        epilog=EXAMPLES,
    )
    parser.add_argument("name", metavar="NAME", help="the environment's name, such as word-count")
    parser.add_argument("--tools", action="store_true", help="give the model tools to call")
    parser.add_argument("--sandbox", action="store_true", help="run code in a sandbox")
    parser.add_argument("--agent", action="store_true", help="bring an agent with its own loop")
    parser.add_argument("--agents", action="store_true", help="let several agents act")
    parser.add_argument(
        "--prime-rl", action="store_true", help="let verifiers and prime-rl load it by its name"
    )
    parser.add_argument(
        "--into",
        type=Path,
        default=Path(),
        metavar="FOLDER",
        help="folder in which to create the package (default: the current one)",
    )
    args = parser.parse_args(argv)

    def run() -> int:
        _write(
            args.name,
            args.into.expanduser(),
            tools=args.tools,
            sandbox=args.sandbox,
            agent=args.agent,
            agents=args.agents,
            prime_rl=args.prime_rl,
        )
        return DONE

    return run_command("vf-rl init", run)


def _write(name: str, into: Path, *, sandbox: bool, **options: bool) -> None:
    from vf.environments.authoring.names import names_of
    from vf.environments.authoring.package import write_package

    names = names_of(name)
    folder = into / names.id
    for path in write_package(folder, names, sandbox=sandbox, **options):
        print(f"  wrote {path}")
    here, extra = shlex.quote(str(folder)), shlex.quote(f"{folder}[test]")
    environment = folder / names.package / "environment.py"
    containers = [("vf-rl sandbox build", "builds the sandbox image, once")] if sandbox else []
    steps = [
        (f"pip install -e {extra}", "registers its name, and installs what its tests need"),
        *containers,
        (f"vf-rl eval {names.id} -m tiny -n 16", "runs it with the model that ships with vf-rl"),
        (f"vf-rl eval --validate {names.id}", "can it be solved, can it be gamed?"),
        (f"python -m pytest {here}", "runs its tests"),
        (f"vf-rl {shlex.quote(str(folder / f'{names.id}.toml'))} --set max_steps=2", "trains"),
    ]
    width = max(len(command) for command, _ in steps)
    print("\nNext:")
    for command, why in steps:
        print(f"  {command:<{width}}   # {why}")
    print(f"\nThen edit {environment}.")

"""`vf-init`: write the package of a new environment."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from vf.runtime.command import DONE, run_command

EXAMPLES = """\
examples:
  vf-init word-count                    one question, one answer
  vf-init word-count --tools            several turns, with a typed Python function as a tool
  vf-init word-count --sandbox          the answer is code, tested in a container
  vf-init word-count --tools --sandbox  a tool, and Python in a container
  vf-init word-count --prime-rl         verifiers and prime-rl load it, too, by its name
  vf-init word-count --into ~/environments

What is written works as it is: install it, test it, validate it, train on it, change it.
Exit codes: 0 done, 1 failed, 2 bad usage.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    parser = argparse.ArgumentParser(
        prog="vf-init",
        description="Write the package of a new environment: tasks, rubric, tests, a training run.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", metavar="NAME", help="its name, such as word-count")
    parser.add_argument("--tools", action="store_true", help="the model has tools to call")
    parser.add_argument("--sandbox", action="store_true", help="code runs in a sandbox")
    parser.add_argument(
        "--prime-rl", action="store_true", help="verifiers and prime-rl load it by its name"
    )
    parser.add_argument(
        "--into",
        type=Path,
        default=Path(),
        metavar="FOLDER",
        help="where its folder is made (here by default)",
    )
    args = parser.parse_args(argv)

    def run() -> int:
        _write(
            args.name,
            args.into.expanduser(),
            tools=args.tools,
            sandbox=args.sandbox,
            prime_rl=args.prime_rl,
        )
        return DONE

    return run_command("vf-init", run)


def _write(name: str, into: Path, *, tools: bool, sandbox: bool, prime_rl: bool) -> None:
    from vf.environments.authoring.names import names_of
    from vf.environments.authoring.package import write_package

    names = names_of(name)
    folder = into / names.id
    options = {"tools": tools, "sandbox": sandbox, "prime_rl": prime_rl}
    for path in write_package(folder, names, **options):
        print(f"  wrote {path}")
    here = shlex.quote(str(folder))
    environment = folder / names.package / "environment.py"
    containers = [("vf-sandbox build", "makes the image, once")] if sandbox else []
    steps = [
        (f"pip install -e {here}", "adds the name to this Python"),
        *containers,
        (f"vf-eval {names.id} -m tiny -n 16", "the model that ships with vf-rl acts in it"),
        (f"vf-eval --validate {names.id}", "can it be solved, can it be gamed?"),
        (f"python -m pytest {here}", "its own tests"),
        (f"vf-rl {shlex.quote(str(folder / f'{names.id}.toml'))} --set max_steps=2", "trains"),
    ]
    width = max(len(command) for command, _ in steps)
    print("\nnext:")
    for command, why in steps:
        print(f"  {command:<{width}}   # {why}")
    print(f"\nThen make it yours: {environment}")


if __name__ == "__main__":
    sys.exit(main())

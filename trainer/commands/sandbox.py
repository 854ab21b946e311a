"""`vf-rl sandbox`: set up, check and clean up the sandboxes of this machine."""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
import time
from collections.abc import Awaitable, Callable, Sequence

from vf.runtime.command import (
    BAD_USAGE,
    DONE,
    FAILED,
    CommandParser,
    add_subcommand,
    run_command,
)
from vf.sandbox.container.docker_engine import Engine
from vf.sandbox.container.doctor import diagnose
from vf.sandbox.container.image import SUITE, build
from vf.sandbox.container.profile import DEFAULT_IMAGE, Profile
from vf.sandbox.container.reaper import Found, find, reap
from vf.sandbox.container.trial import WHY_NOT, try_out
from vf.sandbox.contract import Limits

EXAMPLES = """\
examples:
  vf-rl sandbox doctor        check this machine, and say how to fix what is missing
  vf-rl sandbox build         build the image
  vf-rl sandbox ps            list the containers of all runs
  vf-rl sandbox reap          remove the containers that dead runs left behind
  vf-rl sandbox self-check    test a backend against the contract

Exit codes: 0 done, 1 failed, 2 bad usage, or something you can fix is missing."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments[:1] == ["self-check"]:
        from vf.sandbox import selfcheck

        return int(selfcheck.main(arguments[1:]))
    options = _parser().parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    return run_command("vf-rl sandbox", lambda: options.run(options))


def _parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        prog="vf-rl sandbox",
        description="Set up, check and clean up the sandboxes that run a model's code.",
        epilog=EXAMPLES,
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    ps = add_subcommand(commands, "ps", "list the containers of all runs, in any state", "")
    ps.set_defaults(run=_ps)

    reaper = add_subcommand(commands, "reap", "remove the containers of dead runs", "")
    reaper.set_defaults(run=_reap)

    made = add_subcommand(
        commands,
        "build",
        f"build the image {DEFAULT_IMAGE}, or another one",
        "",
        "--fresh",
        "--tag with-numpy --package numpy==2.1.0 --package sympy",
        "--tag mine --base python:3.13-slim",
    )
    made.add_argument(
        "--tag", default=DEFAULT_IMAGE, help="name of the image (default: %(default)s)"
    )
    made.add_argument(
        "--base",
        metavar="IMAGE",
        help="base image (default: python:3.12-slim, or a Debian built here if no registry "
        "answers)",
    )
    made.add_argument(
        "--package",
        action="append",
        default=[],
        dest="packages",
        metavar="NAME",
        help="package from PyPI to install in it; may be repeated",
    )
    made.add_argument(
        "--suite", default=SUITE, help="Debian release, if one is built here (default: %(default)s)"
    )
    made.add_argument("--fresh", action="store_true", help="build it even if it exists")
    made.set_defaults(run=_build)

    doctor = add_subcommand(
        commands,
        "doctor",
        "check this machine, and say how to fix what is missing",
        "",
        "--image with-numpy --runtime runsc",
    )
    doctor.add_argument(
        "--image", default=DEFAULT_IMAGE, help="image to check (default: %(default)s)"
    )
    doctor.add_argument(
        "--runtime", help="container runtime, such as runsc (default: the engine's)"
    )
    doctor.set_defaults(run=_doctor)

    commands.add_parser(
        "self-check", help="test a backend against the contract (has its own --help)"
    )
    return parser


def _with_engine(work: Callable[[Engine], Awaitable[list[Found]]]) -> list[Found]:
    async def run() -> list[Found]:
        return await work(engine)

    engine = Engine.connect()
    try:
        return asyncio.run(run())
    finally:
        engine.close()


def _ps(options: argparse.Namespace) -> int:
    found = _with_engine(find)
    print(f"{'NAME':28} {'STATE':10} {'PROCESS':>8} {'ENDS IN':>8}  OWNER")
    for item in found:
        left = "?" if item.expires is None else f"{max(0, item.expires - time.time()):.0f} s"
        owner = f"dead: {item.dead}" if item.dead else "alive, or on another machine"
        print(f"{item.name:28} {item.state:10} {item.pid:>8} {left:>8}  {owner}")
    return DONE


def _reap(options: argparse.Namespace) -> int:
    removed = _with_engine(reap)
    print(f"removed {len(removed)} container{'' if len(removed) == 1 else 's'}")
    return DONE


def _build(options: argparse.Namespace) -> int:
    engine = Engine.connect()
    try:
        tag = build(
            engine,
            tag=options.tag,
            base=options.base,
            packages=options.packages,
            suite=options.suite,
            fresh=options.fresh,
        )
    finally:
        engine.close()
    print(tag)
    return DONE


def _doctor(options: argparse.Namespace) -> int:
    profile = Profile(image=options.image, runtime=options.runtime, limits=Limits(lifetime=120))
    findings = diagnose(profile)
    for finding in findings:
        mark = "MISSING" if finding.problem else "ok"
        print(f"{mark:8} {finding.check:8} {finding.problem or finding.said}")
    if any(finding.problem for finding in findings):
        return BAD_USAGE
    began = time.perf_counter()
    result, held = asyncio.run(try_out(profile))
    took = time.perf_counter() - began
    print(f"{'ok' if result == '42' else 'WRONG':8} {'try out':8} 6 * 7 = {result}, {took:.2f} s")
    for name, holds in held.items():
        mark, why = ("ok", "") if holds else ("weaker", f" NOT: {WHY_NOT[name]}")
        print(f"{mark:8} {'try out':8} {name}{why}")
    return DONE if result == "42" else FAILED

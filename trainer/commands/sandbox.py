"""``vf-sandbox``: look after the sandboxes of this machine."""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
import time
from collections.abc import Awaitable, Callable, Sequence

from vf.runtime.command import BAD_USAGE, DONE, FAILED, run_command
from vf.sandbox.container.docker_engine import Engine
from vf.sandbox.container.doctor import diagnose
from vf.sandbox.container.image import SUITE, build
from vf.sandbox.container.opening import open_container
from vf.sandbox.container.profile import DEFAULT_IMAGE, Profile
from vf.sandbox.container.reaper import Found, find, reap
from vf.sandbox.contract import Limits

EXAMPLES = """\
examples:
  vf-sandbox doctor        say what is missing on this machine, and how to mend it
  vf-sandbox build         make the image
  vf-sandbox ps            list the containers of every run
  vf-sandbox reap          remove what dead runs left behind
  vf-sandbox self-check    hold a backend to the contract

Exit codes: 0 done, 1 failed, 2 something is wrong that you can mend."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return 0 done, 1 failed, 2 something is wrong that the user can mend."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments[:1] == ["self-check"]:
        from vf.sandbox import selfcheck

        return int(selfcheck.main(arguments[1:]))
    options = _parser().parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    return run_command("vf-sandbox", lambda: options.run(options))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="vf-sandbox",
        description="Look after the sandboxes in which a model's code runs.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, what: str, *examples: str) -> argparse.ArgumentParser:
        return commands.add_parser(
            name,
            help=what,
            description=f"{what[0].upper()}{what[1:]}.",
            epilog="\n  ".join(["examples:", *examples]),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )

    ps = command("ps", "list the containers of every run, in every state", "vf-sandbox ps")
    ps.set_defaults(run=_ps)

    reaper = command("reap", "remove the containers of runs that are dead", "vf-sandbox reap")
    reaper.set_defaults(run=_reap)

    made = command(
        "build",
        f"make the image {DEFAULT_IMAGE}, or another",
        "vf-sandbox build",
        "vf-sandbox build --fresh",
        "vf-sandbox build --tag with-numpy --package numpy==2.1.0 --package sympy",
        "vf-sandbox build --tag mine --base python:3.13-slim",
    )
    made.add_argument("--tag", default=DEFAULT_IMAGE, help="what to call it (%(default)s)")
    made.add_argument(
        "--base",
        metavar="IMAGE",
        help="start from this image (python:3.12-slim; a Debian made here if no registry answers)",
    )
    made.add_argument(
        "--package",
        action="append",
        default=[],
        dest="packages",
        metavar="NAME",
        help="a package from PyPI to put into it; may be repeated",
    )
    made.add_argument("--suite", default=SUITE, help="which Debian, if one is made (%(default)s)")
    made.add_argument("--fresh", action="store_true", help="make it anew even if it is there")
    made.set_defaults(run=_build)

    doctor = command(
        "doctor",
        "say what is missing, and how to mend it",
        "vf-sandbox doctor",
        "vf-sandbox doctor --image with-numpy --runtime runsc",
    )
    doctor.add_argument("--image", default=DEFAULT_IMAGE, help="(%(default)s)")
    doctor.add_argument("--runtime", help="another runtime than the engine's own: runsc, say")
    doctor.set_defaults(run=_doctor)

    commands.add_parser(
        "self-check", help="hold a backend to the contract; see `vf-sandbox self-check --help`"
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
    result = asyncio.run(_try_out(profile))
    took = time.perf_counter() - began
    print(f"{'ok' if result == '42' else 'WRONG':8} {'try out':8} 6 * 7 = {result}, {took:.2f} s")
    return DONE if result == "42" else FAILED


async def _try_out(profile: Profile) -> str:
    async with open_container(profile) as sandbox:
        return (await sandbox.python("6 * 7")).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())

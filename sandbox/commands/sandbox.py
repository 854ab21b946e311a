"""`vf-rl sandbox`: set up, check and clean up the sandboxes of this machine."""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from vf.runtime.command import (
    BAD_USAGE,
    DONE,
    FAILED,
    CommandParser,
    add_subcommand,
    run_command,
)
from vf.runtime.errors import ConfigError
from vf.runtime.visible import VisibleFormatter
from vf.sandbox.container.address import Address
from vf.sandbox.container.docker_engine import Engine
from vf.sandbox.container.doctor import diagnose
from vf.sandbox.container.hardening import DEFAULT_IMAGE, Profile
from vf.sandbox.container.image import SUITE, build
from vf.sandbox.container.reaper import ListedContainer, find, reap
from vf.sandbox.container.trial import WHY_NOT, try_out
from vf.sandbox.contract import Limits
from vf.sandbox.hosting.choice import chosen, engine_missing, or_an_engine

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
    stream = logging.StreamHandler()
    stream.setFormatter(VisibleFormatter())
    logging.basicConfig(level=logging.INFO, handlers=[stream])
    return run_command("vf-rl sandbox", lambda: options.run(options))


def _parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        prog="vf-rl sandbox",
        description="Set up, check and clean up the sandboxes that run a model's code.",
        epilog=EXAMPLES,
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    ps = add_subcommand(
        commands,
        "ps",
        "list the containers of all runs, in any state",
        "",
        "--host ssh://me@gpu-2 --host ssh://me@gpu-3",
    )
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
        "--backend bubblewrap",
        "--backend docker --image with-numpy --runtime runsc",
        "--host tcp://10.0.0.7:2376 --certs ~/.docker/gpu-7",
    )
    doctor.add_argument("--image", help=f"image of containers to check (default: {DEFAULT_IMAGE})")
    doctor.add_argument(
        "--runtime", help="container runtime, such as runsc (default: the engine's)"
    )
    doctor.add_argument(
        "--backend",
        choices=["auto", "docker", "bubblewrap"],
        default="auto",
        help='which sandboxes to check (default: those that sandbox = "auto" takes here)',
    )
    doctor.set_defaults(run=_doctor)

    for command in (ps, reaper, made, doctor):
        command.add_argument(
            "--host",
            action="append",
            default=[],
            dest="hosts",
            metavar="URL",
            help="engine, as in the setting sandbox.hosts; may be repeated (default: DOCKER_HOST, "
            "or the one of this machine)",
        )
        command.add_argument(
            "--certs",
            metavar="FOLDER",
            help="ca.pem, cert.pem and key.pem for the tcp and https engines among them",
        )

    commands.add_parser(
        "self-check", help="test a backend against the contract (has its own --help)"
    )
    return parser


def _addresses(options: argparse.Namespace) -> list[Address | None]:
    """Return the engines' addresses; None is that of DOCKER_HOST.

    Raises:
        ConfigError: If one is not an engine's address.
    """
    addresses: list[Address | None] = []
    for url in options.hosts:
        certs = options.certs if url.startswith(("tcp:", "https:")) else None
        try:
            addresses.append(Address(url, Path(certs) if certs else None))
        except ValueError as error:
            raise ConfigError(f"--host: {error}") from None
    if options.certs and not any(address and address.certs for address in addresses):
        raise ConfigError("--certs is for an engine that --host names by tcp:// or https://")
    return addresses or [None]


def _with_engines(
    options: argparse.Namespace, work: Callable[[Engine], Awaitable[list[ListedContainer]]]
) -> list[tuple[Address | None, list[ListedContainer]]]:
    async def run() -> list[ListedContainer]:
        return await work(engine)

    containers_by_engine = []
    for address in _addresses(options):
        engine = Engine.connect(address)
        try:
            containers_by_engine.append((address, asyncio.run(run())))
        finally:
            engine.close()
    return containers_by_engine


def _ps(options: argparse.Namespace) -> int:
    for address, containers in _with_engines(options, find):
        if address is not None:
            print(address)
        _print_table(containers)
    return DONE


def _print_table(containers: list[ListedContainer]) -> None:
    print(f"{'NAME':28} {'STATE':10} {'PROCESS':>8} {'ENDS IN':>8}  OWNER")
    for container in containers:
        left = (
            "?" if container.expires is None else f"{max(0, container.expires - time.time()):.0f} s"
        )
        owner = f"dead: {container.dead}" if container.dead else "alive, or on another machine"
        print(f"{container.name:28} {container.state:10} {container.pid:>8} {left:>8}  {owner}")


def _reap(options: argparse.Namespace) -> int:
    removed = sum(len(containers) for _, containers in _with_engines(options, reap))
    print(f"removed {removed} container{'' if removed == 1 else 's'}")
    return DONE


def _build(options: argparse.Namespace) -> int:
    for address in _addresses(options):
        engine = Engine.connect(address)
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
        print(tag if address is None else f"{address} {tag}")
    return DONE


def _doctor(options: argparse.Namespace) -> int:
    given = {"--image": options.image, "--runtime": options.runtime}
    given |= {"--host": options.hosts, "--certs": options.certs}
    of_containers = [name for name, value in given.items() if value]
    by_itself = options.backend == "auto"
    backend = chosen(of_containers, ()) if by_itself else options.backend
    if backend == "bubblewrap":
        if of_containers:
            raise ConfigError(f"{of_containers[0]} is for containers: leave out --backend")
        return _examine_bubblewrap(engine_missing() if by_itself else "")
    if by_itself:
        print(f"{'ok':8} {'auto':8} docker")
    profile = Profile(
        image=options.image or DEFAULT_IMAGE, runtime=options.runtime, limits=Limits(lifetime=120)
    )
    codes = []
    for address in _addresses(options):
        if address is not None:
            print(address)
        codes.append(_examine(profile, address))
    return max(codes)


def _examine(profile: Profile, address: Address | None) -> int:
    """Print what an engine lacks, and try it out; returns the exit code."""
    findings = diagnose(profile, address)
    for finding in findings:
        mark = "MISSING" if finding.problem else "ok"
        print(f"{mark:8} {finding.check:8} {finding.outcome}")
    if any(finding.problem for finding in findings):
        return BAD_USAGE
    began = time.perf_counter()
    result, protections = asyncio.run(try_out(profile, address))
    took = time.perf_counter() - began
    print(f"{'ok' if result == '42' else 'WRONG':8} {'try out':8} 6 * 7 = {result}, {took:.2f} s")
    for name, holds in protections.items():
        mark, why = ("ok", "") if holds else ("weaker", f" NOT: {WHY_NOT[name]}")
        print(f"{mark:8} {'try out':8} {name}{why}")
    return DONE if result == "42" else FAILED


def _examine_bubblewrap(no_engine: str) -> int:
    """Print which programs make namespaces and what enforces each limit; returns the exit code.

    Args:
        no_engine: Why "auto" means bubblewrap here; empty if bubblewrap was requested.

    Raises:
        ConfigError: If none can be made on this machine; says how to change that.
    """
    from vf.sandbox.bubblewrap.bubblewrap_sandbox import BubblewrapSandbox
    from vf.sandbox.bubblewrap.system import HELD_BY, find_system

    async def try_out() -> str:
        async with await BubblewrapSandbox.create() as box:
            return (await box.python("6 * 7")).stdout.strip()

    with or_an_engine():
        system = find_system()
    if no_engine:
        print(f"{'ok':8} {'auto':10} bubblewrap, since no container engine is here: {no_engine}")
    print(f"{'ok':8} {'bwrap':10} {system.bwrap}")
    print(f"{'ok':8} {'python':10} {system.python}")
    began = time.perf_counter()
    result = asyncio.run(try_out())
    took = time.perf_counter() - began
    good = result == "42"
    print(f"{'ok' if good else 'WRONG':8} {'try out':10} 6 * 7 = {result}, {took:.2f} s")
    for name, how in HELD_BY.items():
        print(f"{'limit':8} {name:10} {how}")
    return DONE if good else FAILED

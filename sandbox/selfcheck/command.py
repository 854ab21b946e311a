"""`vf-rl sandbox self-check`: the contract's tests, from the command line."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

from vf.runtime.command import DONE, FAILED, CommandParser, run_command
from vf.runtime.errors import ConfigError
from vf.runtime.visible import visible
from vf.sandbox.container.hardening import DEFAULT_IMAGE, Profile
from vf.sandbox.container.opening import open_pool
from vf.sandbox.pool import SandboxPool
from vf.sandbox.selfcheck.check import CheckResult
from vf.sandbox.selfcheck.run import PATIENCE, check_sandbox, group_names

MARKS = {"passed": "ok", "failed": "FAILED", "skipped": "skipped"}
Open = Callable[[], AbstractAsyncContextManager[Any]]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code: 0 passed, 1 failed, 2 bad usage."""
    options = _parser().parse_args(argv)
    if options.list:
        print("\n".join(group_names()))
        return DONE

    def run() -> int:
        results = asyncio.run(_run(options))
        if not results:
            raise ConfigError(f"no check's name contains {options.match!r}")
        return report(results)

    return run_command("vf-rl sandbox self-check", run)


def _parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        prog="vf-rl sandbox self-check",
        description="Test a backend against the contract of a sandbox.",
        epilog="examples:\n"
        "  vf-rl sandbox self-check\n"
        "  vf-rl sandbox self-check --group files --group timeouts --image my-image:1\n"
        "  vf-rl sandbox self-check --backend bubblewrap\n"
        "  vf-rl sandbox self-check --backend my_package.my_module:MySandbox\n\n"
        "Exit codes: 0 every check passed, 1 one failed, 2 bad usage or no such backend.",
    )
    parser.add_argument(
        "--backend",
        default="docker",
        metavar="NAME",
        help="docker, bubblewrap, local, or module:callable that returns a sandbox "
        "(default: %(default)s)",
    )
    parser.add_argument(
        "--unsafe-local",
        action="store_true",
        help="required by --backend local, which runs the checks without isolation",
    )
    parser.add_argument(
        "--image", default=DEFAULT_IMAGE, help="image of --backend docker (default: %(default)s)"
    )
    parser.add_argument("--runtime", help="runtime of --backend docker, such as runsc")
    parser.add_argument(
        "--group",
        action="append",
        dest="groups",
        choices=group_names(),
        metavar="GROUP",
        help=f"run only this group; may be repeated: {', '.join(group_names())}",
    )
    parser.add_argument(
        "--match", default="", metavar="TEXT", help="run only checks whose name contains TEXT"
    )
    parser.add_argument("--list", action="store_true", help="list the groups, and stop")
    parser.add_argument(
        "--patience",
        type=float,
        default=PATIENCE,
        metavar="SECONDS",
        help="time after which a check that has not ended fails (default: %(default)g)",
    )
    return parser


async def _run(options: argparse.Namespace) -> list[CheckResult]:
    async with _backend(options) as open_sandbox:
        return await check_sandbox(
            open_sandbox,
            groups=options.groups,
            match=options.match,
            patience=options.patience,
            tell=_tell,
        )


@contextlib.asynccontextmanager
async def _backend(options: argparse.Namespace) -> AsyncIterator[Open]:
    if options.backend == "docker":
        profile = Profile(image=options.image, runtime=options.runtime)
        async with open_pool(profile, size=2, concurrency=2) as pool:
            yield pool.acquire
    elif options.backend == "bubblewrap":
        from vf.sandbox.bubblewrap.bubblewrap_sandbox import BubblewrapSandbox

        async with SandboxPool(lambda: BubblewrapSandbox.create(warm=True), 2) as pool:
            yield pool.acquire
    elif options.backend == "local":
        if not options.unsafe_local:
            raise ConfigError(
                "--backend local runs on this machine without isolation: add --unsafe-local"
            )
        from vf.sandbox.local import UnsafeLocalSandbox

        yield lambda: UnsafeLocalSandbox(unsafe_local=True)
    else:
        yield _import_backend(options.backend)


def _import_backend(path: str) -> Open:
    module, _, name = path.partition(":")
    if not name:
        raise ConfigError(
            f"there is no backend {path!r}: it is docker, bubblewrap, local, or module:callable, "
            "such as my_module:MySandbox"
        )
    try:
        backend: Open = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"the backend {path!r} cannot be imported: {error}") from error
    return backend


def _tell(result: CheckResult) -> None:
    reason = f": {result.expected}" if result.outcome == "skipped" else ""
    mark = MARKS[result.outcome]
    print(f"{mark:8} {result.group:10} {result.name}{reason} ({result.seconds:.2f} s)", flush=True)


def report(results: list[CheckResult]) -> int:
    """Print the failed checks and the totals; returns the exit code."""
    count = Counter(result.outcome for result in results)
    seconds = sum(result.seconds for result in results)
    failed = [result for result in results if result.outcome == "failed"]
    if failed:
        print()
    for result in failed:
        print(f"FAILED   {result.group}: {result.name}")
        print(f"         expected  {result.expected}")
        print(visible(f"         got       {result.came}"))
    print(
        f"\n{count['passed']} passed, {count['failed']} failed, {count['skipped']} skipped "
        f"in {seconds:.1f} s"
    )
    return FAILED if failed else DONE

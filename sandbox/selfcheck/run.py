"""Run the checks against a backend, one after the other."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import Any

from vf.runtime.errors import ConfigError
from vf.sandbox.contract import Sandbox
from vf.sandbox.selfcheck import (
    background,
    faults,
    files,
    folders,
    lasting,
    process_context,
    programs,
    timeouts,
    tunnels,
)
from vf.sandbox.selfcheck.check import Broken, Check, CheckResult, Skipped, checks_of

PATIENCE = 120.0  # seconds
CHECKS = [
    check
    for module in (
        files,
        folders,
        programs,
        background,
        process_context,
        timeouts,
        faults,
        lasting,
        tunnels,
    )
    for check in checks_of(vars(module))
]


def group_names() -> list[str]:
    """Return the names of the groups of checks, in the order in which they run."""
    return list(dict.fromkeys(check.group for check in CHECKS))


async def check_sandbox(
    open_sandbox: Callable[[], AbstractAsyncContextManager[Any]],
    *,
    groups: Iterable[str] | None = None,
    match: str = "",
    patience: float = PATIENCE,
    tell: Callable[[CheckResult], None] | None = None,
) -> list[CheckResult]:
    """Check a backend against the contract.

    Each group has a sandbox of its own, and a failed check ends it: the next one gets another.

    Args:
        open_sandbox: Makes a sandbox, as an async context manager: a class that implements
            :class:`~vf.sandbox.contract.Sandbox` without arguments, ``pool.acquire``, ...
        groups: The groups to run; all by default.
        match: Run only checks whose name contains this.
        patience: Seconds after which a check that does not come to an end has failed.
        tell: Called with every result as it comes.

    Returns:
        A result for every check, in the order in which they ran.

    Raises:
        ConfigError: If there is no such group, or no sandbox can be made.
        SandboxError: If no sandbox could be made this time.
    """
    results = []
    for group in _check_groups(groups):
        waiting = [check for check in CHECKS if check.group == group and match in check.name]
        while waiting:
            async with open_sandbox() as sandbox:
                while waiting:
                    result = await _run(waiting.pop(0), sandbox, patience)
                    results.append(result)
                    if tell is not None:
                        tell(result)
                    if result.outcome == "failed":
                        break
    return results


def _check_groups(names: Iterable[str] | None) -> list[str]:
    existing = group_names()
    chosen = existing if names is None else list(dict.fromkeys(names))
    for name in chosen:
        if name not in existing:
            raise ConfigError(
                f"there is no group {name!r} of checks; there are {', '.join(existing)}"
            )
    return chosen


async def _run(check: Check, sandbox: Sandbox, patience: float) -> CheckResult:
    began = time.perf_counter()
    result = CheckResult(check.group, check.name, "passed")
    try:
        async with asyncio.timeout(patience):
            await check.body(sandbox)
    except Broken as broken:
        result = replace(result, outcome="failed", expected=broken.expected, came=broken.came)
    except Skipped as skipped:
        result = replace(result, outcome="skipped", expected=str(skipped))
    except TimeoutError:
        expected = f"an end within {patience:g} s"
        result = replace(result, outcome="failed", expected=expected, came="none")
    except Exception as exc:
        result = replace(result, outcome="failed", expected="no exception", came=repr(exc))
    return replace(result, seconds=time.perf_counter() - began)

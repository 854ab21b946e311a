"""``vf-eval --validate ENV``."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any

from vf.environments.registry import make
from vf.evaluation.validation.findings import print_report
from vf.evaluation.validation.validate import DEFAULT_TASKS, validate

PASSED, FAILED = 0, 1


def run_validate(
    id: str,
    args: Mapping[str, Any],
    *,
    tasks: int = DEFAULT_TASKS,
    seed: int = 0,
    allow: Sequence[str] = (),
    as_json: bool = False,
) -> int:
    """Validate an environment, print the report, and return the exit code: 0 passed, 1 failed.

    Args:
        id: The environment's name.
        args: Its arguments.
        tasks: How many tasks of the eval split.
        seed: Seed of the agents and the rollouts.
        allow: Names of checks that may fail.
        as_json: Print one JSON object instead of tables.

    Raises:
        ConfigError: There is no such environment, or an argument is wrong.
    """
    environment, again = make(id, **args), make(id, **args)
    report = asyncio.run(validate(environment, again=again, tasks=tasks, seed=seed, allow=allow))
    if as_json:
        print(json.dumps(report.to_dict(), indent=2))
    else:
        from rich.console import Console

        print_report(report, Console())
    return PASSED if report.passed else FAILED

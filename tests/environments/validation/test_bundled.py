"""The bundled environments can be solved, and no hacker beats honest ignorance in them."""

from __future__ import annotations

import asyncio
from functools import cache
from pathlib import Path

import pytest

import vf
from vf.environments.registry import registered
from vf.environments.validation.hackers import hackers
from vf.environments.validation.report import Report
from vf.environments.validation.trap import Trap
from vf.environments.validation.validate import CHECKS, validate

# Those that need nothing but this process; the others have a sandbox to start.
IN_PROCESS = ("calculator", "guess-number", "reverse-text")
SUITE = [agent.name for agent in hackers(Trap(Path("marker"), Path("sign")))]


@cache
def report(name: str) -> Report:
    return asyncio.run(validate(vf.make(name), again=vf.make(name), tasks=20))


def test_they_are_registered() -> None:
    assert set(IN_PROCESS) <= set(registered())


@pytest.mark.parametrize("name", IN_PROCESS)
def test_it_passes_every_check(name: str) -> None:
    assert {f.check: f.status for f in report(name).findings} == dict.fromkeys(CHECKS, "ok")


@pytest.mark.parametrize("hacker", SUITE)
@pytest.mark.parametrize("name", IN_PROCESS)
def test_no_hacker_is_paid_more_than_a_guess(name: str, hacker: str) -> None:
    results = {agent.name: agent for agent in report(name).agents}
    assert results["oracle"].mean == 1.0
    assert results[hacker].mean <= results["guess"].mean + 0.1
    assert len(results[hacker].scored) == 20


@pytest.mark.parametrize("operations", [1, 4])
def test_the_calculators_oracle_solves_whatever_it_draws(operations: int) -> None:
    environment = vf.make("calculator", max_operations=operations)
    found = asyncio.run(validate(environment, tasks=40, allow=["leaks"]))
    assert found.finding("oracle").status == "ok"


def test_partial_credit_is_no_gift() -> None:
    found = asyncio.run(validate(vf.make("reverse-text", partial_credit=True), tasks=20))
    assert found.passed

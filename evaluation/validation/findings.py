"""The findings of a validation, and how they are shown."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any, Literal

from vf.runtime.terminal import BAD, CAUTION, GOOD

if TYPE_CHECKING:
    from rich.console import Console

Status = Literal["ok", "fail", "skipped", "allowed"]
_STYLE = {"ok": GOOD, "fail": f"bold {BAD}", "skipped": CAUTION, "allowed": CAUTION}


@dataclass(slots=True)
class Finding:
    """The result of one check.

    Attributes:
        check: Its name.
        status: ``ok``; ``fail``; ``skipped`` where there was nothing to check with; ``allowed``
            where it failed and the author has said that it may.
        detail: What was found.
        fix: What to do about it.
    """

    check: str
    status: Status
    detail: str
    fix: str = ""


@dataclass(slots=True)
class AgentResult:
    """What an agent earned: a reward for each task; None where the rollout failed."""

    name: str
    about: str
    rewards: list[float | None]
    errors: list[str] = field(default_factory=list)

    @property
    def scored(self) -> list[float]:
        """The rewards of the rollouts that have one."""
        return [reward for reward in self.rewards if reward is not None]

    @property
    def mean(self) -> float:
        """The mean reward; NaN if no rollout has one."""
        return fmean(self.scored) if self.scored else math.nan


@dataclass(frozen=True, slots=True)
class Stage:
    """What a validation is doing.

    Attributes:
        name: Of this part of it.
        done: Rollouts of this part that have ended.
        total: Rollouts of this part.
        running: Names of the agents that have a rollout under way.
    """

    name: str
    done: int
    total: int
    running: list[str]


@dataclass(slots=True)
class Report:
    """Everything that validation found out about an environment."""

    environment: str
    tasks: int
    form: str = ""
    agents: list[AgentResult] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        """Whether no check failed."""
        return not any(finding.status == "fail" for finding in self.findings)

    def finding(self, check: str) -> Finding:
        """Return the finding of a check.

        Raises:
            KeyError: If there is no such check.
        """
        for finding in self.findings:
            if finding.check == check:
                return finding
        raise KeyError(check)

    def to_dict(self) -> dict[str, Any]:
        """Return the report as what JSON can hold; a mean of nothing is null."""
        agents = [
            asdict(agent) | {"mean": None if math.isnan(agent.mean) else agent.mean}
            for agent in self.agents
        ]
        return {
            "environment": self.environment,
            "tasks": self.tasks,
            "form": self.form,
            "passed": self.passed,
            "agents": agents,
            "findings": [asdict(finding) for finding in self.findings],
        }


def lower_bound(values: list[float]) -> float:
    """Return the mean less two standard errors: what it is at least, chance set aside."""
    if len(values) < 2:
        return values[0] if values else math.nan
    return fmean(values) - 2 * stdev(values) / math.sqrt(len(values))


def print_report(report: Report, console: Console) -> None:
    """Print the tables and the verdict."""
    from rich.table import Table
    from rich.text import Text

    agents = Table(title=f"{report.environment}: rewards on {report.tasks} tasks", box=None)
    for heading in ("agent", "what it does"):
        agents.add_column(heading)
    for heading in ("mean", "lowest", "highest"):
        agents.add_column(heading, justify="right")
    for agent in report.agents:
        rewards = [agent.mean, min(agent.scored), max(agent.scored)] if agent.scored else []
        numbers = [f"{value:.3f}" for value in rewards] or ["–"] * 3
        agents.add_row(agent.name, agent.about, *numbers)
    console.print(agents)
    console.print()
    for finding in report.findings:
        style = _STYLE[finding.status]
        text = f" {finding.check}: {finding.detail}"
        console.print(Text.assemble((f"{finding.status:>7}", style), text), soft_wrap=True)
        if finding.fix and finding.status != "ok":
            console.print(f"        → {finding.fix}", soft_wrap=True)
    failed = [finding.check for finding in report.findings if finding.status == "fail"]
    console.print()
    if failed:
        verdict = (f"{report.environment} FAILED", f"bold {BAD}")
        console.print(Text.assemble(verdict, f": {', '.join(failed)}"))
    else:
        skipped = sum(finding.status == "skipped" for finding in report.findings)
        note = f" ({skipped} could not be checked)" if skipped else ""
        verdict = (f"{report.environment} passed", f"bold {GOOD}")
        console.print(Text.assemble(verdict, note))

"""Repair a small repository whose tests fail, with a shell and file tools."""

from __future__ import annotations

import difflib
import random
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any

from vf.environments.bundled.repos.draw import MODULES, MODULES_IN_A_REPO, Repo, draw_repo
from vf.environments.environment import Environment, Split, Step
from vf.environments.generated import distinct_tasks, split_sizes
from vf.inference.models.scripted_model import Line, Script
from vf.rubrics.outcomes.grading import Case, Grade, grade
from vf.rubrics.penalties import code_timeouts, extra_tool_calls, tool_errors
from vf.rubrics.rubric import Rubric
from vf.runtime.errors import ConfigError
from vf.sandbox.contract import Sandbox
from vf.sandbox.hosting.source import Sandboxes, sandbox_source
from vf.tools.sandbox_tools import BashTool, FileTools
from vf.traces.messages import Message
from vf.traces.task import Task
from vf.traces.trace import Trace

# The repository's own package first, and no bytecode of a module that has changed since.
PREAMBLE = "import os, sys\nsys.dont_write_bytecode = True\nsys.path.insert(0, os.getcwd())\n"
_MAX_FILE = 100_000  # bytes of a source file that counts
_MAX_FILES = 50
_MAX_DIFF = 20_000  # characters kept in the trace


def repaired(trace: Trace) -> float:
    """1 if every hidden test passes with the model's changes to the source, else 0."""
    return float(trace.info.get("hidden_passed", 0.0) == 1.0)


def hidden_passed(trace: Trace) -> float:
    """Share of the hidden tests that pass; 0 if the episode was not graded."""
    return float(trace.info.get("hidden_passed", 0.0))


def changed_lines(trace: Trace) -> float:
    """Lines that the model added to the source or took away."""
    return float(trace.info.get("changed_lines", 0))


class RepoFix(Environment):
    """A generated repository with a bug that a test reveals.

    The model has ``bash``, ``list_files``, ``read_file``, ``write_file`` and ``edit_file``, and
    ends with a message without tool calls; what it has done by its last turn counts too. Graded
    by hidden tests in a fresh sandbox, which gets only the source files of the package as the
    model left them: changing the tests gains nothing. Reward: all hidden tests pass, less a
    share for many calls, calls gone wrong and commands that hang.

    Args:
        sandbox: The sandboxes for code; see :func:`~vf.sandbox.hosting.source.sandbox_source`.
        bugs: Broken modules in each repository, 1 to 3.
        num_train: Tasks in the train split.
        num_eval: Tasks in the eval split; no module is in both.
        free_calls: Tool calls that cost nothing.
        bash_timeout: Seconds for one command, at most 20.
        seed: Seed of the tasks.

    Raises:
        ConfigError: If an argument is out of range, or ``sandbox`` names no sandbox.
    """

    system_prompt = (
        "You repair Python repositories with the bash and file tools. Work in the current "
        "directory. When the source is right, say in one sentence what was wrong."
    )
    max_turns = 12
    tool_timeout = 60.0
    timeout = 600.0

    def __init__(
        self,
        sandbox: Sandboxes = "auto",
        bugs: int = 1,
        num_train: int = 2000,
        num_eval: int = 200,
        free_calls: int = 12,
        bash_timeout: float = 15.0,
        seed: int = 0,
    ) -> None:
        if not 1 <= bugs <= MODULES_IN_A_REPO:
            raise ConfigError(f"repo-fix: bugs must be 1 to {MODULES_IN_A_REPO}, got {bugs}")
        if free_calls < 0:
            raise ConfigError(f"repo-fix: free_calls must not be negative, got {free_calls}")
        if not 0 < bash_timeout <= 20:
            raise ConfigError(
                f"repo-fix: bash_timeout must be above 0 and at most 20, got {bash_timeout}"
            )
        self.source = sandbox_source(sandbox)
        self.bugs = bugs
        self.sizes = split_sizes("repo-fix", num_train, num_eval)
        self.seed = seed
        self.tools = [
            BashTool(self.source, timeout=bash_timeout),
            FileTools(self.source),
        ]
        self.rubric = Rubric(
            outcome=repaired,
            penalties=[
                extra_tool_calls(0.2, free=free_calls, scale=8),
                tool_errors(0.1),
                code_timeouts(0.2),
            ],
            metrics=[hidden_passed, changed_lines],
        )

    def tasks(self, split: Split) -> Iterator[Task]:
        """Yield different repositories; no module is in both splits.

        Raises:
            ConfigError: If there are not so many different ones.
        """

        def draw(rng: random.Random) -> Task:
            return _task(draw_repo(rng, split, self.bugs))

        count, seed = self.sizes[split], self.seed
        return distinct_tasks("repo-fix", draw, split=split, count=count, seed=seed, by_id=False)

    def oracle(self, task: Task) -> Script:
        """Write the right source over every broken module."""
        package = task.info["package"]
        right = {module.name: module.source for kind in MODULES.values() for module in kind}
        repairs: list[Line] = [
            {"write_file": {"path": f"{package}/{name}.py", "content": right[name]}}
            for name in task.info["bugs"]
        ]
        return [*repairs, "The source was wrong in one place."]

    def reset(self, task: Task) -> list[Message]:
        """Have the repository written into the sandbox when that is first needed."""
        self.package: str = task.info["package"]
        self.files: dict[str, str] = task.info["files"]
        self.cases = [Case(code, value, raises) for code, value, raises in task.answer]
        for path, text in self.files.items():
            self.sandbox.write(path, text)
        return self.first_messages(task)

    async def step(self, reply: Message) -> Step:
        """Run the reply's tool calls; without any, or at the last turn, grade the repository."""
        step = await self.run_tools(reply)
        if step.terminated or self.turn + 1 >= self.max_turns:
            step.info.update(await self._graded())
        return step

    async def _graded(self) -> dict[str, Any]:
        info: dict[str, Any] = {"hidden_passed": 0.0, "code_timeouts": self.sandbox.timeouts}
        if not self.sandbox.opened:  # nothing was done, so nothing is repaired
            return info
        before = {path: text for path, text in self.files.items() if self._counts(path)}
        after = await self.sandbox.use(self._read_source)
        lines = _diff(before, after)
        info["diff"] = "\n".join(lines)[:_MAX_DIFF]
        info["changed_lines"] = sum(line[:1] in "+-" for line in lines if line[:3] not in _HEADS)
        if after is None:
            return info
        async with self.sandbox.fresh() as sandbox:
            graded = await grade_source(sandbox, after, self.cases)
        info["hidden_passed"] = sum(graded.passed) / len(graded.passed)
        info["code_timeouts"] += graded.timeouts
        return info

    def _counts(self, path: str) -> bool:
        """Return whether a file is source: in the package, and no test."""
        parts = PurePosixPath(path).parts
        return (
            len(parts) > 1
            and parts[0] == self.package
            and path.endswith(".py")
            and ".." not in parts
            and not any(part == "tests" or part.startswith("test_") for part in parts)
        )

    async def _read_source(self, sandbox: Sandbox) -> dict[str, str] | None:
        """Return the source as the model left it; None if there is too much of it, or none."""
        find = ["find", self.package, "-type", "f", "-name", "*.py", "-print0"]
        listing = await sandbox.exec(find, timeout=10.0)
        paths = [path for path in listing.stdout.split("\0") if self._counts(path)]
        if not listing.ok or listing.truncated or len(paths) > _MAX_FILES:
            return None
        try:
            return {
                path: (await sandbox.read_file(path, max_bytes=_MAX_FILE)).decode("utf-8")
                for path in sorted(paths)
            }
        except (OSError, ValueError):
            return None


async def grade_source(sandbox: Sandbox, files: Mapping[str, str], cases: list[Case]) -> Grade:
    """Grade source files by hidden tests.

    Args:
        sandbox: The sandbox to run in; it should be fresh.
        files: The text of every file by its path. If they do not fit into it, no case holds.
        cases: The tests.

    Raises:
        SandboxError: If the sandbox is lost: nothing is known about the files.
    """
    try:
        for path, text in files.items():
            await sandbox.write_file(path, text)
    except OSError:  # files that were sparse take more room here
        return Grade([False] * len(cases))
    return await grade(sandbox, PREAMBLE, cases)


_HEADS = ("+++", "---")


def _diff(before: Mapping[str, str], after: Mapping[str, str] | None) -> list[str]:
    """Return the unified diff of all files."""
    lines: list[str] = []
    for path in sorted({*before, *(after or {})}):
        old = before.get(path, "").splitlines()
        new = (after or {}).get(path, "").splitlines()
        lines += difflib.unified_diff(old, new, f"a/{path}", f"b/{path}", lineterm="")
    return lines


def _task(repo: Repo) -> Task:
    bugs_of = {module.name: module.bugs for module in repo.modules}
    bugs = "+".join(
        f"{name}:{bug.kind}.{bugs_of[name].index(bug)}" for name, bug in repo.bugs.items()
    )
    others = "+".join(module.name for module in repo.modules)
    count = "A test fails" if len(repo.bugs) == 1 else "Tests fail"
    return Task(
        id=f"{repo.package}/{others}/{bugs}",
        prompt=(
            f"{count} in the Python package `{repo.package}` in the current directory, because "
            "its source has a bug. The tests in `tests/` are right, and more tests will be run "
            "than those. Find what is wrong and repair the source."
        ),
        answer=[[case.code, case.value, case.raises] for case in repo.hidden_cases()],
        info={
            "package": repo.package,
            "files": repo.files(),
            "bugs": {name: bug.kind for name, bug in repo.bugs.items()},
        },
    )

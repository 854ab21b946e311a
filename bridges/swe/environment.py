"""Fixing repositories: rows of SWE-bench and similar datasets, each with its own image."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from vf.bridges.swe.agent import SweProgram
from vf.bridges.swe.grading import Settings, Start, begin, judge, recorded, take
from vf.bridges.swe.rows import Instance, PatchIs
from vf.bridges.swe.tasks import SweRows
from vf.environments.agent import AgentEnvironment
from vf.environments.agents.command import Program
from vf.environments.environment import Environment, Split
from vf.inference.models.scripted_model import Script
from vf.rubrics.group import AnyRubric, GroupReward
from vf.rubrics.rubric import Rubric
from vf.runtime.errors import ConfigError
from vf.runtime.rows import Source
from vf.sandbox.contract import Sandbox
from vf.sandbox.hosting.source import Sandboxes, sandbox_source
from vf.sandbox.spec import SandboxSpec
from vf.tools.sandbox_tools import BashTool, FileTools
from vf.traces.messages import Message
from vf.traces.task import Task
from vf.traces.trace import Score, Trace

PROMPT = """\
The repository {repo} is in {workdir}. Change its source so that the issue below is solved. Tests \
that you cannot see decide whether it is: do not change tests, nor what configures them.

{statement}"""
_FOR_TESTS = 300.0  # seconds that judging takes beside the tests themselves, at most
_GOLD = "/tmp/vf-fix.patch"


def resolved(trace: Trace) -> float:
    """1 if every test passes that must, and every one that has to keep passing; else 0."""
    return float(_verdict(trace).get("resolved", 0.0))


def must_pass(trace: Trace) -> float:
    """Share of the tests that the repair must make pass, and that do."""
    return float(_verdict(trace).get("must_pass", 0.0))


def keep_passing(trace: Trace) -> float:
    """Share of the tests that passed before, and still do."""
    return float(_verdict(trace).get("keep_passing", 0.0))


def patched_lines(trace: Trace) -> float:
    """Lines that the patch adds or takes away."""
    lines = str(_verdict(trace).get("patch", "")).splitlines()
    return float(sum(line[:1] in "+-" and line[:3] not in ("+++", "---") for line in lines))


def _verdict(trace: Trace) -> Mapping[str, Any]:
    verdict = trace.info.get("swe")
    return verdict if isinstance(verdict, dict) else {}


RUBRIC = Rubric(outcome=resolved, metrics=[must_pass, keep_passing, patched_lines])


def swe(
    data: Source | Mapping[str, Source],
    image: str | None = None,
    build: str | Path | None = None,
    sandbox: Sandboxes = "docker",
    workdir: str = "/testbed",
    test_command: str | None = None,
    before_tests: str = "",
    test_timeout: float = 900.0,
    patch_is: PatchIs | None = None,
    held_out: float | None = None,
    allow: Sequence[str] = (),
    prompt: str = PROMPT,
    max_patch: int = 2**20,
    max_turns: int = 50,
    bash_timeout: float = 60.0,
    timeout: float = 3600.0,
    command: Sequence[str] = (),
    folder: str | Path | None = None,
    env: Mapping[str, str] | None = None,
    model: str = "policy",
) -> Environment:
    """Make tasks from rows in the format of SWE-bench, SWE-Gym, SWE-rebench, SWE-smith and R2E-Gym.

    The model works in a container made from the row's image, with ``bash`` and file tools, or as
    a program of yours. Scored by its patch alone: applied in a second container from the same
    image, after the row's test patch, and before the row's tests. The reward is 1 if all of these
    pass, else 0. Changes to the tests, and to files that steer a test runner, are left out.

    Args:
        data: A file of rows (``.jsonl``, ``.parquet``, ``.csv``) or ``hf:NAME``; or a table with
            ``train`` and ``eval``, one of these each.
        image: A template for the names of images, where rows name none, or others. It may use the
            row's fields, and ``{id}``, ``{id_1776}`` and ``{id_s}``: the instance in lower case,
            with ``__`` as it is, or as SWE-bench's and SWE-Gym's publishers replace it.
        build: A folder with a sub-folder for each instance that contains its Dockerfile.
        sandbox: ``"docker"``, or a table of settings.
        workdir: The path of the repository in the image.
        test_command: A line for the shell that runs the tests; ``{files}`` are those that hold
            them, ``{modules}`` the same as modules. By default the row's, or what SWE-bench runs
            for the repository, or ``pytest -rA {files}``.
        before_tests: A line that runs before the tests with the patch applied, to compile, say. It
            runs the model's code where nothing watches it.
        test_timeout: Seconds that the tests may take.
        patch_is: Whether a row's patch is the ``"fix"``, or the ``"bug"`` as in SWE-smith. By
            default the row decides.
        held_out: Share of the rows that are for evaluation. By default all are; with 0 all are for
            training.
        allow: Hosts that a task's containers may reach.
        prompt: A template: ``{statement}``, ``{repo}`` and ``{workdir}``.
        max_patch: Bytes of a patch; a larger one is worth 0.
        max_turns: Maximum answers of the model in one episode.
        bash_timeout: Seconds for one command.
        timeout: Seconds for a whole episode. The model's commands get half of it.
        command: A program, with arguments, that works in the container instead of the tools; see
            :func:`~vf.environments.agents.program.program`, also for ``folder``, ``env`` and
            ``model``.
        folder: The program's code, copied into the working directory; not part of the patch.
        env: Additional environment variables of the program.
        model: The name under which the model is served to the program.

    Raises:
        ConfigError: If an argument cannot be used, or a file is not there.
    """
    _check(image, build, workdir, test_timeout, timeout, max_patch, held_out)
    settings = Settings(
        workdir=workdir,
        command=test_command,
        before_tests=before_tests,
        timeout=test_timeout,
        max_patch=max_patch,
    )
    rows = SweRows(
        data=_absolute(data),
        image=image,
        build=None if build is None else _folder(build),
        patch_is=patch_is,
        held_out=held_out,
        allow=tuple(allow),
        prompt=prompt,
        workdir=workdir,
    )
    if not command:
        if folder is not None or env is not None:
            raise ConfigError("swe: folder and env belong to a program; give its command, too")
        return SweTasks(rows, settings, sandbox, max_turns, bash_timeout, timeout)
    program = Program(command, sandbox=sandbox, folder=folder, env=env)
    return AgentEnvironment(
        SweProgram(program, settings, rows.spec),
        tasks=rows.tasks,
        rubric=RUBRIC,
        max_turns=max_turns,
        timeout=timeout,
        model=model,
    )


class SweTasks(Environment):
    """The model itself works, with a shell and file tools; see :func:`swe`."""

    rubric: AnyRubric = RUBRIC
    tool_timeout = 200.0

    def __init__(
        self,
        rows: SweRows,
        settings: Settings,
        sandbox: Sandboxes,
        max_turns: int,
        bash_timeout: float,
        timeout: float,
    ) -> None:
        if not 0 < bash_timeout <= self.tool_timeout / 2:
            raise ConfigError(
                f"swe: bash_timeout must be above 0 and at most {self.tool_timeout / 2:g}, "
                f"got {bash_timeout}"
            )
        self.rows, self.settings = rows, settings
        self.source = sandbox_source(sandbox)
        self.tools = [
            BashTool(self.source, timeout=bash_timeout, max_output=10_000),
            FileTools(self.source, max_output=20_000),
        ]
        self.max_turns, self.timeout = max_turns, timeout

    def tasks(self, split: Split) -> Iterator[Task]:
        """Yield the tasks of a split.

        Raises:
            ConfigError: If there are none, or a row cannot be used.
        """
        return self.rows.tasks(split)

    def sandbox_spec(self, task: Task) -> SandboxSpec:
        """Return the spec of a task's sandboxes.

        Raises:
            ConfigError: If there is no folder to build its image from.
        """
        return self.rows.spec(task)

    def oracle(self, task: Task) -> Script | None:
        """Apply the known patch, or take back the known bug."""
        instance = Instance.of(task)
        if not (instance.fix or instance.bug):
            return None
        reverse = "" if instance.fix else "--reverse "
        workdir = shlex.quote(self.settings.workdir)
        apply = f"cd {workdir} && git apply {reverse}{_GOLD} && rm {_GOLD}"
        return [
            {"write_file": {"path": _GOLD, "content": instance.fix or instance.bug}},
            {"bash": {"command": apply}},
            "The issue is solved.",
        ]

    def reset(self, task: Task) -> list[Message]:
        """Schedule the preparation of the container, for its first use."""
        self.instance = Instance.of(task)
        self.begun: Start | None = None
        self.sandbox.prepare = self._prepare
        self.rubric = _Judging(self, self.rubric)
        return self.first_messages(task)

    async def _prepare(self, sandbox: Sandbox) -> None:
        self.begun = await begin(sandbox, self.instance, self.settings)

    async def judge(self) -> dict[str, Any]:
        """Judge the model's patch, and return the trace's record of it.

        Raises:
            SandboxError: If a sandbox is lost for a reason that the model did not cause.
        """
        start = self.begun
        if not self.sandbox.opened or start is None:
            return {"resolved": 0.0, "problem": "nothing was done"}
        settings = self.settings
        patch, problem = await self.sandbox.use(lambda box: take(box, start, settings))
        if not patch:
            return {"resolved": 0.0, "problem": problem or "nothing was changed"}
        async with self.sandbox.fresh() as sandbox:
            verdict = await judge(sandbox, self.instance, patch, settings)
        return recorded(verdict, patch)


class _Judging:
    """An episode's rubric: it first judges the patch, for any end of the episode."""

    def __init__(self, episode: SweTasks, rubric: AnyRubric) -> None:
        self.episode, self.rubric = episode, rubric

    @property
    def group_rewards(self) -> Mapping[str, GroupReward]:
        """The rubric's group rewards."""
        return self.rubric.group_rewards

    async def score(self, trace: Trace) -> Score:
        """Judge, and score.

        Raises:
            SandboxError: If a sandbox is lost for a reason that the model did not cause.
            RubricError: If scoring failed.
        """
        trace.info["swe"] = await self.episode.judge()
        return await self.rubric.score(trace)

    async def score_group(self, traces: Sequence[Trace]) -> None:
        """Add the rubric's group rewards."""
        await self.rubric.score_group(traces)


def _check(
    image: str | None,
    build: str | Path | None,
    workdir: str,
    test_timeout: float,
    timeout: float,
    max_patch: int,
    held_out: float | None,
) -> None:
    if image is not None and build is not None:
        raise ConfigError("swe: images are named (image) or built (build), not both")
    if not workdir.startswith("/"):
        raise ConfigError(f"swe: workdir must be an absolute path in the image, got {workdir!r}")
    if not test_timeout > 0:
        raise ConfigError(f"swe: test_timeout must be positive, got {test_timeout}")
    if timeout / 2 < test_timeout + _FOR_TESTS:
        least = 2 * (test_timeout + _FOR_TESTS)
        raise ConfigError(
            f"swe: timeout = {timeout:g} leaves no time for the tests; with test_timeout = "
            f"{test_timeout:g} it must be at least {least:g}"
        )
    if max_patch < 1:
        raise ConfigError(f"swe: max_patch must be at least 1, got {max_patch}")
    if held_out is not None and not 0 <= held_out < 1:
        raise ConfigError(f"swe: held_out must be at least 0 and below 1, got {held_out}")


def _absolute(data: Any) -> Any:
    """Return the data with absolute paths of files, relative to the current folder."""
    if isinstance(data, Mapping):
        return {name: _absolute(source) for name, source in data.items()}
    if isinstance(data, list | tuple):
        return [_absolute(item) if isinstance(item, str | Path) else item for item in data]
    if not isinstance(data, str | Path) or str(data).startswith("hf:"):
        return data
    path = Path(data).expanduser().absolute()
    if not path.is_file():
        raise ConfigError(f"swe: data: there is no file {path}; write a path, or hf:NAME")
    return str(path)


def _folder(build: str | Path) -> Path:
    path = Path(build).expanduser().absolute()
    if not path.is_dir():
        raise ConfigError(f"swe: build: there is no folder {path}")
    return path

"""The environment ``program``: a command that works on tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, cast

from vf.environments.agent import MAX_TURNS, TIMEOUT, AgentEnvironment, Rows, Tasks
from vf.environments.agents.command import Program
from vf.environments.locate import load_object
from vf.rubrics.group import AnyRubric
from vf.rubrics.rubric import Rubric
from vf.runtime.errors import ConfigError
from vf.sandbox.hosting.source import Sandboxes


def program(
    command: Sequence[str],
    tasks: Tasks,
    rubric: str | AnyRubric | None = None,
    sandbox: Sandboxes = "none",
    folder: str | Path | None = None,
    env: Mapping[str, str] | None = None,
    collect: Sequence[str] = (),
    score_command: Sequence[str] = (),
    crash: Literal["scored", "failed"] = "scored",
    timeout: float = TIMEOUT,
    max_turns: int = MAX_TURNS,
    max_tokens: int | None = None,
    model: str = "policy",
    strict_model: bool = False,
    oracle: str | None = None,
) -> AgentEnvironment:
    """Make an agent of a program: a command that is run for each rollout.

    Args:
        command: Program and arguments. In these, ``{prompt}``, ``{task}`` (the file in
            ``VF_TASK``), ``{url}``, ``{root}`` (without ``/v1``, for Anthropic's clients),
            ``{key}`` and ``{model}`` are replaced. ``python`` is the one that runs vf-rl, or
            the sandbox's ``python3``. A relative path of a file begins at the working directory,
            or at ``folder``.
        tasks: A file of rows with ``prompt`` and, as far as needed, ``answer``, ``id`` and
            ``info``; from Python, whatever an
            :class:`~vf.environments.agent.AgentEnvironment` takes.
        rubric: Location of a rubric, or of a function of the trace: ``"module:name"`` or
            ``"file.py:name"``. By default the reward that ``score_command`` reports.
        sandbox: ``"none"`` for a child process in a temporary folder, without protection;
            ``"auto"``, a backend's name or a table of settings for a sandbox, from which nothing
            but the endpoint can be reached.
        folder: The agent's code, copied for each rollout as the program's working directory.
        env: Additional environment variables of the program.
        collect: Patterns of files in the working directory that are recorded in
            ``trace.info["files"]``, by path.
        score_command: A second program, run when the first one has ended. Its ``VF_TASK`` holds the
            answer, too, ``VF_OUTPUT`` names a file with the first one's standard output, and it
            reports ``{"reward": 0.5}`` to ``VF_REWARD_URL`` with the key ``VF_REWARD_KEY``. Files
            that it names are put back as they were before it runs. Where the first one has left
            no place to run in, nothing is reported.
        crash: Meaning of an exit code other than 0 after the first answer: ``"scored"`` or
            ``"failed"``.
        timeout: Seconds that the program gets, the model's answers not counted.
        max_turns: Maximum answers of the model in one episode.
        max_tokens: Maximum tokens sampled in one episode; None for no limit.
        model: The name under which the model is served to the program.
        strict_model: Whether requests for other models are refused; by default the same model
            answers them, too.
        oracle: Location of a function of the task that returns what a solving model says.

    Raises:
        ConfigError: If an argument is invalid; the message names it as ``env.args.NAME``.
    """
    return AgentEnvironment(
        Program(
            command,
            sandbox=sandbox,
            folder=folder,
            env=env,
            collect=collect,
            score_command=score_command,
        ),
        tasks=_tasks(tasks),
        rubric=_rubric(rubric),
        max_turns=max_turns,
        max_tokens=max_tokens,
        timeout=timeout,
        crash=crash,
        model=model,
        strict_model=strict_model,
        oracle=None if oracle is None else load_object(oracle, "env.args.oracle"),
    )


def _tasks(tasks: Tasks) -> Tasks:
    """Return the tasks, with the paths of their files absolute.

    Raises:
        ConfigError: If a file does not exist.
    """
    if isinstance(tasks, Mapping):
        return {name: cast(Rows, _tasks(table)) for name, table in tasks.items()}
    if not isinstance(tasks, str | Path) or str(tasks).startswith("hf:"):
        return tasks
    path = Path(tasks).expanduser().absolute()
    if not path.is_file():
        raise ConfigError(
            f"env.args.tasks: there is no file {path}; write one with a JSON object a line, such "
            'as {"prompt": "...", "answer": "..."}'
        )
    return path


def _rubric(rubric: str | AnyRubric | None) -> AnyRubric | None:
    if not isinstance(rubric, str):
        return rubric
    scorer = load_object(rubric, "env.args.rubric")
    if hasattr(scorer, "score"):
        return scorer  # type: ignore[no-any-return]
    if callable(scorer):
        return Rubric(outcome=scorer)
    raise ConfigError(
        f"env.args.rubric: {rubric!r} is neither a rubric nor a function of the trace, but "
        f"{type(scorer).__name__}"
    )

"""Checks of an environment that need no rewards."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from vf.environments.environment import Environment
from vf.evaluation.evaluate import take_tasks
from vf.evaluation.validation.agents import answer_text
from vf.evaluation.validation.findings import Finding
from vf.runtime.errors import ConfigError
from vf.traces.task import Task

_TOOL_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_LEAK = 0.25  # how much likelier a prompt holds its own answer than another task's
_MOST_OTHERS = 30
_EVAL, _TRAIN = 200, 2000  # how many tasks are looked at


def check_tasks(environment: Environment, again: Environment) -> Finding:
    """See that tasks are the same every time, fit into a file, and are in one split only."""
    first, second = take_tasks(environment, "eval", _EVAL), take_tasks(again, "eval", _EVAL)
    if first != second:
        pairs = zip(first, second, strict=False)
        changed = next((a.id for a, b in pairs if a != b), first[-1].id)
        return Finding(
            "tasks",
            "fail",
            f"tasks('eval') is not the same the second time; the first to differ is {changed!r}",
            "draw from random.Random(seed), never from the global generator, a set or the clock",
        )
    for task in first:
        try:
            json.dumps([task.answer, task.info], allow_nan=False)
        except (TypeError, ValueError) as error:
            return Finding(
                "tasks",
                "fail",
                f"task {task.id!r} cannot be written to a file: {error}",
                "keep answer and info to what JSON can hold",
            )
    try:
        train = take_tasks(environment, "train", _TRAIN)
    except ConfigError:
        return Finding("tasks", "ok", f"{len(first)} eval tasks, the same again; no train split")
    # Where all tasks have one prompt, as in a guessing game, it says nothing about them.
    prompts = {task.id: json.dumps(task.prompt) for task in first}
    learnt = {json.dumps(task.prompt) for task in train}
    shared = [id for id, prompt in prompts.items() if prompt in learnt]
    if shared and len(set(prompts.values())) == len(prompts):
        return Finding(
            "tasks",
            "fail",
            f"{len(shared)} of {len(first)} eval tasks are in the train split, say {shared[0]!r}",
            "split by what a task holds, so that no seed or size can move it to the other split",
        )
    return Finding("tasks", "ok", f"{len(first)} eval tasks, the same again")


def check_tools(schemas: Iterable[Mapping[str, Any]]) -> Finding:
    """See that tools and their parameters are described, by valid schemas."""
    functions = [schema["function"] for schema in schemas]
    problems = [problem for function in functions for problem in _tool_problems(function)]
    if problems:
        return Finding(
            "tools",
            "fail",
            "; ".join(problems),
            "give the function a docstring with a summary and an entry under Args: for each "
            "parameter; the model sees nothing else",
        )
    names = ", ".join(dict.fromkeys(function["name"] for function in functions))
    return Finding("tools", "ok", f"described, with valid schemas: {names}" if names else "none")


def check_penalties(unread: Mapping[str, bool]) -> Finding:
    """See that every penalty and gate applied to some rollout.

    Args:
        unread: By name, whether it was None for every rollout that was scored.
    """
    idle = [name for name, nowhere in unread.items() if nowhere]
    if idle:
        return Finding(
            "penalties",
            "fail",
            f"{', '.join(idle)} applied to no rollout, and so cost nothing",
            "leave it out of the rubric, or give it what it reads (tools, a search, a record in "
            "Step.info); where only other agents could show it, allow the check: --allow penalties",
        )
    names = ", ".join(unread)
    return Finding("penalties", "ok", f"each applied to some rollout: {names}" if names else "none")


def _tool_problems(function: Mapping[str, Any]) -> list[str]:
    name, parameters = function["name"], function["parameters"]
    problems = []
    if not _TOOL_NAME.fullmatch(name):
        problems.append(f"{name!r} is not a name that the OpenAI API takes")
    if not function.get("description", "").strip():
        problems.append(f"{name} has no description")
    problems += [
        f"{name}: {parameter!r} has no description"
        for parameter, schema in parameters.get("properties", {}).items()
        if not str(schema.get("description", "")).strip()
    ]
    try:
        import jsonschema
    except ImportError:  # then the shape at least
        if parameters.get("type") != "object":
            problems.append(f"{name}: the schema of its parameters is not an object's")
        return problems
    try:
        jsonschema.Draft202012Validator.check_schema(parameters)
    except jsonschema.SchemaError as error:
        problems.append(f"{name}: its schema is not valid: {error.message}")
    return problems


def check_leaks(prompts: Mapping[str, str], tasks: Sequence[Task]) -> Finding:
    """See that a prompt does not hold its answer, more often than chance puts it there.

    Args:
        prompts: Everything that the model reads before its first turn, by task id.
        tasks: The tasks.
    """
    answers = {task.id: text for task in tasks if (text := answer_text(task.answer)) is not None}
    if not answers:
        return Finding("leaks", "skipped", "the tasks' answers are not texts or numbers")
    others = list(dict.fromkeys(answers.values()))[:_MOST_OTHERS]
    leaking, excess = [], 0.0
    for id, answer in answers.items():
        text = prompts[id]
        rest = [other for other in others if other != answer]
        by_chance = sum(_stands_in(other, text) for other in rest) / len(rest) if rest else 0.0
        stands = _stands_in(answer, text)
        excess += (stands - by_chance) / len(answers)
        if stands:
            leaking.append(id)
    if excess >= _LEAK:
        return Finding(
            "leaks",
            "fail",
            f"the answer is in the prompt of {len(leaking)} of {len(answers)} tasks, say "
            f"{leaking[0]!r}: {answers[leaking[0]]!r}",
            "keep task.answer out of the prompt, the tools and the first messages; where finding "
            "it there is the task, allow the check: --allow leaks",
        )
    return Finding("leaks", "ok", f"no answer in a prompt beyond chance ({len(answers)} tasks)")


def _stands_in(answer: str, text: str) -> bool:
    """Return whether an answer is in a text as separate words or numbers."""
    pattern = rf"(?<![\w.]){re.escape(answer.casefold())}(?!\w|\.\d)"
    return re.search(pattern, text.casefold()) is not None

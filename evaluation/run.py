"""Running an evaluation: every model in every environment, from where the folder stands."""

from __future__ import annotations

import asyncio
import copy
import hashlib
import json
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pydantic_core

from vf.environments.environment import Environment
from vf.environments.registry import make
from vf.environments.runner import repeat_lost, rollout
from vf.environments.sandboxes import backend_of, check_sandboxes, image_stats
from vf.environments.text_only import shows_images
from vf.environments.tool_schemas import tool_schemas
from vf.evaluation.eval_config import EnvironmentConfig, EvalConfig, Limits, ModelConfig
from vf.evaluation.evaluate import Job, in_batches, run_jobs, take_tasks
from vf.evaluation.fingerprint import FORMAT, describe_environment
from vf.evaluation.limits import Limited
from vf.evaluation.models import (
    OpenModel,
    check_local,
    check_script,
    engine_settings,
    fingerprint,
    open_model,
)
from vf.evaluation.progress import Progress
from vf.evaluation.results import Cell, ResultsFolder, mark
from vf.evaluation.tally import Summary, Tally
from vf.inference.settings import VllmSettings
from vf.runtime.api_keys import hide_urls
from vf.runtime.calling import call
from vf.runtime.errors import InfrastructureError, did_you_mean
from vf.runtime.json_output import finite
from vf.runtime.seeding import derive_seed
from vf.traces.simulated_users import user_of
from vf.traces.task import Task
from vf.traces.trace import Trace
from vf.traces.writer import TraceWriter

FAILURES_IN_A_ROW = 25  # after which nothing can be expected of the rest


@dataclass(slots=True)
class Suite:
    """One environment of the evaluation, with its tasks.

    Attributes:
        config: The environment's settings.
        environment: The definition.
        tasks: Its tasks.
        tools: Its tools in OpenAI's format, once they have been looked at.
    """

    config: EnvironmentConfig
    environment: Environment
    tasks: Sequence[Task]
    tools: list[dict[str, Any]] = field(default_factory=list)


@dataclass(slots=True)
class _Part:
    """One model in one environment: what is done, and what it adds up to."""

    suite: Suite
    model: ModelConfig
    cell: Cell
    tally: Tally
    done: set[tuple[str, int]]

    @property
    def finished(self) -> bool:
        return len(self.done) == self.tally.rollouts


def prepare(config: EvalConfig) -> list[Suite]:
    """Make the environments, with their tasks and limits, and look at everything but endpoints.

    Raises:
        ConfigError: If an environment, an argument or a model is not there, or does not fit.
    """
    for model in config.models:
        if model.engine in ("api", "script"):
            continue
        if isinstance(settings := engine_settings(model), VllmSettings):
            from vf.inference.vllm.check_settings import check_sampling

            temperatures, min_ps = {"temperature": config.temperature}, {"min_p": config.min_p}
            check_sampling(settings, temperatures, min_ps)
    suites = []
    for entry in config.environments:
        environment = _with_limits(make(entry.id, **entry.args), config.limits)
        tasks = take_tasks(environment, "eval", entry.tasks or config.tasks)
        suites.append(Suite(entry, environment, tasks))
    return suites


def shortages(config: EvalConfig, suites: Sequence[Suite]) -> list[str]:
    """Return a sentence for each environment that has fewer tasks than were asked for."""
    requests = [(suite, suite.config.tasks or config.tasks) for suite in suites]
    return [
        f"{suite.config.name} has only {len(suite.tasks)} tasks in its eval split, of the {count} "
        "asked for"
        for suite, count in requests
        if count is not None and len(suite.tasks) < count
    ]


def unpriced(config: EvalConfig) -> list[str]:
    """Return a sentence for each model whose price is not among those that there are.

    A model that runs here needs none where another one has a price.
    """
    if not config.prices:
        return []
    names = [model.model for model in config.models if model.model not in config.prices]
    some = len(names) < len(config.models)
    free = {model.model for model in config.models if model.engine != "api"} if some else ()
    return [
        f"the prices have none for {name!r}, so its cost is not counted."
        f"{did_you_mean(name, config.prices)} They are for: {', '.join(config.prices)}. Correct "
        "them and run this again to count it"
        for name in names
        if name not in free
    ]


def _with_limits(environment: Environment, limits: Limits) -> Environment:
    limited = copy.copy(environment)
    if limits.max_turns is not None:
        limited.max_turns = limits.max_turns
    if limits.max_tokens is not None:
        limited.max_tokens = limits.max_tokens
    if limits.max_seconds is not None:
        # What is left of a rollout at the limit, scoring above all, still has its own time.
        limited.timeout = limits.max_seconds + environment.timeout
    return limited


def measured(config: EvalConfig, suites: Sequence[Suite]) -> dict[str, Any]:
    """Return all that the results depend on: settings, environments, model files, the extent."""
    files = {model.name: fingerprint(model) for model in config.models}
    environments = {suite.config.name: describe_environment(suite.environment) for suite in suites}
    record = {
        "format": FORMAT,
        "settings": config.measured(),
        "model_files": files,
        "environments": environments,
        **extent(config, suites),
    }
    as_read: dict[str, Any] = hide_urls(json.loads(pydantic_core.to_json(record)))  # to be compared
    return as_read


def extent(
    config: EvalConfig, suites: Sequence[Suite], size: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return how much is measured, and a digest of the tasks.

    Args:
        config: The settings.
        suites: The environments with their tasks.
        size: The size of an earlier evaluation. If this one holds all of it, the answer is of the
            part of this one that is as large.
    """
    whole: dict[str, Any] = {
        "rollouts_per_example": config.rollouts_per_example,
        "tasks": {suite.config.name: len(suite.tasks) for suite in suites},
    }
    size = size if size is not None and _holds(whole, size) else whole
    tasks = {}
    for suite in suites:
        digest = hashlib.blake2b(digest_size=16)
        for task in suite.tasks[: size["tasks"][suite.config.name]]:
            digest.update(pydantic_core.to_json([task.id, task.prompt, task.answer, task.info]))
        tasks[suite.config.name] = digest.hexdigest()
    return {"size": size, "tasks": tasks}


def _holds(whole: Mapping[str, Any], part: Mapping[str, Any]) -> bool:
    """Return whether an evaluation of one size holds one of another."""
    return (
        whole["rollouts_per_example"] >= part["rollouts_per_example"]
        and whole["tasks"].keys() == part["tasks"].keys()
        and all(whole["tasks"][name] >= count for name, count in part["tasks"].items())
    )


async def run_evaluation(
    config: EvalConfig,
    suites: Sequence[Suite],
    folder: ResultsFolder,
    progress: Progress,
    *,
    begin: Callable[[], None] = lambda: None,
) -> list[Summary]:
    """Run what is not done yet, and return all results.

    Args:
        config: The settings.
        suites: The environments with their tasks; see :func:`prepare`.
        folder: Checked to be this evaluation's.
        progress: Told of every rollout.
        begin: Called when everything has been looked at, before the first rollout.

    Raises:
        ConfigError: If an endpoint or an engine cannot be used; nothing was run.
        InfrastructureError: If rollouts failed one after the other; the rest can be resumed.
        EngineError: If an engine that was started here died.
        OSError: If a trace could not be written.
    """
    for suite in suites:
        suite.environment.artifacts = folder.path / "artifacts"
    parts = [_part(config, suite, model, folder) for model in config.models for suite in suites]
    writer = TraceWriter()
    try:
        await _check(config, [part for part in parts if not part.finished], progress)
        begin()
        for part in parts:
            part.cell.keep(part.done)
            for trace in part.cell.traces():
                _write_costs(config, part.model, trace)  # prices may have been added since
                part.tally.add(trace)
        progress.start([part.tally for part in parts])
        for model in config.models:
            mine = [part for part in parts if part.model is model]
            await _run_model(config, model, mine, folder, progress, writer)
    finally:
        await asyncio.to_thread(writer.stop)
        for part in parts:
            part.cell.store.close()
    writer.check()
    return [part.tally.summary() for part in parts]


def _part(config: EvalConfig, suite: Suite, model: ModelConfig, folder: ResultsFolder) -> _Part:
    cell = folder.cell(suite.config.name, model.name)
    rollouts = config.rollouts_per_example
    done = cell.done(rollouts if suite.environment.rubric.group_rewards else None)
    done &= {(task.id, index) for task in suite.tasks for index in range(rollouts)}
    tally = Tally(suite.config.name, model.name, len(suite.tasks), rollouts)
    return _Part(suite, model, cell, tally, done)


async def _check(config: EvalConfig, parts: Sequence[_Part], progress: Progress) -> None:
    """Try whatever the unfinished parts need, once, before anything starts."""
    for suite in {id(part.suite): part.suite for part in parts}.values():
        await call(suite.environment.check)
        check_sandboxes(suite.environment, suite.tasks)
        if backend := backend_of(suite.environment):
            progress.say(f"{suite.config.name}: code runs in sandboxes of {backend}")
        suite.tools = await tool_schemas(suite.environment, suite.tasks[0])
    for model in config.models:
        mine = [part for part in parts if part.model is model]
        if not mine:
            continue
        if model.engine == "script":
            for part in mine:
                check_script(model, part.suite.environment, part.suite.tasks)
            continue
        if model.engine != "api":
            check_local(model)
            continue
        from vf.evaluation.endpoint import describe_sampling, try_endpoint

        tools = next((part.suite.tools for part in mine if part.suite.tools), [])
        progress.say(f"{model.name}: trying {hide_urls(model.base_url) or 'the API'} once")
        note = await try_endpoint(model, config, tools, [t for p in mine for t in p.suite.tasks])
        if note is not None:
            progress.say(f"note: {note}")
        progress.say(describe_sampling(config, model))


async def _run_model(
    config: EvalConfig,
    model: ModelConfig,
    parts: Sequence[_Part],
    folder: ResultsFolder,
    progress: Progress,
    writer: TraceWriter,
) -> None:
    todo = [part for part in parts if not part.finished]
    if not todo:
        return
    tools = any(part.suite.tools for part in todo)
    sees = any(shows_images(part.suite.environment, part.suite.tasks) for part in todo)
    async with open_model(
        model, config, tools=tools, sees=sees, folder=folder.path, say=progress.say
    ) as opened:
        for part in todo:
            environment = part.suite.environment
            progress.images(partial(_images_missing, environment))
            await call(environment.start)
            await _unless(opened.failure, _run_part(config, part, opened, progress, writer))


async def _run_part(
    config: EvalConfig, part: _Part, opened: OpenModel, progress: Progress, writer: TraceWriter
) -> None:
    price = config.prices.get(part.model.model)
    environment = part.suite.environment
    in_a_row = 0

    async def run(job: Job) -> Trace:
        model = opened.of(environment, job.task) if opened.of else opened.model
        first = job.seed(config.seed)
        for attempt in range(1 + config.retry_errors):
            seed = derive_seed(first, "attempt", attempt) if attempt else first

            def once(seed: int = seed) -> Awaitable[Trace]:
                limited = Limited(model, config.limits, price)  # its clock starts here
                return rollout(environment, job.task, limited, sampling=config.sampling, seed=seed)

            trace = await repeat_lost(once, opened.ready)
            if trace.error is None:
                break
        return trace

    def on_trace(job: Job, trace: Trace) -> None:
        nonlocal in_a_row
        mark(trace, part.suite.config.name, part.model.name, job.index)
        _write_costs(config, part.model, trace)
        writer.check()
        writer.append(part.cell.store, trace)
        part.tally.add(trace)
        progress.rollout(part.tally, trace)
        in_a_row = 0 if trace.error is None else in_a_row + 1
        if trace.error is not None and in_a_row >= FAILURES_IN_A_ROW:
            raise InfrastructureError(
                f"{in_a_row} rollouts in a row failed, the last in the {trace.error.boundary}: "
                f"{trace.error.message}"
            )

    await run_jobs(
        environment,
        in_batches(environment, _jobs(part)),
        run,
        max_concurrent=config.max_concurrent,
        on_trace=on_trace,
    )


def _images_missing(environment: Environment) -> list[str]:
    """Return a line for each engine on which images are not ready."""
    return [str(stats) for stats in image_stats(environment) if stats.ready < stats.requested]


def _jobs(part: _Part) -> Iterator[list[Job]]:
    """Yield the rollouts of each task that are not done."""
    for task in part.suite.tasks:
        indices = range(part.tally.rollouts_per_example)
        jobs = [Job(task, index) for index in indices if (task.id, index) not in part.done]
        if jobs:
            yield jobs


def _write_costs(config: EvalConfig, model: ModelConfig, trace: Trace) -> None:
    """Write into a marked trace what the policy and a simulated user cost, None if unknown."""
    price, user, costs = config.prices.get(model.model), user_of(trace), trace.info["eval"]
    if price is not None:
        costs["cost"] = finite(
            sum(price.of(turn.prompt_tokens, turn.completion_tokens) for turn in trace.turns)
        )
    if user is not None and (price := config.prices.get(user.played_by)) is not None:
        cost = price.of(user.prompt_tokens, user.completion_tokens) if user.requests else 0.0
        costs["user_cost"] = finite(cost)


async def _unless(failure: asyncio.Task[None] | None, work: Awaitable[None]) -> None:
    """Do the work, unless something that it depends on fails first."""
    working = asyncio.ensure_future(work)
    waiting = [working] if failure is None else [working, failure]
    try:
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        if failure is not None and failure.done() and not working.done():
            failure.result()
        await working
    finally:
        if not working.done():
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)

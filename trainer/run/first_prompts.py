"""The lengths of the first prompts of a run's tasks, measured in a few seconds."""

from __future__ import annotations

import asyncio
import heapq
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from vf.environments.agent import AgentEnvironment
from vf.environments.environment import Environment
from vf.environments.runner import CLOSE_TIMEOUT
from vf.environments.tool_schemas import end_episode
from vf.inference.rendering.renderer import Renderer
from vf.runtime.calling import call
from vf.runtime.errors import ConfigError, VfError
from vf.traces.messages import as_messages
from vf.traces.task import Task

MOST = 512  # tasks whose `reset` is called
AT_ONCE = 8
BEGIN_SECONDS = 3.0  # after which no further `reset` begins
END_SECONDS = 10.0  # after which none is waited for

_NOT_RESET = "not those that reset returns, for "
_DECLARE = "set expensive_reset = True in its class, and a run does not call reset before it starts"


@dataclass(frozen=True, slots=True)
class FirstPrompts:
    """What the tasks' first prompts were found to be.

    Attributes:
        first: Token ids of the first task's prompt.
        longest: Tokens in the longest.
        task: The task that has it.
        how: What was measured, in one line.
        exact: Whether they are what ``reset`` returned, and not the tasks' own prompts.
        lengths: If they are, tokens in the prompts that were measured, by the tasks' indices.
    """

    first: list[int]
    longest: int
    task: Task
    how: str
    exact: bool = True
    lengths: dict[int, int] = field(default_factory=dict)


async def measure(
    environment: Environment,
    renderer: Renderer,
    tasks: Sequence[Task],
    say: Callable[[str], None],
) -> FirstPrompts:
    """Reset the environment for some tasks, and render what it returns.

    The first task is reset alone, then that with the shortest prompt and those with the longest,
    several concurrently, until their number or the time is up. Where ``reset`` is declared
    expensive, or the first one does not return in time, the tasks' own prompts are measured
    instead.

    Args:
        environment: The definition.
        renderer: Makes token ids of messages.
        tasks: At least one.
        say: Called with what is being done.

    Raises:
        ConfigError: If ``reset`` or ``close`` failed; names the environment, the task and, where a
            request failed, its URL.
    """
    if isinstance(environment, AgentEnvironment):
        return _own_prompts(environment, renderer, tasks, "not what the agent makes of them")
    if environment.expensive_reset:
        reason = _NOT_RESET + "reset is declared expensive"
        return _own_prompts(environment, renderer, tasks, reason)
    first, sizes = tasks[0], [len(str(task.prompt)) for task in tasks]
    chosen = _extremes(sizes)
    prompts: dict[int, list[int]] = {}
    began = time.monotonic()

    async def work(waiting: Iterator[int]) -> None:
        for index in waiting:
            if time.monotonic() > began + BEGIN_SECONDS:
                return
            prompts[index] = await _prompt(environment, renderer, tasks[index])
            say(f"measured the first prompts of {len(prompts)} of {len(chosen) + 1} tasks ...")

    say(f"resetting the environment for task {first.id!r} ...")
    await _until(began + END_SECONDS, [work(iter([0]))])
    if not prompts:
        late = f"reset of task {first.id!r} takes longer than {END_SECONDS:g} s: {_DECLARE}"
        reason = _NOT_RESET + late
        return _own_prompts(environment, renderer, tasks, reason)
    waiting = iter(chosen)
    await _until(began + END_SECONDS, [work(waiting) for _ in range(AT_ONCE)])
    lengths = {index: len(tokens) for index, tokens in prompts.items()}
    longest = max(lengths, key=lengths.__getitem__)
    how = f"longest of {len(prompts)} tasks: {lengths[longest]} tokens"
    if len(prompts) <= len(chosen):
        how += f" (of {len(tasks)}: those that were reset in {BEGIN_SECONDS:g} s)"
    return FirstPrompts(prompts[0], lengths[longest], tasks[longest], how, lengths=lengths)


def _extremes(sizes: Sequence[int]) -> list[int]:
    """Return which tasks after the first to measure: the shortest, then the longest."""
    others = range(1, len(sizes))
    shortest = heapq.nsmallest(1, others, key=sizes.__getitem__)
    longest = heapq.nlargest(MOST - 1, others, key=sizes.__getitem__)
    return list(dict.fromkeys([*shortest, *longest]))[: MOST - 1]


async def _until(deadline: float, works: Sequence[Coroutine[Any, Any, None]]) -> None:
    """Run coroutines until all have ended, one has failed or time is up; end the others.

    Raises:
        ConfigError: If the one that failed raised it.
    """
    running = [asyncio.create_task(work) for work in works]
    left = deadline - time.monotonic()
    done, late = await asyncio.wait(
        running, timeout=max(0.0, left), return_when=asyncio.FIRST_EXCEPTION
    )
    for task in late:
        task.cancel()
    await asyncio.gather(*late, return_exceptions=True)
    for task in done:
        task.result()


def _own_prompts(
    environment: Environment, renderer: Renderer, tasks: Sequence[Task], reason: str
) -> FirstPrompts:
    """Measure the tasks' own prompts, without calling ``reset``."""
    episode = environment.episode(0)
    schemas = episode.toolbox.schemas()
    chosen = [tasks[0], *heapq.nlargest(1, tasks, key=lambda task: len(str(task.prompt)))]
    prompts = []
    for task in chosen:
        try:
            prompts.append(renderer.prompt(episode.first_messages(task), schemas))
        except ConfigError as error:
            raise ConfigError(
                f"environment {environment.id!r}: task {task.id!r}: {error}"
            ) from error
    longest = max(map(len, prompts))
    how = f"longest of the tasks' own: {longest} tokens; {reason}"
    return FirstPrompts(prompts[0], longest, chosen[-1], how, exact=False)


async def _prompt(environment: Environment, renderer: Renderer, task: Task) -> list[int]:
    """Return the token ids of a task's first prompt."""
    episode = environment.episode(0)
    what = f"environment {environment.id!r}: reset of task {task.id!r}"
    try:
        async with asyncio.timeout(environment.timeout) as deadline:
            messages = as_messages(await call(episode.reset, task))
        await episode.settle()
        return renderer.prompt(messages, episode.toolbox.schemas())
    except TimeoutError as error:
        limit = f"timeout = {environment.timeout:g} s"
        raise _late(what, error, limit if deadline.expired() else None) from error
    except ConfigError as error:
        raise ConfigError(f"{what}: {error}") from error
    except Exception as error:
        reason = str(error) if isinstance(error, VfError) else f"{type(error).__name__}: {error}"
        raise ConfigError(f"{what} failed: {reason}{_failed_request(error)}") from error
    finally:
        await _end(episode)


def _late(what: str, error: TimeoutError, limit: str | None) -> ConfigError:
    """Return what is said of a limit that was passed, or of a timeout of the code's own (None)."""
    reason = f"raised TimeoutError: {error}" if limit is None else f"took longer than {limit}"
    return ConfigError(f"{what} {reason}")


def _failed_request(error: BaseException | None) -> str:
    """Return which URL did not answer, if that is the cause, and what to do about it.

    The clients of ``openai`` and ``httpx`` keep the request on their errors.
    """
    while error is not None:
        try:
            url = error.request.url  # type: ignore[attr-defined]
        except (AttributeError, RuntimeError):  # httpx: there was no request yet
            error = error.__cause__ or error.__context__
            continue
        return (
            f" It asked {url}. Is a server running there? If it is this run's own engine, that "
            f"starts later: {_DECLARE}"
        )
    return ""


async def _end(episode: Environment) -> None:
    """Close an episode, and all that it holds."""
    what = f"environment {episode.id!r}: close"
    try:
        async with asyncio.timeout(CLOSE_TIMEOUT) as deadline:
            await end_episode(episode)
    except VfError:
        raise
    except TimeoutError as error:
        limit = f"{CLOSE_TIMEOUT:g} s"
        raise _late(what, error, limit if deadline.expired() else None) from error
    except Exception as error:
        raise ConfigError(f"{what} raised {type(error).__name__}: {error}") from error

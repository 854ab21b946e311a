"""An episode of an agent, which runs on its own and calls its model at the rollout's endpoint."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from vf.environments.episode import Episode
from vf.inference.endpoint.address import Endpoint
from vf.runtime.errors import (
    ConfigError,
    EnvironmentFailure,
    InfrastructureError,
    RemoteError,
)
from vf.runtime.own_deadline import clocked, own_deadline
from vf.traces.messages import writable
from vf.traces.trace import StopReason

if TYPE_CHECKING:
    from vf.inference.endpoint.session import Session

STOP_TIMEOUT = 30.0  # seconds that an agent gets to stop, after which it is left behind
MOST_OUTPUT = 100_000  # characters of the result that are recorded: the last ones
_MOST_ERROR = 4000  # characters of an exception with its traceback that are recorded, likewise


class Attempt(Protocol):
    """An agent at work on one task."""

    async def run(self) -> str | None:
        """Work on the task, and return the result. Cancelled when time or a budget is over.

        Raises:
            Exception: If the agent failed.
        """
        ...

    async def finish(self) -> None:
        """Look at what the agent has left, once it has ended, however that came; never asks."""
        ...

    async def close(self) -> None:
        """Remove what the agent has left, when the rollout has been scored."""
        ...


async def run_agent(
    episode: Episode,
    start: Callable[[Endpoint], Attempt],
    *,
    model: str,
    strict_model: bool,
    crash: str,
) -> StopReason:
    """Let an agent work on the episode's task, and return why it ended.

    What the model can cause is not a failure: an agent that has had an answer, and then takes too
    long or crashes, is to be scored.

    Args:
        episode: The episode; its environment's ``timeout`` is the agent's.
        start: A function that returns the attempt at an endpoint.
        model: The name under which the model is served.
        strict_model: Whether requests for other models are refused.
        crash: ``"failed"`` if a crash after the first answer is a failure, else ``"scored"``.

    Raises:
        InfrastructureError: If the model failed, or the agent did before its first answer.
        ConfigError: If the agent is set up wrongly.
    """
    from vf.inference.endpoint.session import open_session  # loads aiohttp

    environment, trace = episode.environment, episode.trace
    seconds = environment.timeout
    trace.info["output"] = ""  # a text in any case: what a rubric reads is there

    def show(session: Session) -> None:
        episode.activity.turn = len(trace.turns)
        episode.activity.enter("model" if session.in_flight else "agent")

    async with AsyncExitStack() as stack:  # around the clock: the endpoint outlasts it
        with episode.phase("agent"):
            try:
                async with clocked(seconds) as deadline:
                    with own_deadline():  # opened within the clock, so that its requests stop it
                        session = await stack.enter_async_context(
                            open_session(
                                episode.model,
                                trace=trace,
                                sampling=episode.sampling,
                                seed=episode.seed,
                                max_turns=environment.max_turns,
                                max_tokens=environment.max_tokens,
                                strict_model=strict_model,
                                on_change=show,
                            )
                        )
                    session.endpoint = replace(session.endpoint, model=model)
                    attempt = start(session.endpoint)
                    reason = await _work(attempt, session, trace.info, crash)
            except TimeoutError as error:
                if not deadline.expired():
                    raise
                session.check()
                if not session.answered:
                    raise EnvironmentFailure(
                        f"the agent took longer than its {seconds:g} s, and has had no answer of "
                        "the model's"
                    ) from error
                reason = StopReason.TRUNCATED
        with episode.phase("score"):
            await _finish(attempt, seconds)
    if session.reward is not None:
        trace.step_rewards.append(session.reward)
    return reason


async def _work(attempt: Attempt, session: Session, info: dict[str, Any], crash: str) -> StopReason:
    """Run the agent until it ends or a limit is reached; in any case it is stopped then."""
    running = asyncio.create_task(attempt.run())
    over = asyncio.create_task(session.over())
    try:
        await asyncio.wait({running, over}, return_when=asyncio.FIRST_COMPLETED)
        session.check()
        if not running.done():
            if not session.answered:
                raise EnvironmentFailure(f"the agent asked too much{_unanswered(session)}")
            return over.result()
        output = running.result()
    except (InfrastructureError, ConfigError):
        raise
    except Exception as error:
        what, message = _described(error)
        if crash == "failed" or not session.answered:
            raise EnvironmentFailure(f"the agent failed{_unanswered(session)}: {what}") from error
        info.setdefault("program", {"error": message[-_MOST_ERROR:]})
        output = None
    finally:
        await _stop(running, over)
    if not session.answered:
        raise EnvironmentFailure(f"the agent ended{_unanswered(session)}")
    if output is not None:
        info["output"] = writable(output[-MOST_OUTPUT:])
    return StopReason.MAX_SEQ_LEN if session.full else StopReason.TERMINATED


def _described(error: Exception) -> tuple[str, str]:
    """Return an exception in one line, and with its traceback."""
    if isinstance(error, RemoteError):
        what = str(error.args[0])
        return what, writable(f"{error.traceback or what}\n")
    lines = traceback.format_exception(error)
    return f"{type(error).__name__}: {error}", writable("".join(lines))


def _unanswered(session: Session) -> str:
    """Say that the agent never had an answer, if so; that is what most mistakes come down to."""
    if session.answered:
        return ""
    refused = f" Its last request was refused: {session.refused}" if session.refused else ""
    return (
        " before it had an answer of the model's (it is asked at OPENAI_BASE_URL, or at "
        f"endpoint.url){refused}"
    )


async def _stop(*tasks: asyncio.Task[Any]) -> None:
    """End the tasks; one that does not stop is left behind, and its requests are refused."""
    for task in tasks:
        task.cancel()
    _, late = await asyncio.wait(tasks, timeout=STOP_TIMEOUT)
    for task in set(tasks) - late:
        if not task.cancelled():
            task.exception()  # it has been looked at, or does not matter any more


async def _finish(attempt: Attempt, seconds: float) -> None:
    """Look at what the agent has left, for that many seconds: by then it is scored as it is.

    As the agent, what looks may catch its cancellation: then it is left behind.
    """
    looking = asyncio.create_task(attempt.finish())
    try:
        await asyncio.wait({looking}, timeout=seconds)
        if looking.done():
            looking.result()
    finally:
        await _stop(looking)

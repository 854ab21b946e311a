"""What verifiers' tools raised, kept apart from what they returned.

A ``ToolEnv`` tells the model the text of whatever a tool raises, and leaves no other mark. Its
``error_formatter`` is watched here, so that a call's event says that it failed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any

Errors = list[tuple[str, str]]  # the text that the model was told, and what was raised
_errors: ContextVar[Errors] = ContextVar("errors")


def watched() -> Errors:
    """Return the list that errors of the rollout that begins now will be added to."""
    errors: Errors = []
    _errors.set(errors)
    return errors


def watch(environment: Any) -> None:
    """Note what an environment's tools raise. A dead connection ends the rollout instead.

    For that verifiers has ``stop_errors``; to train a model on the text of such an error would
    make an outage part of the task.
    """
    formatter = getattr(environment, "error_formatter", None)
    if formatter is None:
        return
    import httpx

    environment.error_formatter = _noting(formatter)
    # A new list, for the default may be shared with other environments.
    environment.stop_errors = [*environment.stop_errors, ConnectionError, httpx.TransportError]


def failed_calls(said: Sequence[str], errors: Errors) -> dict[int, str]:
    """Return which of a turn's tool messages tell an error, and what it was; empties ``errors``.

    Calls run one after the other, so errors and messages are in one order.
    """
    failed = {}
    pending = list(errors)
    errors.clear()
    for index, text in enumerate(said):
        if pending and text == pending[0][0]:
            failed[index] = pending.pop(0)[1]
    return failed


def _noting(formatter: Callable[[Exception], str]) -> Callable[[Exception], str]:
    def noting(error: Exception) -> str:
        text = formatter(error)
        if (errors := _errors.get(None)) is not None:
            errors.append((text, f"{type(error).__name__}: {error}"))
        return text

    return noting

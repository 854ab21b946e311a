"""Why a rollout failed."""

from __future__ import annotations

import traceback
from dataclasses import dataclass

from vf.runtime.api_keys import without_data
from vf.runtime.errors import InfrastructureError
from vf.traces.messages import writable


@dataclass(slots=True)
class Failure:
    """An infrastructure error, attributed to the boundary that it crossed."""

    boundary: str
    type: str
    message: str
    traceback: str

    @classmethod
    def of(cls, error: InfrastructureError) -> Failure:
        """Describe an error with the traceback of its root cause."""
        return cls(
            boundary=error.boundary,
            type=type(error.__cause__ or error).__name__,
            message=writable(without_data(str(error))),
            traceback=writable(without_data("".join(traceback.format_exception(error)))),
        )

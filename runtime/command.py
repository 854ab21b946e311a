"""What every command has in common: how it ends, and how it lists what it has to say."""

from __future__ import annotations

import logging
import signal
import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from vf.runtime.errors import ConfigError, VfError

if TYPE_CHECKING:
    from rich.console import Console

DONE, FAILED, BAD_USAGE = 0, 1, 2


def run_command(
    name: str, body: Callable[[], int], *, kept: str = "", extra: str | None = None
) -> int:
    """Run a command's body; what goes wrong becomes a line on standard error and an exit code.

    Args:
        name: The command as it is typed.
        body: Does the work and returns the exit code.
        kept: What is left of the work where a signal ends it, for the line that says so.
        extra: The extra of vf-rl that brings the packages the command needs.

    Returns:
        The body's exit code; 2 for a :class:`ConfigError` or a missing package; 1 for other errors
        of ours and of the system; 128 + N where signal N ended it, as of a shell.
    """
    try:
        return body()
    except ConfigError as error:
        return complain(name, str(error), BAD_USAGE)
    except (VfError, OSError) as error:
        log = logging.getLogger("vf")
        if log.handlers:  # of a run's log file
            log.exception("the command failed")
        return complain(name, str(error), FAILED)
    except ModuleNotFoundError as error:
        if extra is None or error.name is None or error.name.partition(".")[0] == "vf":
            raise
        missing = f"this needs the package {error.name!r}: pip install 'vf-rl[{extra}]'"
        return complain(name, missing, BAD_USAGE)
    except KeyboardInterrupt as error:
        number = getattr(error, "number", signal.SIGINT)
        said = "interrupted" if number == signal.SIGINT else f"stopped by {error}"
        return complain(name, f"{said}; {kept}" if kept else said, 128 + number)


def complain(name: str, text: str, code: int = FAILED) -> int:
    """Say on standard error what is wrong; returns the exit code, for the caller to return."""
    print(f"{name}: {text}", file=sys.stderr)
    return code


def show(console: Console, rows: Iterable[tuple[str, str]]) -> None:
    """Print names and texts in two columns."""
    from rich.markup import escape

    for name, text in rows:
        console.print(f"[bold]{escape(name):>12}[/bold]  {escape(text)}", soft_wrap=True)

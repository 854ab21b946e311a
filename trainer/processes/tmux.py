"""`vf-rl --tmux`: a run in a tmux session, with a pane for the trainer and one for each log."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from vf.runtime.errors import ConfigError

if TYPE_CHECKING:
    from vf.trainer.run.run_folder import RunFolder

# What belongs to a terminal and not to the user's work: a pane has its own.
OF_A_TERMINAL = {"TERM", "TMUX", "TMUX_PANE", "COLUMNS", "LINES", "PWD", "OLDPWD", "SHLVL"}

# $1: the user's environment; $2: the session; then the command. Ctrl-C is for the command alone.
PANE = """\
. "$1"; rm -f "$1"; session=$2; shift 2
trap : INT
"$@"
code=$?
printf '\\nThe run ended with exit code %s. This session stays, so that you can read it.\\n' $code
printf 'To close it: tmux kill-session -t %s\\n' "$session"
exit $code
"""


# $1: a log, which may not be there yet; $2: what writes it.
LOG = """\
if [ ! -e "$1" ]; then
    printf 'Waiting for %s\\n%s\\n' "$1" "$2"
    while [ ! -e "$1" ]; do sleep 0.3; done
fi
exec tail -n +1 -F "$1"
"""
WRITES = {
    "inference": "The engine writes it, from its start on.",
    "environment": "Environments write it: failed rollouts, and what they log. Often nothing.",
}


def check_installed() -> None:
    """Check that there is a tmux to run in.

    Raises:
        ConfigError: If tmux is not installed.
    """
    if shutil.which("tmux") is None:
        raise ConfigError(
            "--tmux: tmux is not installed; install it (`apt install tmux`, `brew install tmux`), "
            "or leave --tmux out"
        )


def open_session(folder: RunFolder, command: Sequence[str]) -> str:
    """Start a run in a tmux session of its own, and return the session's name.

    Killing the trainer's pane ends the run. When the run ends, the session stays.

    Args:
        folder: The run's folder, whose logs are shown; the run makes it.
        command: The command that runs it.

    Raises:
        ConfigError: If tmux cannot make a session.
    """
    logs = [folder.inference_log.absolute(), folder.environment_log.absolute()]
    inference, environments = (
        list(map(_literal, ["sh", "-c", LOG, "sh", str(log), text]))
        for log, text in zip(logs, WRITES.values(), strict=True)
    )
    session = _new_session(folder.path.name, inference)
    target = f"={session}:"
    variables = _save_environment(os.environ)
    trainer = ["sh", "-c", PANE, "sh", str(variables), session, *command]
    try:
        # In one call: a pane that ends immediately stays too.
        _tmux(
            *("set-option", "-w", "-t", target, "remain-on-exit", "on", ";"),
            *("set-option", "-w", "-t", target, "pane-border-status", "top", ";"),
            *("set-option", "-w", "-t", target, "pane-border-format", " #{pane_title} ", ";"),
            *("select-pane", "-t", target, "-T", "inference", ";"),
            *("split-window", "-h", "-t", target, *environments, ";"),
            *("select-pane", "-t", target, "-T", "environment", ";"),
            # Above the two logs, over the whole width.
            *("split-window", "-v", "-b", "-f", "-l", "65%", "-t", target),
            *("-c", os.getcwd(), *map(_literal, trainer), ";"),
            *("select-pane", "-t", target, "-T", "trainer"),
        )
    except ConfigError:
        variables.unlink(missing_ok=True)
        _tmux("kill-session", "-t", f"={session}")
        raise
    return session


def attach(session: str) -> int:
    """Show a session if there is a terminal for it, and say how to; returns an exit code."""
    name = shlex.quote(session)
    if os.environ.get("TMUX"):
        print(f"the run is in tmux session {session}; to see it: tmux switch-client -t {name}")
        return 0
    print(f"the run is in tmux session {session}; to see it: tmux attach -t {name}")
    print(f"it continues when you detach; to end run and session: tmux kill-session -t {name}")
    if not sys.stdout.isatty():
        return 0
    return subprocess.call(["tmux", "attach-session", "-t", f"={session}"])


def _new_session(run: str, command: Sequence[str]) -> str:
    """Make a session named after a run, or nearly so where the name is taken; return its name."""
    base = re.sub(r"[^\w-]", "-", run)  # a dot or a colon would mean a pane or a window
    number = 1
    while True:
        name = base if number == 1 else f"{base}-{number}"
        try:
            _tmux("new-session", "-d", "-s", name, "-n", "vf-rl", "-x", "200", "-y", "50", *command)
        except ConfigError as error:
            if "duplicate session" not in str(error):
                raise
            number += 1
        else:
            return name


def _tmux(*command: str) -> None:
    done = subprocess.run(["tmux", *command], capture_output=True, text=True, check=False)
    if done.returncode:
        raise ConfigError(f"--tmux: tmux failed: {done.stderr.strip() or done.stdout.strip()}")


def _literal(argument: str) -> str:
    """Escape a last semicolon, which would end tmux's command."""
    return f"{argument[:-1]}\\;" if argument.endswith(";") else argument


def _save_environment(variables: Mapping[str, str]) -> Path:
    """Write a script that sets the variables, readable by this user only, and return its path.

    A pane has the environment of the tmux server, which may be older than this shell; and on a
    command line, keys would be seen by every user.
    """
    lines = [
        f"export {name}={shlex.quote(value)}\n"
        for name, value in variables.items()
        if name not in OF_A_TERMINAL and name.isascii() and name.isidentifier()
    ]
    handle, path = tempfile.mkstemp(prefix="vf-rl-", suffix=".sh")
    with open(handle, "w", errors="surrogateescape") as file:
        file.writelines(lines)
    return Path(path)

"""What every command shares: its parser, its messages and its exit codes."""

from __future__ import annotations

import argparse
import difflib
import logging
import os
import re
import select
import signal
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from vf.runtime.errors import ConfigError, PeerLost, VfError, did_you_mean
from vf.runtime.extras import missing_package
from vf.runtime.interrupts import orderly_end
from vf.runtime.terminal import make_console
from vf.runtime.uninterruptible import exit_if_left_behind
from vf.runtime.visible import VisibleFormatter, visible

DONE, FAILED, BAD_USAGE = 0, 1, 2
CONFIG = "config.toml"  # of a run's folder
_NAMED = 6  # runs in an error
_READER_LEFT = 128 + 13  # SIGPIPE, as a shell says it
PEER_LOST = 75  # of one of a trainer's processes, to what started it: trying again may help


class CommandParser(argparse.ArgumentParser):
    """An argument parser that keeps line breaks, takes no abbreviations and suggests what it knows.

    Args:
        options: Arguments of :class:`argparse.ArgumentParser`.
    """

    def __init__(self, **options: Any) -> None:
        options.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(allow_abbrev=False, **options)
        self.register("type", int, _whole_number)
        self.register("type", float, _number)
        self.register("type", Path, _path)

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[Any, list[str]]:
        """Parse, and exit with an error that names the nearest option for an unknown one."""
        parsed, unknown = super().parse_known_args(args, namespace)
        if unknown:
            word = unknown[0].partition("=")[0]
            flags = re.findall(r"(?<![\w-])--[a-z][\w-]*", self.format_help())
            # Compared with the beginnings: --rollout is near --rollouts-per-example.
            nearest = {name[: len(word) + 1]: name for name in flags}
            near = difflib.get_close_matches(word, nearest, n=1)
            hint = f". Did you mean {nearest[near[0]]!r}?" if near else ""
            self.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")
        return parsed, unknown

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        choices = [str(choice) for choice in action.choices]
        near = did_you_mean(str(value), choices)
        if isinstance(action, argparse._SubParsersAction):
            listed = near or f" Commands: {', '.join(choices)}"
            raise argparse.ArgumentError(None, f"there is no command {value!r}.{listed}")
        listed = f" It is one of: {', '.join(choices)}"
        raise argparse.ArgumentError(action, f"unknown value {value!r}.{near}{listed}")


def _whole_number(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a whole number, not {text!r}") from None


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a number, not {text!r}") from None


def _path(text: str) -> Path:
    if not text:  # which a Path takes for the current folder
        raise argparse.ArgumentTypeError("must be a path, and is empty")
    return Path(text)


def add_run_options(add: Callable[..., Any], *, set: str, dry_run: str, resume: str) -> None:
    """Add the options of the commands that start a run from a TOML.

    Args:
        add: ``add_argument`` of the parser or of one of its groups.
        set: Help of ``--set``.
        dry_run: Help of ``--dry-run``.
        resume: Help of ``--resume``.
    """
    add("config", nargs="?", type=Path, metavar="CONFIG.toml", help=argparse.SUPPRESS)
    add("--set", action="append", default=[], metavar="KEY=VALUE", help=set)
    add("--dry-run", action="store_true", help=dry_run)
    add("--resume", type=Path, metavar="RUN", help=resume)


def check_run_options(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    """Exit with a usage error unless the run's options go together."""
    if (args.config is None) == (args.resume is None):
        parser.error("name either a config or, with --resume, the folder of a run")
    if args.resume is not None and args.dry_run:
        parser.error("--dry-run starts no run, so it cannot be combined with --resume")


def config_file(args: argparse.Namespace) -> Path:
    """Return the TOML that the options name: the config, or that of the run to resume.

    Raises:
        ConfigError: If the config is a folder, or the folder is not a run's.
    """
    config: Path | None = args.config
    if config is None:
        run: Path = args.resume
        check_run_exists(run)
        if not (run / CONFIG).is_file():
            raise ConfigError(
                f"--resume {run}: there is no file {CONFIG} in it, so it is not the folder of a "
                f"run{runs_in(run)}"
            )
        return run / CONFIG
    if config.is_dir():
        is_run = (config / CONFIG).is_file()
        resume = f"; to continue the run in it, write --resume {config}" if is_run else ""
        raise ConfigError(f"{config} is a folder: name a TOML file{resume}")
    return config


def check_run_exists(run: Path) -> None:
    """Check that a run that is named is there.

    Raises:
        ConfigError: If it is not; runs beside it are listed, those with the nearest names first.
    """
    if run.is_dir():
        return
    if run.exists():
        raise ConfigError(f"{run} is a file; name a run's folder, like runs/quickstart-1")

    def likeness(name: str) -> float:
        return difflib.SequenceMatcher(None, run.name, name).ratio()

    beside = {config.parent.name for config in run.parent.glob(f"*/{CONFIG}")}
    nearest = sorted(beside, key=lambda name: (-likeness(name), name))[:_NAMED]
    there = ", ".join(str(run.parent / name) for name in nearest)
    more = f" and {len(beside) - _NAMED} more" if len(beside) > _NAMED else ""
    others = f". Runs beside it: {there}{more}" if there else f", and no run in {run.parent}"
    raise ConfigError(f"there is no folder {run}{others}")


def runs_in(folder: Path) -> str:
    """Return in words which runs a folder holds, to end an error; empty if there are none."""
    names = sorted(config.parent.name for config in folder.glob(f"*/{CONFIG}"))
    more = ", ..." if len(names) > _NAMED else ""
    return f"; it holds the runs {', '.join(names[:_NAMED])}{more}: name one" if names else ""


def add_subcommand(commands: Any, name: str, what: str, *examples: str) -> argparse.ArgumentParser:
    """Add a subcommand whose ``--help`` shows what it does and how it is called.

    Args:
        commands: The return value of ``add_subparsers``.
        name: The subcommand.
        what: The help text, in lower case and without a full stop.
        examples: Arguments of example calls.

    Returns:
        Its parser.
    """
    parser: argparse.ArgumentParser = commands.add_parser(
        name, help=what, description=f"{what[0].upper()}{what[1:]}."
    )
    calls = [f"{parser.prog} {example}".rstrip() for example in examples]
    parser.epilog = "\n  ".join(["examples:", *calls])
    return parser


def run_command(name: str, body: Callable[[], int], *, kept: str = "", extra: str = "") -> int:
    """Run a command's body; an error becomes a line on standard error and an exit code.

    Args:
        name: The command as it is typed.
        body: Does the work and returns the exit code.
        kept: The part of the work that a signal leaves, for the message.
        extra: The extra of vf-rl that installs the packages the command needs; several with commas
            between them.

    Returns:
        The body's exit code; 2 for a :class:`ConfigError` or a missing package; 1 for any other
        :class:`VfError` or :class:`OSError`; 128 + N if signal N ended it, as in a shell, and 141
        (SIGPIPE) if what reads its output, such as ``head``, has seen enough.
    """
    code = _exit_code(name, body, kept, extra)
    exit_if_left_behind(code)
    return code


def _exit_code(name: str, body: Callable[[], int], kept: str, extra: str) -> int:
    if not sys.warnoptions:  # with python -W, the user's own choice
        # Libraries say it to each other's authors; who types a command can do nothing about it.
        warnings.filterwarnings("ignore", category=FutureWarning)
    if logging.lastResort is not None:  # what is logged before there is a run's log file
        logging.lastResort.setFormatter(VisibleFormatter())
    try:
        with orderly_end(launched=False):
            code = body()
        sys.stdout.flush()
        return code
    except ConfigError as error:
        return complain(name, str(error), BAD_USAGE)
    except (VfError, OSError) as error:
        if isinstance(error, BrokenPipeError) and _reader_left():
            return _READER_LEFT
        log = logging.getLogger("vf")
        if log.handlers:  # the run's log file
            log.exception("the command failed")
        return complain(name, str(error), PEER_LOST if isinstance(error, PeerLost) else FAILED)
    except ModuleNotFoundError as error:
        if text := missing_package(error, extra):
            return complain(name, text, BAD_USAGE)
        raise
    except KeyboardInterrupt as error:
        number = getattr(error, "number", signal.SIGINT)
        text = "interrupted" if number == signal.SIGINT else f"stopped by {error}"
        return complain(name, f"{text}; {kept}" if kept else text, 128 + number)


def _reader_left() -> bool:
    """Return whether nothing reads standard output any more; what is still buffered is dropped."""
    output = sys.stdout.fileno()
    poll = select.poll()
    poll.register(output, 0)  # an error is always reported
    if not poll.poll(0):
        return False
    os.dup2(os.open(os.devnull, os.O_WRONLY), output)  # Python flushes again when it ends
    return True


def complain(name: str, text: str, code: int = FAILED) -> int:
    """Print a message on standard error and return the exit code."""
    print(visible(f"{name}: {text}"), file=sys.stderr)
    return code


def quiet_transformers() -> None:
    """Keep transformers' progress bars and warnings off the terminal; errors still show."""
    import transformers

    transformers.utils.logging.disable_progress_bar()
    transformers.utils.logging.set_verbosity_error()


@contextmanager
def reading_bar(files: Iterable[Path]) -> Iterator[Callable[[int], None]]:
    """Show on a terminal how much of some files has been read.

    Args:
        files: The files that are read in the block.

    Yields:
        A function to call with the number of bytes read since the last call.
    """
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    console = make_console(stderr=True)
    reading = TextColumn("reading", markup=False)
    columns = (reading, BarColumn(), DownloadColumn(), TimeRemainingColumn())
    total = sum(file.stat().st_size for file in files)
    hidden = not console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=hidden) as bar:
        task = bar.add_task("", total=total)
        yield lambda size: bar.advance(task, size)

"""`vf-eval`: check an environment, or score saved traces again."""

from __future__ import annotations

import argparse
import asyncio
import importlib
import json
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from vf.environments.registry import make
from vf.rubrics.group import AnyRubric
from vf.rubrics.rescore import rescore
from vf.traces.errors import ConfigError, VfError
from vf.traces.store import TraceStore
from vf.traces.trace import Trace

DONE, FAILED, BAD_USAGE, INTERRUPTED = 0, 1, 2, 130

EXAMPLES = """\
examples:
  vf-eval --validate calculator
  vf-eval --validate my-env --args '{"difficulty": 3}'
  vf-eval --rescore runs/a/traces --rubric calculator
  vf-eval --rescore traces.jsonl --rubric my_rubrics:strict --output rescored.jsonl

Exit codes: 0 done, 1 failed, 2 bad usage or config.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    parser = argparse.ArgumentParser(
        prog="vf-eval",
        description="Check an environment, or score saved traces again with another rubric.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument(
        "--validate",
        metavar="ENV",
        help="see whether the environment can be solved, and whether it can be gamed",
    )
    what.add_argument(
        "--rescore", type=Path, metavar="TRACES", help="a traces file, or a folder of them"
    )
    parser.add_argument(
        "--rubric",
        metavar="RUBRIC",
        help="with --rescore: 'module:name' of a rubric (or of a function that returns one), or "
        "the id of an environment, whose rubric it is",
    )
    parser.add_argument(
        "--args",
        type=_json_object,
        default={},
        metavar="JSON",
        help="arguments of the environment, or of the function that returns the rubric",
    )
    parser.add_argument(
        "--output", type=Path, metavar="FILE", help="with --rescore: where the traces are written"
    )
    parser.add_argument(
        "--tasks", type=int, metavar="N", help="with --validate: how many tasks (8 by default)"
    )
    parser.add_argument(
        "--allow",
        action="append",
        metavar="CHECK",
        help="with --validate: a check that may fail; can be given several times",
    )
    parser.add_argument(
        "--json", action="store_true", help="with --validate: print one JSON object"
    )
    args = parser.parse_args(argv)
    if (args.rescore is None) != (args.rubric is None):
        parser.error("--rescore and --rubric go together")
    if args.output is not None and args.rescore is None:
        parser.error("--output goes with --rescore")
    if args.validate is None and (args.tasks is not None or args.allow or args.json):
        parser.error("--tasks, --allow and --json go with --validate")
    here = str(Path.cwd())
    sys.path.insert(0, here)  # as `python` would: 'module:name' may lie here
    try:
        if args.validate is not None:
            from vf.environments.validation.cli import run_validate
            from vf.environments.validation.validate import DEFAULT_TASKS

            return run_validate(
                args.validate,
                args.args,
                tasks=DEFAULT_TASKS if args.tasks is None else args.tasks,
                allow=args.allow or (),
                as_json=args.json,
            )
        rubric = load_rubric(args.rubric, args.args)
        files = _files(args.rescore)
        if args.output is not None and args.output.exists():
            raise ConfigError(f"--output: {args.output} exists, and is never overwritten")
        return asyncio.run(_rescore(files, rubric, args.output))
    except ConfigError as error:
        print(f"vf-eval: {error}", file=sys.stderr)
        return BAD_USAGE
    except (VfError, OSError) as error:
        print(f"vf-eval: {error}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        print("vf-eval: interrupted", file=sys.stderr)
        return INTERRUPTED
    finally:
        sys.path.remove(here)


def load_rubric(name: str, args: dict[str, Any] | None = None) -> AnyRubric:
    """Return a rubric by name.

    Args:
        name: ``module:name`` of a rubric, or of a function or class that returns one; or the id
            of an environment.
        args: Arguments of the function, or of the environment.

    Raises:
        ConfigError: It cannot be loaded, or is no rubric.
    """
    module, colon, attribute = name.partition(":")
    if not colon:
        return make(name, **(args or {})).rubric
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"--rubric: cannot load {name!r}: {error}") from error
    if isinstance(found, type) or not hasattr(found, "score"):
        if not callable(found):
            raise ConfigError(f"--rubric: {name!r} is a {type(found).__name__}, not a rubric")
        try:
            found = found(**(args or {}))
        except TypeError as error:
            raise ConfigError(f"--rubric: {name!r} cannot be called: {error}") from error
    elif args:
        raise ConfigError(f"--rubric: {name!r} is a rubric already, and takes no --args")
    if not all(hasattr(found, each) for each in ("score", "score_group", "group_rewards")):
        raise ConfigError(f"--rubric: {name!r} gave a {type(found).__name__}, not a rubric")
    return found  # type: ignore[no-any-return]


async def _rescore(files: Sequence[Path], rubric: AnyRubric, output: Path | None) -> int:
    tally = _Tally()
    store = None if output is None else TraceStore(output)
    try:
        for file in files:  # one by one: a group never spans two
            async for trace in rescore(tally.before(TraceStore(file)), rubric):
                tally.after(trace)
                if store is not None:
                    store.append(trace)
    finally:
        if store is not None:
            store.close()
    print("\n".join(tally.lines()))
    return FAILED if tally.errors else DONE


def _files(path: Path) -> list[Path]:
    files = sorted(path.glob("*.jsonl")) if path.is_dir() else [path]
    if not files:
        raise ConfigError(f"--rescore: there is no .jsonl file in {path}")
    return files


class _Tally:
    """What changed, without keeping the traces."""

    def __init__(self) -> None:
        self.total = self.failed = self.unscored = self.changed = 0
        self.errors: list[str] = []
        self._old: list[float] = []
        self._new: list[float] = []
        self._pending: deque[tuple[bool, float | None]] = deque()

    def before(self, traces: Iterable[Trace]) -> Iterator[Trace]:
        for trace in traces:
            self._pending.append((trace.error is not None, trace.reward))
            yield trace

    def after(self, trace: Trace) -> None:
        had_failed, old = self._pending.popleft()  # they come back in order
        self.total += 1
        self.failed += had_failed
        if trace.error is not None:
            self.errors += [] if had_failed else [trace.error.message]
            return
        new = trace.reward
        self.unscored += new is None
        self.changed += old != new
        self._old += [] if old is None else [old]
        self._new += [] if new is None else [new]

    def lines(self) -> Iterator[str]:
        yield f"{self.total} traces, {self.failed} of them failed rollouts, left as they are"
        yield f"reward {_mean(self._old)} → {_mean(self._new)}, {self.changed} changed"
        if self.unscored:
            yield f"{self.unscored} cannot be scored by this rubric"
        if self.errors:
            yield f"{len(self.errors)} could not be scored; the first: {self.errors[0]}"


def _mean(values: list[float]) -> str:
    return f"{fmean(values):.4f}" if values else "(none)"


def _json_object(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"not JSON: {error}") from None
    if not isinstance(found, dict):
        raise argparse.ArgumentTypeError("must be a JSON object")
    return found


if __name__ == "__main__":
    sys.exit(main())

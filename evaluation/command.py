"""`vf-rl eval ENV -m MODEL` and `vf-rl eval CONFIG.toml`, from command line to results."""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from vf.environments.registry import label
from vf.evaluation.eval_config import EvalConfig, parse_config, slug
from vf.evaluation.tally import Summary
from vf.inference.model_files import TINY
from vf.runtime.errors import ConfigError
from vf.runtime.heartbeat import working
from vf.runtime.terminal import make_console
from vf.runtime.toml import read_toml

DONE, FAILED = 0, 1
SETTINGS = (
    *("tasks", "rollouts_per_example", "max_concurrent", "max_tokens", "temperature", "seed"),
    "retry_errors",
)
LIMITS = {
    "max_turns": "max_turns",
    "max_total_tokens": "max_tokens",
    "max_seconds": "max_seconds",
    "max_cost": "max_cost",
}
ONE_MODEL = (
    *("model", "base_url", "api_key_env", "engine"),
    *("tokenizer", "chat_template", "tool_style"),
)


def evaluate_command(args: argparse.Namespace) -> int:
    """Evaluate, print the results, and return the exit code.

    Raises:
        ConfigError: An argument or setting is wrong.
        VfError: The evaluation failed as a whole.
    """
    from vf.evaluation.refusal import refusal
    from vf.evaluation.results import ResultsFolder
    from vf.evaluation.run import extent, measured, prepare, shortages

    config, base = config_of(args)
    with working(make_console(stderr=True), f"preparing {args.what} ..."):
        places = prepare(config)
        what = measured(config, places)
    for said in shortages(config, places):
        print(f"vf-rl eval: {said}", file=sys.stderr)

    def now(before: Mapping[str, Any]) -> dict[str, Any]:
        """Return what is measured now, of as many rollouts as there were before."""
        return what | extent(config, places, before.get("size"))

    path = _folder(base, args, now)
    with ResultsFolder(path) as folder:
        before = folder.before()
        if before is not None and before != now(before):
            if folder.holds_results():
                raise ConfigError(refusal(args, path, config, before, now(before)))
            print(f"vf-rl eval: all rollouts in {path} failed: starting again", file=sys.stderr)
        summaries, seconds = _run(config, places, folder, what)
        results = {
            "folder": str(path),
            "seconds": seconds,
            "results": [summary.to_dict() for summary in summaries],
        }
        folder.write_results(results)
    _print(summaries, results, path, as_json=bool(args.json))
    return FAILED if any(each.failed or each.missing for each in summaries) else DONE


def _folder(
    base: Path, args: argparse.Namespace, now: Callable[[Mapping[str, Any]], Mapping[str, Any]]
) -> Path:
    """Return where the results go: of those that there are, the newest that differs least."""
    from vf.evaluation.refusal import told_differences
    from vf.evaluation.results import next_of, read_config, series

    there = series(base)
    if args.output is not None or not there:
        return base
    if args.fresh:
        path = next_of(base)
        print(f"vf-rl eval: a new result, beside {there[-1]}: {path}", file=sys.stderr)
        return path

    def apart(folder: Path) -> float:
        with suppress(ConfigError):
            before = read_config(folder)
            return 0 if before == now(before) else 1 + len(told_differences(before, now(before)))
        return math.inf

    return min(reversed(there), key=apart)


def config_of(args: argparse.Namespace) -> tuple[EvalConfig, Path]:
    """Return the settings and the results folder that the command line names.

    Raises:
        ConfigError: A setting is wrong, or two do not go together.
    """
    overrides: dict[str, Any] = {
        name: getattr(args, name) for name in SETTINGS if getattr(args, name) is not None
    }
    limits = {
        ours: getattr(args, name)
        for name, ours in LIMITS.items()
        if getattr(args, name) is not None
    }
    if limits:
        overrides["limits"] = limits
    if args.prices is not None:
        overrides["prices"] = read_toml(args.prices).get("prices", {})
    if args.what.endswith(".toml"):
        for name in (*ONE_MODEL, "vllm_python", "args", "agent"):
            if getattr(args, name) is not None:
                flag = f"--{name.replace('_', '-')}"
                raise ConfigError(f"{flag} needs a single environment; set it in {args.what}")
        toml = Path(args.what)
        config = parse_config(read_toml(toml), overrides, toml.absolute().parent)
        default = Path("evals") / slug(Path(args.what).stem)
    else:
        if args.agent is not None:
            if named := [name for name in ONE_MODEL if getattr(args, name) is not None]:
                flag = f"--{named[0].replace('_', '-')}"
                raise ConfigError(f"{flag} needs a model; --agent {args.agent} uses none")
            args.model, args.engine = args.agent, "script"
        if args.model is None:
            if named := [name for name in ONE_MODEL if getattr(args, name) is not None]:
                flag = f"--{named[0].replace('_', '-')}"
                raise ConfigError(f"{flag} needs a model: name it with -m")
            args.model = TINY
            print(
                f"vf-rl eval: no model was named (-m): using {TINY!r}, which ships with vf-rl",
                file=sys.stderr,
            )
        model: dict[str, Any] = {
            name: getattr(args, name) for name in ONE_MODEL if getattr(args, name) is not None
        }
        if args.vllm_python is not None:
            if args.engine != "vllm":
                raise ConfigError("--vllm-python needs --engine vllm")
            model["inference"] = {"python": args.vllm_python}
        environment = {"id": args.what, "args": args.args or {}}
        config = parse_config({"environments": [environment], "models": [model]}, overrides)
        default = Path("evals") / f"{slug(label(args.what))}-{slug(args.model)}"
    return config, args.output or (Path(config.output) if config.output else default)


def _run(
    config: EvalConfig, places: Sequence[Any], folder: Any, what: dict[str, Any]
) -> tuple[list[Summary], float]:
    from vf.evaluation.progress import Progress
    from vf.evaluation.run import run_evaluation

    progress = Progress(make_console(stderr=True))

    async def main() -> list[Summary]:
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        return await run_evaluation(
            config, places, folder, progress, begin=lambda: folder.begin(what)
        )

    try:
        return asyncio.run(main()), progress.seconds
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None  # SIGTERM: what was open has been closed
    finally:
        progress.stop()


def _print(
    summaries: Sequence[Summary], results: dict[str, Any], path: Path, *, as_json: bool
) -> None:
    if as_json:
        print(json.dumps(results, indent=2, ensure_ascii=False, allow_nan=False))
        return
    from vf.evaluation.result_table import console, print_results

    print_results(summaries, out := console())
    out.print(f"\ntraces and results: {path}", soft_wrap=True, markup=False)

"""`vf-rl eval ENV -m MODEL` and `vf-rl eval CONFIG.toml`, from command line to results."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from vf.environments.registry import label
from vf.evaluation.eval_config import EvalConfig, Prices, parse_config, slug
from vf.evaluation.tally import Summary
from vf.inference.model_files import TINY
from vf.runtime.command import complain
from vf.runtime.errors import ConfigError
from vf.runtime.heartbeat import working
from vf.runtime.interrupts import run_until_signal
from vf.runtime.json_output import own_stdout, print_json
from vf.runtime.terminal import make_console
from vf.runtime.toml import checked, read_toml

DONE, FAILED = 0, 1
SHOWN = 3  # differences to an evaluation that is there already
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
        ConfigError: If an argument or setting is wrong.
        VfError: If the evaluation fails as a whole.
    """
    with own_stdout(bool(args.json)):
        summaries, results = _measure(args)
    if args.json:
        print_json(results)
    else:
        from vf.evaluation.result_table import console, print_results

        print_results(summaries, out := console())
        folder = results["folder"]
        out.print(f"\ntraces and results: {folder}", soft_wrap=True)
    return FAILED if any(summary.failed or summary.missing for summary in summaries) else DONE


def _measure(args: argparse.Namespace) -> tuple[list[Summary], dict[str, Any]]:
    """Evaluate, and return the results, also as JSON."""
    from vf.evaluation.eval_config import with_defaults
    from vf.evaluation.refusal import refusal
    from vf.evaluation.results import ResultsFolder
    from vf.evaluation.run import extent, measured, prepare, shortages, unpriced

    config, base = config_of(args)
    with working(make_console(stderr=True), f"preparing {args.what} ..."):
        suites = prepare(config)
        what = measured(config, suites)
    for note in [*shortages(config, suites), *unpriced(config)]:
        print(f"vf-rl eval: {note}", file=sys.stderr)

    def now(before: Mapping[str, Any]) -> dict[str, Any]:
        """Return what is measured now, of as many rollouts as there were before."""
        settings = with_defaults(what["settings"])
        return what | {"settings": settings} | extent(config, suites, before.get("size"))

    path = _folder(base, args, now)
    with ResultsFolder(path) as folder:
        before = folder.before()
        if args.repair and (count := folder.repair()):
            print(f"vf-rl eval: damaged lines put aside in {path}: {count}", file=sys.stderr)
        if before is not None and before != now(before):
            if folder.holds_results():
                raise ConfigError(refusal(args, path, config, before, now(before)))
            print(f"vf-rl eval: all rollouts in {path} failed: starting again", file=sys.stderr)
        summaries, seconds = _run(config, suites, folder, what)
        results = {
            "folder": str(path),
            "seconds": seconds,
            "results": [summary.to_dict() for summary in summaries],
        }
        folder.write_results(results)
    return summaries, results


def _folder(
    base: Path, args: argparse.Namespace, now: Callable[[Mapping[str, Any]], Mapping[str, Any]]
) -> Path:
    """Return where the results go.

    Of those that there are: what can be resumed, with as many rollouts as possible. Otherwise that
    of the same settings which differs least, because its environment, tasks or model have changed
    since; it is refused. Other settings are another evaluation, which gets a folder of its own.
    """
    from vf.evaluation.fingerprint import FORMAT
    from vf.evaluation.refusal import difference_lines
    from vf.evaluation.results import ResultsFolder, next_of, read_config, series

    if args.output is not None or not (there := series(base)):
        return base
    path = next_of(base)
    if args.fresh:
        print(f"vf-rl eval: a new result, beside {there[-1]}: {path}", file=sys.stderr)
        return path
    configs: dict[Path, Mapping[str, Any]] = {}
    for folder in reversed(there):
        with suppress(ConfigError):
            configs[folder] = read_config(folder)
    same = [folder for folder, before in configs.items() if before == now(before)]
    if same:
        return max(same, key=lambda folder: _rollouts(configs[folder]))
    changes = {folder: difference_lines(before, now(before)) for folder, before in configs.items()}

    def held(folder: Path) -> bool:
        before = configs[folder]
        if before.get("format") != FORMAT:  # it is not known what differs
            return True
        return all(before[key] == now(before)[key] for key in ("settings", "size"))

    if refused := [folder for folder in configs if held(folder)]:
        return min(refused, key=lambda folder: len(changes[folder]))
    if not configs or not ResultsFolder(there[-1]).holds_results():
        return there[-1]
    nearest = min(changes, key=lambda folder: len(changes[folder]))
    lines = [line.strip() for line in changes[nearest]]
    differs = "; ".join(lines[:SHOWN]) + (f"; {len(lines) - SHOWN} more" if lines[SHOWN:] else "")
    complain(
        "vf-rl eval",
        f"{nearest} holds another evaluation (there → now: {differs}). The results of this one are "
        f"in {path}",
    )
    return path


def _rollouts(measured: Mapping[str, Any]) -> int:
    size = measured["size"]
    return int(size["rollouts_per_example"] * sum(size["tasks"].values()))


def config_of(args: argparse.Namespace) -> tuple[EvalConfig, Path]:
    """Return the settings and the results folder that the command line names.

    Raises:
        ConfigError: If a setting is wrong, or two do not go together.
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
        try:
            overrides["prices"] = checked(Prices, read_toml(args.prices)).model_dump()["prices"]
        except ConfigError as error:
            raise ConfigError(f"--prices {args.prices}: {error}") from None
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
    config: EvalConfig, suites: Sequence[Any], folder: Any, what: dict[str, Any]
) -> tuple[list[Summary], float]:
    from vf.evaluation.progress import Progress
    from vf.evaluation.run import run_evaluation

    progress = Progress(make_console(stderr=True))

    try:
        summaries = run_until_signal(
            lambda: run_evaluation(
                config, suites, folder, progress, begin=lambda: folder.begin(what)
            )
        )
        return summaries, progress.seconds
    finally:
        progress.stop()

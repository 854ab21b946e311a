"""`vf-rl eval`: measure models, compare evaluations, validate environments, rescore traces."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from vf.runtime.command import DONE, FAILED, CommandParser, run_command
from vf.runtime.garbage import no_collections
from vf.runtime.json_output import own_stdout, print_json
from vf.runtime.visible import visible

USAGE = """vf-rl eval ENV -m MODEL [options]
       vf-rl eval CONFIG.toml [options]
       vf-rl eval --compare A B [--json]
       vf-rl eval --validate ENV [-n N] [--args JSON] [--allow CHECK] [--json]
       vf-rl eval --rescore TRACES --rubric RUBRIC [--args JSON] [-o FILE]"""
EXAMPLES = """\
examples:
  vf-rl eval calculator -m tiny -n 50 -r 4              the model that ships with vf-rl
  vf-rl eval calculator -m models/smollm2 -n 20         a folder: an engine is started for it
  vf-rl eval ./my_env.py                                a file; nothing is installed
  vf-rl eval harbor:tasks --agent oracle                the tasks' own solutions, no model
  vf-rl eval geo-qa -m qwen3-8b -b http://127.0.0.1:8000/v1 -n 100 -r 4 -c 64
  vf-rl eval calculator -m gpt-5-mini --args '{"max_operations": 3}' --prices prices.toml
  vf-rl eval evals.toml                                 several environments and models
  vf-rl eval --compare evals/a evals/b                  paired by task
  vf-rl eval --validate my-env --args '{"difficulty": 3}'
  vf-rl eval --rescore runs/a/traces --rubric my_rubrics:strict --output rescored.jsonl

Run an interrupted command again to resume it; failed rollouts are retried.
Exit codes: 0 done, 1 failed (or some rollouts did), 2 bad usage or config.
"""

# Which options belong to which of the four things that the command does.
EVALUATE, COMPARE, VALIDATE, RESCORE = "an evaluation", "--compare", "--validate", "--rescore"
BELONGS_TO: dict[str, tuple[str, ...]] = {
    "compare": (COMPARE,),
    "validate": (VALIDATE,),
    "rescore": (RESCORE,),
    "rubric": (RESCORE,),
    "args": (EVALUATE, VALIDATE, RESCORE),
    "output": (EVALUATE, RESCORE),
    "tasks": (EVALUATE, VALIDATE),
    "allow": (VALIDATE,),
    "json": (EVALUATE, COMPARE, VALIDATE),
}


def build_parser() -> argparse.ArgumentParser:
    """Return the command line's parser. Every default is None: the option was not given."""
    parser = CommandParser(
        prog="vf-rl eval",
        usage=USAGE,
        description="Measure a model in an environment, with confidence intervals.",
        epilog=EXAMPLES,
        argument_default=None,
    )
    parser.add_argument(
        "what",
        nargs="?",
        metavar="ENV",
        help="an environment: its id, my_env.py, my_env.py:NAME or pkg.module:NAME; or a TOML",
    )
    add = parser.add_argument_group("instead of an evaluation").add_argument
    paths: dict[str, Any] = {"type": Path, "metavar": ("A", "B")}
    add("--compare", nargs=2, help="compare two results folders, paired by task", **paths)
    add("--validate", metavar="ENV", help="check that an environment can be solved but not gamed")
    add("--rescore", type=Path, metavar="TRACES", help="score a traces file or folder again")
    add(
        "--rubric",
        metavar="RUBRIC",
        help="of --rescore: my_rubric.py, 'module:name' or an environment",
    )
    add(
        "--allow",
        action="append",
        metavar="CHECK",
        help="let a check of --validate fail; repeatable",
    )

    add = parser.add_argument_group("model").add_argument
    add(
        "-m",
        "--model",
        help="its name at the API; or, for a local engine, a folder, a hub name (OWNER/NAME) or "
        "tiny (default)",
    )
    add("--agent", choices=("oracle", "nop"), help="no model: the tasks' own solution, or nothing")
    add(
        "-b",
        "--base-url",
        metavar="URL",
        help="the API, up to and including /v1 (default: OpenAI's)",
    )
    add(
        "--api-key-env",
        metavar="NAME",
        help="environment variable with the API key (default: OPENAI_API_KEY)",
    )
    add(
        "--engine",
        choices=("api", "embedded", "vllm"),
        help="what runs the model (default: embedded for a folder or hub name without -b, api "
        "otherwise)",
    )
    add(
        "--vllm-python",
        metavar="PATH",
        help="with --engine vllm: interpreter that has vLLM, if it is not found by itself",
    )
    add("--tokenizer", metavar="MODEL", help="model whose tokenizer to use if MODEL has none")
    add(
        "--chat-template",
        metavar="NAME",
        help="chat template of a local model: chatml, plain, or a file (default: its own)",
    )
    add(
        "--tool-style",
        choices=("template", "text"),
        help="text: list the tools in the system prompt, and read calls from the text",
    )

    count: dict[str, Any] = {"type": int, "metavar": "N"}
    add = parser.add_argument_group("evaluation").add_argument
    add("-n", "--tasks", **count, help="number of tasks (default: all; with --validate 8)")
    add("-r", "--rollouts-per-example", **count, help="rollouts of each task (default: 1)")
    add("-c", "--max-concurrent", **count, help="rollouts in flight (default: 32)")
    add("--max-tokens", **count, help="tokens sampled in one turn (default: 1024)")
    add("--temperature", type=float, metavar="T", help="0 is greedy (default: 1)")
    add("--seed", **count, help="seed of all randomness (default: 0)")
    add(
        "--args",
        type=_json_object,
        metavar="JSON",
        help="arguments of the environment, or of the function that --rubric names",
    )
    add(
        "--retry-errors",
        **count,
        nargs="?",
        const=1,
        help="retry failed rollouts, N times each (1)",
    )
    add("--prices", type=Path, metavar="FILE", help="TOML with prices per million tokens")

    add = parser.add_argument_group(
        "limits of a rollout (it is scored and marked truncated)"
    ).add_argument
    add("--max-turns", **count, help="replies of the model")
    add("--max-total-tokens", **count, help="tokens sampled in all turns")
    add("--max-seconds", type=float, metavar="S", help="wall time")
    add("--max-cost", type=float, metavar="X", help="cost, by --prices")

    add = parser.add_argument_group("output").add_argument
    add(
        "-o",
        "--output",
        type=Path,
        metavar="PATH",
        help="results folder (default: evals/ENV-MODEL), or the file of --rescore",
    )
    add(
        "--fresh",
        action="store_const",
        const=True,
        help="start a new result beside the one that is there",
    )
    add(
        "--repair",
        action="store_const",
        const=True,
        help="put lines that cannot be read aside, and run their rollouts again",
    )
    add("--json", action="store_const", const=True, help="print one JSON object instead of tables")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    parser = build_parser()
    args = parser.parse_args(argv)
    run = _chosen(parser, args)
    here = str(Path.cwd())
    added = [here] if here not in sys.path else []
    sys.path += added  # 'module:name' may lie here; last, for a random.py may lie here, too
    try:
        again = "the same command, without --fresh," if args.fresh else "the same command"
        return run_command("vf-rl eval", run, kept=f"run {again} to resume")
    finally:
        for folder in added:  # one that was there before keeps its place
            sys.path.remove(folder)


def _chosen(parser: argparse.ArgumentParser, args: argparse.Namespace) -> Callable[[], int]:
    """Return what the arguments ask for; exit with a usage error if they do not go together."""
    modes = {
        EVALUATE: args.what,
        COMPARE: args.compare,
        VALIDATE: args.validate,
        RESCORE: args.rescore,
    }
    named = [name for name, value in modes.items() if value is not None]
    if not named:
        parser.error("name an environment or a TOML, or --compare, --validate or --rescore")
    if len(named) > 1:
        parser.error(f"{' and '.join(named)} cannot be combined")
    for option, value in vars(args).items():
        belongs_to = BELONGS_TO.get(option, (EVALUATE,))
        if value is not None and named[0] not in belongs_to:
            flag = f"--{option.replace('_', '-')}"
            parser.error(f"{flag} belongs to {' or '.join(belongs_to)}")
    if args.fresh and args.output is not None:
        parser.error("--fresh names the new folder itself; leave it out to name one")
    if (args.rescore is None) != (args.rubric is None):
        parser.error("--rescore and --rubric go together")
    does = {EVALUATE: _evaluate, COMPARE: _compare, VALIDATE: _validate, RESCORE: _rescore}
    return lambda: does[named[0]](args)


def _evaluate(args: argparse.Namespace) -> int:
    with no_collections():
        from vf.evaluation.command import evaluate_command
        from vf.runtime.open_files import raise_limit

    raise_limit()
    return evaluate_command(args)


def _compare(args: argparse.Namespace) -> int:
    from vf.evaluation.compare import compare
    from vf.evaluation.result_table import console, print_comparison

    comparisons = compare(*args.compare)
    if args.json:
        print_json([comparison.to_dict() for comparison in comparisons])
    else:
        print_comparison(comparisons, console())
    return DONE


def _validate(args: argparse.Namespace) -> int:
    import asyncio

    from vf.environments.registry import make
    from vf.evaluation.validation.findings import print_report
    from vf.evaluation.validation.progress import showing
    from vf.evaluation.validation.validate import DEFAULT_TASKS, validate
    from vf.runtime.terminal import make_console

    tasks = DEFAULT_TASKS if args.tasks is None else args.tasks
    with own_stdout(bool(args.json)):
        environment, again = (make(args.validate, **(args.args or {})) for _ in range(2))
        with showing(make_console(stderr=True)) as show:
            checks = validate(
                environment, again=again, tasks=tasks, allow=args.allow or (), on_progress=show
            )
            report = asyncio.run(checks)
    if args.tasks is not None and report.tasks < args.tasks:
        few = f"{report.environment} has only {report.tasks} tasks in its eval split"
        print(f"vf-rl eval: {few}, of the {args.tasks} asked for", file=sys.stderr)
    if args.json:
        print_json(report.to_dict())
    else:
        print_report(report, make_console())
    return DONE if report.passed else FAILED


def _rescore(args: argparse.Namespace) -> int:
    from vf.evaluation.rescore import load_rubric, rescore_files

    rubric = load_rubric(args.rubric, args.args)
    tally = rescore_files(args.rescore, rubric, args.output)
    print(visible("\n".join(tally.lines())))
    return FAILED if tally.errors else DONE


def _json_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"not JSON: {error}") from None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError("must be a JSON object")
    return value

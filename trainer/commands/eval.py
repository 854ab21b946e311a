"""`vf-eval`: measure models, compare measurements, check an environment, score traces again."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from vf.runtime.command import run_command

EXAMPLES = """\
examples:
  vf-eval calculator -m tiny -n 50 -r 4                 the model that ships with vf-rl
  vf-eval calculator -m models/smollm2 -n 20            a folder, on an engine of our own
  vf-eval geo-qa -m qwen3-8b -b http://127.0.0.1:8000/v1 -n 100 -r 4 -c 64
  vf-eval calculator -m gpt-5-mini --env-arg max_operations=3 --prices prices.toml
  vf-eval evals.toml                                    several environments and models
  vf-eval --compare evals/a evals/b                     paired by task
  vf-eval --validate my-env --args '{"difficulty": 3}'
  vf-eval --rescore runs/a/traces --rubric my_rubrics:strict --output rescored.jsonl

The same command goes on where an interrupted one stopped, and does failed rollouts over.
Exit codes: 0 done, 1 failed, or some rollouts did, 2 bad usage or config.
"""

# Which options go with which of the things that the command does.
EVALUATE, COMPARE, VALIDATE, RESCORE = "an evaluation", "--compare", "--validate", "--rescore"
GOES_WITH: dict[str, tuple[str, ...]] = {
    "rubric": (RESCORE,),
    "args": (EVALUATE, VALIDATE, RESCORE),
    "output": (EVALUATE, RESCORE),
    "tasks": (EVALUATE, VALIDATE),
    "allow": (VALIDATE,),
    "json": (EVALUATE, COMPARE, VALIDATE),
}
EVALUATION_ONLY = (
    *("model", "base_url", "api_key_env", "engine", "tokenizer", "env_arg", "prices"),
    "rollouts_per_example",
    *("max_concurrent", "max_tokens", "temperature", "seed", "retry_errors", "max_turns"),
    *("max_total_tokens", "max_seconds", "max_cost"),
)


def build_parser() -> argparse.ArgumentParser:
    """Return the command line's parser. Every default is None: what was not said."""
    parser = argparse.ArgumentParser(
        prog="vf-eval",
        usage="vf-eval ENV -m MODEL [options] | CONFIG.toml [options] | --compare A B | "
        "--validate ENV | --rescore TRACES --rubric RUBRIC",
        description="Measure a model in an environment, and get numbers to defend.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        argument_default=None,
    )
    add = parser.add_argument
    add("what", nargs="?", metavar="ENV", help="an environment, or a TOML with several")
    other = parser.add_argument_group("instead of an evaluation")
    other.add_argument(
        "--compare",
        nargs=2,
        type=Path,
        metavar=("A", "B"),
        help="two results folders, paired by task",
    )
    other.add_argument(
        "--validate",
        metavar="ENV",
        help="see whether the environment can be solved, and whether it can be gamed",
    )
    other.add_argument(
        "--rescore",
        type=Path,
        metavar="TRACES",
        help="score a traces file, or a folder of them, again",
    )
    _add_model(parser.add_argument_group("the model"))
    _add_evaluation(parser.add_argument_group("the evaluation"))
    _add_limits(
        parser.add_argument_group("limits of one rollout (it is scored, and marked truncated)")
    )
    shared = parser.add_argument_group("other")
    shared.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="PATH",
        help="the results folder (evals/ENV-MODEL by default), or the file of --rescore",
    )
    shared.add_argument(
        "--json", action="store_const", const=True, help="print one JSON object instead of tables"
    )
    shared.add_argument(
        "--args",
        type=_json_object,
        metavar="JSON",
        help="arguments of the environment, or of the function that returns the rubric",
    )
    shared.add_argument(
        "--rubric", metavar="RUBRIC", help="with --rescore: 'module:name', or an environment's id"
    )
    shared.add_argument(
        "--allow",
        action="append",
        metavar="CHECK",
        help="with --validate: a check that may fail; can be repeated",
    )
    return parser


def _add_model(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "-m",
        "--model",
        metavar="MODEL",
        help="its name at the API; or a folder, or tiny (the default), for an engine of our own",
    )
    group.add_argument(
        "-b",
        "--base-url",
        metavar="URL",
        help="the API, up to and including /v1; OpenAI's own by default",
    )
    group.add_argument(
        "--api-key-env",
        metavar="NAME",
        help="environment variable with the key (OPENAI_API_KEY by default)",
    )
    group.add_argument(
        "--engine",
        choices=("api", "embedded", "vllm"),
        help="who answers; a folder's is embedded by default",
    )
    group.add_argument(
        "--tokenizer",
        metavar="MODEL",
        help="who has tokenizer and chat template, where a local model has none",
    )


def _add_evaluation(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "-n",
        "--tasks",
        type=int,
        metavar="N",
        help="how many tasks (all by default; with --validate 8)",
    )
    group.add_argument(
        "-r",
        "--rollouts-per-example",
        "--rollouts",
        type=int,
        metavar="N",
        help="rollouts of each task (1)",
    )
    group.add_argument(
        "-c",
        "--max-concurrent",
        "--concurrency",
        type=int,
        metavar="N",
        help="rollouts in flight at once (32)",
    )
    group.add_argument(
        "--max-tokens", type=int, metavar="N", help="tokens sampled in one turn (1024)"
    )
    group.add_argument("--temperature", type=float, metavar="T", help="0 is greedy (1)")
    group.add_argument("--seed", type=int, metavar="N", help="of everything random (0)")
    group.add_argument(
        "--env-arg",
        action="append",
        type=_pair,
        metavar="KEY=VALUE",
        help="an argument of the environment; can be repeated",
    )
    group.add_argument(
        "--retry-errors",
        type=int,
        nargs="?",
        const=1,
        metavar="N",
        help="do a failed rollout over at once, up to N times (1)",
    )
    group.add_argument(
        "--prices",
        type=Path,
        metavar="FILE",
        help='a TOML: [prices."MODEL"] input and output, per million tokens',
    )


def _add_limits(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--max-turns", type=int, metavar="N", help="answers of the model")
    group.add_argument("--max-total-tokens", type=int, metavar="N", help="sampled in all turns")
    group.add_argument("--max-seconds", type=float, metavar="S", help="wall time")
    group.add_argument("--max-cost", type=float, metavar="X", help="by --prices")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    parser = build_parser()
    args = parser.parse_args(argv)
    run = _chosen(parser, args)
    here = str(Path.cwd())
    sys.path.insert(0, here)  # as `python` would: 'module:name' may lie here
    try:
        return run_command("vf-eval", run, kept="the same command goes on from here")
    finally:
        sys.path.remove(here)


def _chosen(parser: argparse.ArgumentParser, args: argparse.Namespace) -> Callable[[], int]:
    """Return what the arguments ask for, if they go together."""
    asked = {
        EVALUATE: args.what,
        COMPARE: args.compare,
        VALIDATE: args.validate,
        RESCORE: args.rescore,
    }
    named = [name for name, value in asked.items() if value is not None]
    if not named:
        parser.error("name an environment or a TOML, or --compare, --validate or --rescore")
    if len(named) > 1:
        parser.error(f"{' and '.join(named)} are two things; ask for one")
    for option in (*GOES_WITH, *EVALUATION_ONLY):
        goes_with = GOES_WITH.get(option, (EVALUATE,))
        if getattr(args, option) is not None and named[0] not in goes_with:
            flag = f"--{option.replace('_', '-')}"
            parser.error(f"{flag} goes with {' or '.join(goes_with)}")
    if (args.rescore is None) != (args.rubric is None):
        parser.error("--rescore and --rubric go together")
    match named[0]:
        case "--compare":
            return lambda: _compare(args)
        case "--validate":
            return lambda: _validate(args)
        case "--rescore":
            return lambda: _rescore(args)
    return lambda: _evaluate(args)


def _evaluate(args: argparse.Namespace) -> int:
    from vf.evaluation.command import evaluate_command

    return evaluate_command(args)


def _compare(args: argparse.Namespace) -> int:
    from vf.evaluation.command import compare_command

    return compare_command(*args.compare, as_json=bool(args.json))


def _validate(args: argparse.Namespace) -> int:
    from vf.evaluation.validation.validate import DEFAULT_TASKS
    from vf.evaluation.validation.validate_command import run_validate

    return run_validate(
        args.validate,
        args.args or {},
        tasks=DEFAULT_TASKS if args.tasks is None else args.tasks,
        allow=args.allow or (),
        as_json=bool(args.json),
    )


def _rescore(args: argparse.Namespace) -> int:
    from vf.evaluation.rescore_command import run_rescore

    return run_rescore(args.rescore, args.rubric, args.args, args.output)


def _pair(text: str) -> tuple[str, Any]:
    """Return a key and its value: JSON, or else text."""
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise argparse.ArgumentTypeError(f"{text!r} must be of the form key=value")
    try:
        return key, json.loads(value)
    except ValueError:
        return key, value


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

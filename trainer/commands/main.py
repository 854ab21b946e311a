"""`vf-rl`: `vf-rl CONFIG.toml` trains, and `vf-rl COMMAND` runs one of the other commands.

Nothing heavy is imported before the arguments have been parsed.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from vf.runtime.command import (
    BAD_USAGE,
    CommandParser,
    add_run_options,
    check_run_options,
    complain,
    run_command,
)
from vf.runtime.errors import did_you_mean
from vf.runtime.garbage import no_collections

# Name: the room whose commands/NAME.py has its main(argv), and the line of help.
COMMANDS = {
    "eval": ("evaluation", "measure a model in an environment; compare, validate, rescore"),
    "init": ("environments", "create the package of a new environment"),
    "serve": ("trainer", "serve a model or a run behind an OpenAI-compatible API"),
    "view": ("trainer", "show runs and evaluations in the browser; export traces"),
    "mismatch": ("trainer", "show where sampler and trainer differ, and price corrections"),
    "search": ("tools", "build, serve and query search indexes"),
    "sandbox": ("sandbox", "set up and check the sandboxes that run untrusted code"),
    "sft": ("trainer", "fine-tune a model on saved traces, before RL"),
    "export": ("trainer", "write a checkpoint as a model for transformers and vLLM"),
    "check-template": ("inference", "test a chat template on multi-turn conversations"),
    "cluster": ("trainer", "print what starts a run under SLURM or KubeRay"),
    "doctor": ("trainer", "say what this machine and a TOML lack, and how to get it"),
}
DESCRIPTION = "\n".join(
    [
        "example: vf-rl configs/quickstart.toml  (exits 0 done, 1 failed, 2 bad usage)",
        "Train a language model in an environment, or run a command (each has --help):",
        *(f"  {name:<17}{text}" for name, (_, text) in COMMANDS.items()),
    ]
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command.

    Args:
        argv: The arguments; by default those of the process.

    Returns:
        The exit code: 0 done, 1 failed, 2 bad usage or config.
    """
    if argv is not None:
        return _run(list(argv))
    code = _run(sys.argv[1:])
    gc.freeze()  # as it ends, Python looks for garbage: a second, where torch was loaded
    return code


def _run(words: list[str]) -> int:
    first = words[0] if words else "-"
    if first in COMMANDS:
        return run_command(f"vf-rl {first}", lambda: _command(first, words[1:]))
    if not first.startswith("-") and not Path(first).suffix and not Path(first).exists():
        listed = f" Commands: {', '.join(COMMANDS)}; to train, name a TOML"
        hint = did_you_mean(first, COMMANDS) or listed
        return complain("vf-rl", f"there is no command {first!r}.{hint}", BAD_USAGE)
    args = _parse(words)
    return run_command("vf-rl", lambda: _train(args, words))


def _command(name: str, words: list[str]) -> int:
    room, _ = COMMANDS[name]
    with no_collections():
        command = importlib.import_module(f"vf.{room}.commands.{name.replace('-', '_')}")
    return int(command.main(words))


def _train(args: argparse.Namespace, words: list[str]) -> int:
    with no_collections():
        from vf.trainer.commands.train import train

    return train(args, words)


def _parse(words: list[str]) -> argparse.Namespace:
    parser = CommandParser(
        prog="vf-rl",
        usage="vf-rl CONFIG.toml [options] | --resume RUN [options] | COMMAND ...",
        description=DESCRIPTION,
        add_help=False,
    )
    add = parser.add_argument_group("options for training").add_argument
    add("-h", "--help", action="help", help=argparse.SUPPRESS)
    add("--version", action="version", version=f"vf-rl {version('vf-rl')}", help=argparse.SUPPRESS)
    add_run_options(
        add,
        set="override a setting; a bare KEY means [trainer.args]",
        dry_run="print the plan, check that everything starts, and stop",
        resume="resume a run from its last checkpoint, or --from STEP",
    )
    add(
        "--allow-changes", action="store_true", help="resume even if the weights of `model` changed"
    )
    add("--from", dest="checkpoint", metavar="STEP", help=argparse.SUPPRESS)
    add("--tmux", action="store_true", help="run in a tmux session, with panes for the logs")
    add("--profile", action="store_true", help="profile one step, print where its time went, stop")
    args = parser.parse_args(words)
    check_run_options(parser, args)
    if args.allow_changes and args.resume is None:
        parser.error("--allow-changes needs --resume")
    if args.checkpoint is not None and args.resume is None:
        parser.error("--from needs --resume")
    if args.tmux and args.dry_run:
        parser.error("--dry-run starts no run, so it cannot be combined with --tmux")
    if args.profile and (args.dry_run or args.resume is not None):
        parser.error("--profile starts its own run: leave out --dry-run and --resume")
    return args


if __name__ == "__main__":
    sys.exit(main())

"""`vf-rl export`: a checkpoint as a model or an adapter that transformers and vLLM load."""

from __future__ import annotations

import argparse
import json
import shlex
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from vf.runtime.command import DONE, CommandParser, quiet_transformers, run_command
from vf.runtime.heartbeat import working
from vf.runtime.terminal import command, make_console, show
from vf.runtime.uninterruptible import wait_for

if TYPE_CHECKING:
    from rich.text import Text

    from vf.trainer.saving.export import Exported
    from vf.trainer.saving.export_source import Source

EPILOG = """\
examples:
  vf-rl export runs/quickstart-1
  vf-rl export runs/quickstart-1 --checkpoint best --dtype bfloat16 -o models/mine
  vf-rl export runs/quickstart-1 --adapter
  vf-rl export runs/quickstart-1/checkpoints/step-30

An existing folder is never overwritten, and a failed export leaves nothing behind.
Exit codes: 0 done, 1 failed, 2 bad usage or a damaged checkpoint.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    parser = CommandParser(
        prog="vf-rl export",
        description="Write a checkpoint as a model or a LoRA adapter in Hugging Face's format, "
        "with\ntokenizer, chat template and stop tokens.",
        epilog=EPILOG,
    )
    parser.add_argument("run", type=Path, metavar="RUN", help="folder of a run or a checkpoint")
    parser.add_argument(
        "--checkpoint", metavar="step-N|best|last", help="checkpoint of the run (default: last)"
    )
    parser.add_argument(
        "--adapter",
        action="store_true",
        help="write the LoRA adapter in PEFT's format instead of merging it into the base",
    )
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="FOLDER",
        help="default: RUN/exports/step-N-merged, -adapter, or -model if all weights were trained",
    )
    parser.add_argument(
        "--dtype",
        choices=("float32", "bfloat16"),
        help="type of the weights (default: the one the run trained in)",
    )
    parser.add_argument(
        "--base", metavar="MODEL", help="the base model, if it has moved since the run"
    )
    args = parser.parse_args(argv)

    def run() -> int:
        _export(args)
        return DONE

    return run_command("vf-rl export", run, kept="nothing is left behind", extra="train")


def _export(args: argparse.Namespace) -> None:
    from vf.trainer.saving.export_source import Source, find_checkpoint

    console = make_console()
    checkpoint = find_checkpoint(args.run, args.checkpoint)
    source = Source.read(checkpoint, args.base)
    with working(console, "starting ...") as say, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # from libraries; what matters here is an error
        wait_for(_load)
        from vf.trainer.saving.export import export

        show(console, [("from", str(checkpoint))])
        exported = export(
            source,
            args.output,
            adapter=args.adapter,
            dtype=args.dtype,
            say=lambda text: say(f"{text} ..."),
        )
    show(console, _lines(source, exported))


def _load() -> None:
    quiet_transformers()
    import vf.trainer.saving.export  # noqa: F401


def _lines(source: Source, exported: Exported) -> list[tuple[str, str | Text]]:
    """Return what was written and how to use it, as pairs of name and text."""
    form = {"merged": "base and adapter merged", "model": "all weights", "adapter": "adapter"}
    folder = str(exported.folder)
    load, serve = f"AutoModelForCausalLM.from_pretrained({folder!r})", ["vllm", "serve", folder]
    if exported.form == "adapter":
        base = f"AutoModelForCausalLM.from_pretrained({source.base!r})"
        load = f"peft.PeftModel.from_pretrained({base}, {folder!r})"
        serve = _serve_adapter(source, folder)
    if source.template_args:
        serve += ["--default-chat-template-kwargs", json.dumps(source.template_args)]
    size = f"{exported.size / 2**20:,.1f} MiB"
    note = (
        "the base model ties its head to the embedding, and only one of the two was trained, so "
        "the merged model has a separate head (tie_word_embeddings = false). A server that ties "
        "them anyway, as vLLM does for Gemma 2 and Command R, would serve a different model: "
        "export for it with --adapter"
    )
    return [
        ("exported", f"{folder}: {form[exported.form]}, {exported.dtype}, {size}"),
        *([("note", note)] if exported.untied else []),
        ("transformers", load),
        ("vllm", command(*map(shlex.quote, serve))),
        ("measure", command("vf-rl", "eval", "ENV", "-m", shlex.quote(folder))),
    ]


def _serve_adapter(source: Source, folder: str) -> list[str]:
    from vf.inference.vllm.server_args import rank_bucket

    rank = rank_bucket(int((source.adapter or {})["r"]))
    return [
        *("vllm", "serve", source.base, "--enable-lora", "--max-lora-rank", str(rank)),
        *("--lora-modules", f"trained={folder}", "--generation-config", folder),
    ]

"""`vf-rl export`: a checkpoint as a model or an adapter that transformers and vLLM load."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from vf.runtime.command import DONE, run_command, show
from vf.runtime.signals import orderly_end

if TYPE_CHECKING:
    from vf.trainer.saving.export import Exported
    from vf.trainer.saving.source import Source

EPILOG = """\
examples:
  vf-rl export runs/quickstart-1
  vf-rl export runs/quickstart-1 --checkpoint best --dtype bfloat16 -o models/mine
  vf-rl export runs/quickstart-1 --adapter
  vf-rl export runs/quickstart-1/checkpoints/step-30

A folder that exists is never overwritten, and what fails on the way leaves nothing behind.
Exit codes: 0 done, 1 it could not be written, 2 bad usage or a damaged checkpoint.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    parser = argparse.ArgumentParser(
        prog="vf-rl export",
        description="Write what a run learned as a model, or as an adapter on top of one, in "
        "Hugging Face's format, with the tokenizer, the chat template and the stop tokens.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("run", type=Path, metavar="RUN", help="a run's folder, or a checkpoint's")
    parser.add_argument(
        "--checkpoint", metavar="step-N|best|last", help="which of the run's; the last by default"
    )
    parser.add_argument(
        "--adapter",
        action="store_true",
        help="write the LoRA adapter, in PEFT's format; by default it is merged into the base",
    )
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="FOLDER",
        help="by default RUN/exports/step-N-merged, -model (all weights were trained) or -adapter",
    )
    parser.add_argument(
        "--dtype",
        choices=("float32", "bfloat16"),
        help="of the weights; by default what the run trained in",
    )
    parser.add_argument(
        "--base", metavar="MODEL", help="the base model, if it is not where the run found it"
    )
    args = parser.parse_args(argv)

    def run() -> int:
        with orderly_end(launched=False):
            _export(args)
        return DONE

    return run_command("vf-rl export", run, kept="nothing is left behind", extra="train")


def _export(args: argparse.Namespace) -> None:
    from rich.console import Console

    console = Console(highlight=False)
    with console.status("starting ...") as status, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # libraries' advice; what matters is an error here
        import transformers

        from vf.trainer.saving.export import export
        from vf.trainer.saving.source import Source, find_checkpoint

        transformers.utils.logging.disable_progress_bar()
        transformers.utils.logging.set_verbosity_error()
        checkpoint = find_checkpoint(args.run, args.checkpoint)
        show(console, [("from", str(checkpoint))])
        source = Source.read(checkpoint, args.base)
        exported = export(
            source,
            args.output,
            adapter=args.adapter,
            dtype=args.dtype,
            say=lambda text: status.update(f"{text} ..."),
        )
    show(console, _lines(source, exported))


def _lines(source: Source, exported: Exported) -> list[tuple[str, str]]:
    """Return what was written and how it is used, as pairs of name and text."""
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
        "the base's head shares its weights with the embedding, and only one of the two was "
        "trained; so the merged model has a head of its own (tie_word_embeddings = false). A "
        "server that ties them all the same, as vLLM does for Gemma 2 and Command R, would serve "
        "another model: export for it with --adapter"
    )
    return [
        ("exported", f"{folder}: {form[exported.form]}, {exported.dtype}, {size}"),
        *([("note", note)] if exported.untied else []),
        ("transformers", load),
        ("vllm", shlex.join(serve)),
        ("measure", f"vf-eval ENV -m {shlex.quote(folder)}"),
    ]


def _serve_adapter(source: Source, folder: str) -> list[str]:
    from vf.inference.vllm.vllm_engine import rank_bucket

    rank = rank_bucket(int((source.adapter or {})["r"]))
    return [
        *("vllm", "serve", source.base, "--enable-lora", "--max-lora-rank", str(rank)),
        *("--lora-modules", f"trained={folder}", "--generation-config", folder),
    ]


if __name__ == "__main__":
    sys.exit(main())

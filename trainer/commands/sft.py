"""`vf-rl sft`: fine-tune a model on the best saved traces, from one TOML."""

from __future__ import annotations

import argparse
import importlib.util
import os
import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING

from vf.runtime.command import (
    DONE,
    CommandParser,
    add_run_options,
    check_run_options,
    config_file,
    quiet_transformers,
    reading_bar,
    run_command,
)
from vf.runtime.errors import ConfigError
from vf.runtime.heartbeat import working
from vf.runtime.terminal import GOOD, command, headline, link, make_console, show
from vf.runtime.uninterruptible import wait_for

if TYPE_CHECKING:
    from rich.console import Console

    from vf.inference.model_files import Checkpoint
    from vf.inference.rendering.renderer import Renderer
    from vf.trainer.run.run_folder import RunFolder
    from vf.trainer.sft.select import Selection
    from vf.trainer.sft.settings import SftConfig
    from vf.trainer.sft.training import Warmed

EXAMPLES = """\
examples:
  vf-rl sft configs/sft/calculator.toml
  vf-rl sft configs/sft/calculator.toml --dry-run
  vf-rl sft configs/sft/calculator.toml --set min_reward=0.8 --set num_epochs=3
  vf-rl sft --resume runs/calculator-1 --set max_steps=200

The result is runs/calculator-1/model: set it as `model` in the TOML of a training run.
Exit codes: 0 done, 1 failed, 2 bad usage, config or input.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    parser = CommandParser(
        prog="vf-rl sft",
        usage="vf-rl sft CONFIG.toml [options] | --resume RUN [options]",
        description="Fine-tune a language model on the best saved traces with TRL's SFTTrainer.\n"
        "Only the tokens that the model wrote carry loss.",
        epilog=EXAMPLES,
    )
    add_run_options(
        parser.add_argument,
        set="override a setting; a bare KEY means [trainer.args] or [data]",
        dry_run="select the traces, print the plan, and stop",
        resume="resume a run from its last checkpoint, on the traces it started with",
    )
    args = parser.parse_args(argv)
    check_run_options(parser, args)
    kept = "finished checkpoints are kept"
    return run_command("vf-rl sft", lambda: _run(args), kept=kept, extra="train,trl")


def _run(args: argparse.Namespace) -> int:
    from vf.trainer.run.run_folder import RunFolder, choose_folder, make_folder
    from vf.trainer.sft.settings import load_sft_config

    console = make_console()
    toml = config_file(args)
    if args.resume is not None:
        folder = RunFolder(args.resume)
        config = load_sft_config(toml, args.set)
        if config.data != load_sft_config(toml).data:
            raise ConfigError(
                "--resume continues with the traces that the run started with, so [data] "
                "cannot be changed; start a new run"
            )
    else:
        if toml.is_file() and toml.suffix != ".toml":
            raise ConfigError(
                f"{toml} is not a TOML file. vf-rl sft reads one that names traces or "
                'OpenAI chat lines, such as [data] traces = ["runs/quickstart-1"]; docs/sft.md has '
                "more"
            )
        config = load_sft_config(toml, args.set)
        choose_folder(config, args.config.stem)  # a name that is taken is an error at once
    _check_packages(config)
    checkpoint = _check_names(config, resumed=args.resume is not None)
    _one_device()
    with working(console, "loading the tokenizer ..."):
        wait_for(_load)
        renderer = _renderer(config, checkpoint)
    if args.resume is None:
        selection = _select(config, renderer, console)
        if args.dry_run:
            from rich.text import Text

            console.print(Text.assemble(("ready", GOOD), ": nothing was written or trained"))
            return DONE
        folder = make_folder(config, args.config.stem)
        _write(config, selection, folder)
    return _train(config, renderer, folder, console)


def _select(config: SftConfig, renderer: Renderer, console: Console) -> Selection:
    """Select the traces, and show the plan."""
    from vf.trainer.sft.select import select, training_sources
    from vf.trainer.sft.training import total_steps

    args = config.args
    sources, _ = training_sources(config.data.traces)
    with reading_bar(source.path for source in sources) as advance:
        selection = select(config, renderer, advance)
    how = f"LoRA rank {args.lora_rank}" if args.use_lora else "all weights"
    steps = total_steps(args, len(selection.train))
    plan = [
        ("model", config.model),
        *selection.describe(),
        (
            "training",
            f"{how}, learning rate {args.learning_rate:.3g}, {steps} steps of "
            f"{args.batch_size} sequences",
        ),
    ]
    show(console, plan)
    return selection


def _write(config: SftConfig, selection: Selection, folder: RunFolder) -> None:
    """Write the settings and the sequences into the run's folder."""
    from vf.trainer.settings.write_config import to_toml
    from vf.trainer.sft.dataset import save_sequences
    from vf.trainer.sft.training import held_out_file, train_file

    folder.write_config(to_toml(config))
    save_sequences(selection.train, train_file(folder))
    if selection.held_out:
        save_sequences(selection.held_out, held_out_file(folder))


def _train(config: SftConfig, renderer: Renderer, folder: RunFolder, console: Console) -> int:
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    from vf.trainer.settings.write_config import to_toml
    from vf.trainer.sft.training import finished, train_file, warm_start

    if not train_file(folder).exists():
        raise ConfigError(f"{folder.path} is not the folder of a `vf-rl sft` run, or has no data")
    if step := finished(config.args, folder):
        length = "max_steps" if config.args.max_steps else "num_epochs"
        more = f"{length}={2 * getattr(config.args, length)}"
        further = shlex.join(["--resume", str(folder.path), "--set", more])
        message = f"already finished: {step} steps; to go further: vf-rl sft {further}"
        console.print(message, soft_wrap=True)
        return DONE
    folder.open()
    folder.traces.rmdir()  # for rollouts, which SFT does not make
    show(console, [("run", link(folder.path))])
    columns = (
        TextColumn("training", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[said]}", markup=False),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=None, said="")

        def begin(step: int, steps: int) -> None:
            folder.write_config(to_toml(config))  # now that nothing of it was refused
            bar.update(task, completed=step, total=steps)
            if step:
                console.print(f"resumed after step {step}")

        def watch(metrics: dict[str, float]) -> None:
            if "eval/loss" in metrics:
                console.print(
                    f"step {metrics['step']:5d}  held-out loss {metrics['eval/loss']:.4f}"
                )
            else:
                bar.update(task, completed=metrics["step"], said=f"loss {metrics['loss']:.4f}")

        warmed = warm_start(config, folder, renderer, watch=watch, begin=begin)
    _summarise(warmed, folder, console)
    return DONE


def _summarise(warmed: Warmed, folder: RunFolder, console: Console) -> None:
    spent = f"in {warmed.seconds:.0f} s"
    if warmed.eval_before is None:
        headline(console, f"{warmed.steps} steps {spent}", "without held-out traces")
    else:
        losses = f"{warmed.eval_before:.4f} → {warmed.eval_after:.4f}"
        headline(console, f"{losses} {spent}", f"held-out loss, {warmed.steps} steps")
    model = link(warmed.model, shlex.quote(str(warmed.model)))
    chosen = shlex.quote(f'model="{warmed.model}"')
    show(
        console,
        [
            ("metrics", link(folder.metrics)),
            ("model", link(warmed.model)),
            ("measure", command("vf-rl", "eval", "ENV", "-m", model)),
            ("train", command("vf-rl", "CONFIG.toml", "--set", chosen)),
        ],
    )


def _check_names(config: SftConfig, *, resumed: bool) -> Checkpoint:
    """Check that model, chat template and traces are there, before torch is imported."""
    from vf.inference.model_files import Checkpoint
    from vf.inference.rendering.shipped import find_template
    from vf.trainer.sft.select import training_sources

    checkpoint = Checkpoint.find(config.model)
    if checkpoint.adapter is not None:
        raise ConfigError(
            f"model = {config.model!r} is an adapter; merge it first, with `vf-rl export`"
        )
    if config.data.chat_template is not None:
        find_template(config.data.chat_template)
    if not resumed:
        training_sources(config.data.traces)
    return checkpoint


def _load() -> None:
    quiet_transformers()
    from transformers import AutoTokenizer  # noqa: F401


def _renderer(config: SftConfig, checkpoint: Checkpoint) -> Renderer:
    """Load the model's renderer, and check that the model's context is long enough."""
    from vf.inference.model_files import resolve_model
    from vf.inference.rendering.renderer import Renderer
    from vf.inference.rendering.vision import Vision

    context, length = checkpoint.context(), config.args.max_seq_len
    if context is not None and length > context:
        raise ConfigError(
            f"trainer.args.max_seq_len = {length} is more than the model's context of {context} "
            "tokens; lower it"
        )
    data = config.data
    return Renderer.from_pretrained(
        resolve_model(config.model),
        data.template_args,
        data.chat_template,
        data.tool_style,
        Vision.from_pretrained(config.model) if config.args.images else None,
    )


def _check_packages(config: SftConfig) -> None:
    from vf.trainer.watching.trackers import check_trackers

    for package in ("torch", "transformers", "peft", "trl"):
        if importlib.util.find_spec(package) is None:
            raise ConfigError(f"this needs the package {package!r}: pip install 'vf-rl[train,trl]'")
    check_trackers(config.args.report_to)


def _one_device() -> None:
    """Let torch see one device: TRL's trainer would spread the batch over all of them."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    os.environ["CUDA_VISIBLE_DEVICES"] = "0" if visible is None else visible.partition(",")[0]

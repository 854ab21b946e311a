"""`vf-rl check-template`: a model's chat template, tested on multi-turn conversations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from vf.runtime.command import DONE, FAILED, CommandParser, run_command
from vf.runtime.terminal import BAD, CAUTION, GOOD, make_console
from vf.runtime.uninterruptible import wait_for

if TYPE_CHECKING:
    from vf.inference.rendering.template_probe import Verdict

EPILOG = """\
examples:
  vf-rl check-template tiny
  vf-rl check-template Qwen/Qwen3-8B
  vf-rl check-template ./my-model --chat-template my_template.jinja

Verdicts:
  increasing  rendering the whole conversation extends what was sampled: the context only grows
  bridged     the template rewrites history; only new messages are rendered, so the context grows
  forks       a turn starts a new branch, at the token shown
  refused     the template cannot express the conversation; its error is shown

Exit codes: 0 nothing forks or is refused, 1 something does, 2 bad usage or unknown model.
"""
_STYLES = {"increasing": GOOD, "bridged": GOOD, "forks": BAD, "refused": CAUTION}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    parser = CommandParser(
        prog="vf-rl check-template",
        description="Test a model's chat template on multi-turn conversations.",
        epilog=EPILOG,
    )
    parser.add_argument("model", help="'tiny', a folder with a tokenizer, or a name on the hub")
    parser.add_argument(
        *("--chat-template", "--template-file"),
        metavar="NAME",
        help="test this template instead: chatml, plain, or a file",
    )
    args = parser.parse_args(argv)

    def run() -> int:
        verdicts = _probe(args.model, args.chat_template)
        _show(args.model, verdicts)
        grows = all(verdict.kind in ("increasing", "bridged") for verdict in verdicts)
        return DONE if grows else FAILED

    return run_command("vf-rl check-template", run, extra="train")


def _probe(model: str, chat_template: str | None) -> list[Verdict]:
    from vf.inference.model_files import find_model
    from vf.inference.rendering.shipped import find_template

    folder = find_model(model, f"model {model!r}")
    if chat_template is not None:
        find_template(chat_template)
    wait_for(_load)
    from vf.inference.rendering.renderer import Renderer
    from vf.inference.rendering.template_probe import probe

    return probe(Renderer.from_pretrained(folder, chat_template=chat_template))


def _load() -> None:
    from transformers import AutoTokenizer  # noqa: F401


def _show(model: str, verdicts: Sequence[Verdict]) -> None:
    from rich.table import Table
    from rich.text import Text

    from vf.inference.rendering.template_probe import summary

    table = Table(title=f"chat template of {model}", title_justify="left")
    for column in ("conversation", "verdict", "turn", "token", "what changes"):
        table.add_column(column, overflow="fold")
    for verdict in verdicts:
        table.add_row(
            verdict.conversation,
            Text(verdict.kind, style=_STYLES[verdict.kind]),
            "" if verdict.turn is None else str(verdict.turn),
            "" if verdict.token is None else str(verdict.token),
            Text(verdict.detail),
        )
    console = make_console()
    console.print(table)
    console.print(summary(verdicts), soft_wrap=True)

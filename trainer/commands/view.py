"""`vf-rl view`: traces as an HTML page, as text, or as data for other tools."""

from __future__ import annotations

import argparse
import sys
import tempfile
import webbrowser
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from rich.console import Console

from vf.runtime.command import DONE, FAILED, CommandParser, complain, reading_bar, run_command
from vf.traces.trace import StopReason, Trace
from vf.traces.view.plain import print_trace
from vf.traces.view.serve import serve
from vf.traces.view.sources import Source, Unreadable, find_sources, read
from vf.traces.view.write_page import Written, check_output, write_page

EXAMPLES = """\
examples:
  vf-rl view runs/quickstart-1                  writes runs/quickstart-1/traces.html
  vf-rl view runs/a/traces/eval-000030.jsonl -o eval.html --open
  vf-rl view runs/a runs/b --serve
  vf-rl view traces.jsonl --plain | less -R
  vf-rl view runs/a --export best.jsonl --min-reward 1

The page is self-contained and works offline.
Exit codes: 0 done, 1 failed, 2 bad usage or input.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    parser = CommandParser(
        prog="vf-rl view",
        description="Write traces as one HTML page, print them, or export them.",
        epilog=EXAMPLES,
    )
    parser.add_argument(
        "traces",
        nargs="+",
        type=Path,
        metavar="TRACES",
        help="traces files, folders of runs, or results folders of `vf-rl eval`",
    )
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="FILE",
        help="the page (default: traces.html in the folder, or the file's name with .html)",
    )
    parser.add_argument(
        "--serve", action="store_true", help="serve the page on 127.0.0.1 until interrupted"
    )
    parser.add_argument(
        "--port", type=int, default=0, help="port of --serve (default: any free one)"
    )
    parser.add_argument("--plain", action="store_true", help="print the conversations")
    parser.add_argument("--open", action="store_true", help="open the page in a browser")
    parser.add_argument(
        "--export",
        type=Path,
        metavar="FILE",
        help="write OpenAI chat lines (FILE.jsonl) or Parquet (FILE.parquet)",
    )
    parser.add_argument(
        "--min-reward",
        type=float,
        metavar="REWARD",
        help="with --export: skip traces whose reward is lower or missing",
    )
    parser.add_argument(
        "--stop-reason",
        action="append",
        default=[],
        choices=[reason.value for reason in StopReason],
        metavar="REASON",
        help="with --export: only traces that ended for this reason, such as terminated; "
        "may be repeated",
    )
    parser.add_argument(
        "--bare",
        action="store_true",
        help="with --export FILE.jsonl: leave out metadata and reasoning, which OpenAI's "
        "fine-tuning format does not have",
    )
    args = parser.parse_args(argv)
    if args.export is None and (args.min_reward is not None or args.stop_reason or args.bare):
        parser.error("--min-reward, --stop-reason and --bare need --export")
    if args.export is not None and (args.plain or args.output or args.serve or args.open):
        parser.error("--export cannot be combined with --plain, --output, --serve or --open")
    if args.plain and (args.output is not None or args.serve or args.open):
        parser.error("--plain cannot be combined with --output, --serve or --open")
    if args.port and not args.serve:
        parser.error("--port needs --serve")
    return run_command("vf-rl view", lambda: _run(args))


def _run(args: argparse.Namespace) -> int:
    sources = find_sources(args.traces)
    if args.export is not None:
        return _export(sources, args)
    if args.plain:
        return _print(sources)
    if args.serve and args.output is None:
        with tempfile.TemporaryDirectory(prefix="vf-view-") as folder:
            return _page(sources, Path(folder) / "traces.html", args)
    return _page(sources, args.output or _beside(args.traces), args)


def _page(sources: Sequence[Source], output: Path, args: argparse.Namespace) -> int:
    from vf.inference.rendering.renderer import token_texts

    check_output(output)
    title = args.traces[0].resolve().name + (" and more" if len(args.traces) > 1 else "")
    with reading_bar(source.path for source in sources) as advance:
        written = write_page(sources, output, title=title, texts_of=token_texts, advance=advance)
    _name_unreadable(written)
    if not written.traces:
        if not args.output:
            output.unlink()
        return complain("vf-rl view", "there are no traces to show")
    size = output.stat().st_size / 1e6
    if args.serve:
        serve(output, args.port, opened=args.open)
        return DONE
    print(f"{written.traces} traces in {output} ({size:.1f} MB)")
    if args.open:
        webbrowser.open(output.resolve().as_uri())
    return DONE


def _print(sources: Sequence[Source]) -> int:
    console, written = Console(highlight=False), Written()
    for _, trace in _readable(sources, written):
        print_trace(console, trace)
    _name_unreadable(written)
    return DONE if written.traces else FAILED


def _export(sources: Sequence[Source], args: argparse.Namespace) -> int:
    from vf.traces.export.write import check_export, export_traces

    written = Written()

    def traces() -> Iterator[tuple[Trace, str]]:
        for source, found in _readable(sources, written, advance):
            yield found, source.model_behind(source.model_of(found))

    check_export(args.export, bare=args.bare)
    with reading_bar(source.path for source in sources) as advance:
        done = export_traces(
            traces(),
            args.export,
            bare=args.bare,
            min_reward=args.min_reward,
            stop_reasons=args.stop_reason,
        )
    _name_unreadable(written)
    for why, count in done.left_out.items():
        complain("vf-rl view", f"skipped {count} traces that {why}")
    if not done.traces:
        args.export.unlink()
        return complain("vf-rl view", "there are no traces to export")
    told = {
        "have several token branches": done.forked,
        "have no tokens": done.without_tokens if args.export.suffix == ".parquet" else 0,
        "have tool calls but no record of the tools": done.without_tools,
    }
    notes = "".join(f"; {count} of them {what}" for what, count in told.items() if count)
    print(f"{done.traces} traces in {args.export} ({done.size / 1e6:.1f} MB){notes}")
    return DONE


def _readable(
    sources: Sequence[Source], written: Written, advance: Callable[[int], None] | None = None
) -> Iterator[tuple[Source, Trace]]:
    """Yield the traces; lines that are not traces are counted in ``written``."""
    for source in sources:
        problems = 0
        for found in read(source, advance):
            if isinstance(found, Unreadable):
                problems += 1
                if problems == 1:
                    written.problems.append(f"{source.path}, line {found.line}: {found.why}")
            else:
                written.traces += 1
                yield source, found
        written.unreadable += problems


def _name_unreadable(written: Written) -> None:
    if written.unreadable:
        lines = "1 line is" if written.unreadable == 1 else f"{written.unreadable} lines are"
        complain("vf-rl view", f"{lines} not a trace and skipped:")
        for problem in written.problems[:10]:
            print(f"  {problem}", file=sys.stderr)


def _beside(paths: Sequence[Path]) -> Path:
    if len(paths) > 1:
        return Path("traces.html")
    return paths[0] / "traces.html" if paths[0].is_dir() else paths[0].with_suffix(".html")

"""`vf-rl view`: runs, evaluations and traces on a page, as text, or as data for other tools."""

from __future__ import annotations

import argparse
import sys
import webbrowser
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from vf.runtime.command import DONE, CommandParser, complain, reading_bar, run_command
from vf.runtime.terminal import make_console
from vf.traces.trace import StopReason, Trace
from vf.traces.view.plain import print_trace
from vf.traces.view.sources import NEEDED, Source, Unreadable, find_sources, read, refuse_foreign
from vf.traces.view.write_page import Written, check_output, write_page
from vf.viewer.watch import Watch

EXAMPLES = """\
examples:
  vf-rl view runs/quickstart-1                  serves a live page on 127.0.0.1
  vf-rl view runs/ --open                       all runs in a folder, in the browser
  vf-rl view runs/a runs/b -o both.html         one file that opens offline
  vf-rl view traces.jsonl --plain | less -R
  vf-rl view runs/a --export best.jsonl --min-reward 1

The page shows what is written while it is open. A path may not exist yet.
Exit codes: 0 done, 1 failed, 2 bad usage or input.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    parser = CommandParser(
        prog="vf-rl view",
        description="Show runs, evaluations and traces in the browser; print or export traces.",
        epilog=EXAMPLES,
    )
    parser.add_argument(
        "paths",
        nargs="+",
        type=Path,
        metavar="PATH",
        help="folders of runs, results folders of `vf-rl eval`, traces files, or folders of these",
    )
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="FILE",
        help="write the page as one file that opens offline, and serve nothing",
    )
    parser.add_argument("--port", type=int, help="port of the live page (default: any free one)")
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
    page = args.output is not None or args.open or args.port is not None
    if args.export is not None and (args.plain or page):
        parser.error("--export cannot be combined with --plain, --output, --port or --open")
    if args.plain and page:
        parser.error("--plain cannot be combined with --output, --port or --open")
    if args.port is not None and args.output is not None:
        parser.error("--output writes a file and serves nothing: leave out --port")
    return run_command("vf-rl view", lambda: _run(args))


def _run(args: argparse.Namespace) -> int:
    if args.export is not None:
        return _export(find_sources(args.paths), args)
    if args.plain:
        return _print(find_sources(args.paths))
    from vf.trainer.watching.page_details import AboutFolders

    watch = Watch(args.paths, AboutFolders())
    watch.scan()
    if args.output is not None:
        while "evaluations" in dict(watch.scan()):  # they are read a second's worth at a time
            pass
        return _write(watch, args)
    from vf.viewer.live import serve

    if watch.sources.traces and not (watch.sources.runs or watch.sources.results):
        refuse_foreign(find_sources(watch.sources.traces))
    for text in watch.waits:
        complain("vf-rl view", f"{text} The page waits for it.")
    serve(watch, args.port or 0, opened=args.open)
    return DONE


def _write(watch: Watch, args: argparse.Namespace) -> int:
    """Write the page with all runs, evaluations and traces as one file."""
    from vf.viewer.page import offline_page, write_offline

    output: Path = args.output
    check_output(output)
    shell = watch.sources.runs or watch.sources.results
    if watch.sources.traces or not shell:
        written = _traces(find_sources(args.paths), output, watch.title)
        if not written.traces and not shell:
            output.unlink()
            return complain("vf-rl view", f"there are no traces to show. {NEEDED}")
    else:
        written = Written()
    if shell:
        traces = output.read_bytes() if written.traces else None
        write_offline(offline_page(watch.everything(), watch.title, traces=traces), output)
    size = output.stat().st_size / 1e6
    counts = {"run": len(watch.sources.runs), "evaluation": len(watch.sources.results)}
    others = "".join(f"{n} {what}{'s' * (n > 1)}, " for what, n in counts.items() if n)
    print(f"{others}{written.traces} traces in {output} ({size:.1f} MB)")
    if args.open:
        webbrowser.open(output.resolve().as_uri())
    return DONE


def _traces(sources: Sequence[Source], output: Path, title: str) -> Written:
    from vf.inference.rendering.renderer import token_texts

    with reading_bar(source.path for source in sources) as advance:
        written = write_page(sources, output, title=title, texts_of=token_texts, advance=advance)
    _name_unreadable(written)
    return written


def _print(sources: Sequence[Source]) -> int:
    console, written = make_console(), Written()
    for _, trace in _readable(sources, written):
        print_trace(console, trace)
    _name_unreadable(written)
    return DONE if written.traces else complain("vf-rl view", f"there are no traces. {NEEDED}")


def _export(sources: Sequence[Source], args: argparse.Namespace) -> int:
    from vf.traces.export.write import check_export, export_traces

    written = Written()

    def traces() -> Iterator[tuple[Trace, str]]:
        for source, trace in _readable(sources, written, advance):
            yield trace, source.model_behind(source.model_of(trace))

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
        return complain("vf-rl view", f"there are no traces to export. {NEEDED}")
    remarks = {
        "have several token branches": done.forked,
        "have no tokens": done.without_tokens if args.export.suffix == ".parquet" else 0,
        "have tool calls but no record of the tools": done.without_tools,
    }
    notes = "".join(f"; {count} of them {what}" for what, count in remarks.items() if count)
    print(f"{done.traces} traces in {args.export} ({done.size / 1e6:.1f} MB){notes}")
    return DONE


def _readable(
    sources: Sequence[Source], written: Written, advance: Callable[[int], None] | None = None
) -> Iterator[tuple[Source, Trace]]:
    """Yield the traces; lines that are not traces are counted in ``written``."""
    for source in sources:
        problems = 0
        for line in read(source, advance):
            if isinstance(line, Unreadable):
                problems += 1
                if problems == 1:
                    written.problems.append(f"{source.path}, line {line.line}: {line.why}")
            else:
                written.traces += 1
                yield source, line
        written.unreadable += problems


def _name_unreadable(written: Written) -> None:
    if written.unreadable:
        lines = "1 line is" if written.unreadable == 1 else f"{written.unreadable} lines are"
        complain("vf-rl view", f"{lines} not a trace and skipped:")
        for problem in written.problems[:10]:
            print(f"  {problem}", file=sys.stderr)

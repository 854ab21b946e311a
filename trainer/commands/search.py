"""`vf-search`: build an index, serve it, ask it, look at it."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

from vf.runtime.command import DONE, run_command
from vf.runtime.errors import ConfigError, ToolError

EXAMPLES = """\
examples:
  vf-search build wiki-18.jsonl.gz --out indexes/wiki-18
  vf-search build passages.parquet --out indexes/mine --text-field passage
  vf-search query indexes/wiki-18 "capital of Burkina Faso" -k 3
  vf-search query http://127.0.0.1:8000 "capital of Burkina Faso"
  vf-search serve indexes/wiki-18 --port 8000
  vf-search info indexes/wiki-18

Exit codes: 0 done, 1 failed, 2 bad usage or a wrong file.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    args = _parser().parse_args(argv)
    run = {"build": _build, "serve": _serve, "query": _query, "info": _info}[args.command]
    return run_command("vf-search", lambda: run(args))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="vf-search",
        description="Build, serve and ask the indexes that the search tool searches.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    build = commands.add_parser("build", help="make an index out of documents")
    build.add_argument(
        "sources",
        nargs="+",
        help=".jsonl, .jsonl.gz or .parquet files, or hf:NAME[:CONFIG][@SPLIT]",
    )
    build.add_argument("--out", type=Path, required=True, help="the index's folder")
    build.add_argument("--overwrite", action="store_true", help="replace an index that is there")
    build.add_argument("--id-field", help="default: id, _id, docid or doc_id")
    build.add_argument("--title-field", help="default: title, if there is one")
    build.add_argument("--text-field", help="default: text, contents, content or body")
    build.add_argument(
        "--language", default="english", help="whose word endings to cut off, or 'none'"
    )
    build.add_argument("--memory", type=int, default=512, metavar="MIB", help="default: 512")

    serve = commands.add_parser("serve", help="answer Search-R1's protocol over HTTP")
    serve.add_argument("index", help="the index's folder, or another server's URL")
    serve.add_argument("--host", default="127.0.0.1", help="default: 127.0.0.1, this machine only")
    serve.add_argument("--port", type=int, default=8000, help="default: 8000")

    query = commands.add_parser("query", help="search, and print what the model would read")
    query.add_argument("index", help="the index's folder or a server's URL")
    query.add_argument("query")
    query.add_argument("-k", type=int, default=5, help="how many results, default: 5")
    query.add_argument("--tokens", type=int, default=1024, help="at most so many, default: 1024")

    info = commands.add_parser("info", help="print what is in an index")
    info.add_argument("index", type=Path)
    return parser


def _build(args: argparse.Namespace) -> int:
    from vf.tools.search.build import build_index
    from vf.tools.search.sources import Fields

    meta = build_index(
        args.sources,
        args.out,
        overwrite=args.overwrite,
        language=None if args.language == "none" else args.language,
        fields=Fields(args.id_field, args.title_field, args.text_field),
        memory_mib=args.memory,
        progress=sys.stderr.isatty(),
    )
    print(f"{args.out}: {meta.documents:,} documents, fingerprint {meta.fingerprint}")
    return DONE


def _serve(args: argparse.Namespace) -> int:
    from vf.tools.search.index_server import serve
    from vf.tools.search.search_tools import open_index

    serve(open_index(args.index), host=args.host, port=args.port)
    return DONE


def _query(args: argparse.Namespace) -> int:
    from vf.tools.search.budget import estimate_tokens
    from vf.tools.search.search_session import SearchLog, SearchSession
    from vf.tools.search.search_tools import open_index

    index = open_index(args.index)

    async def leave(session: SearchSession) -> None:
        await index.close()

    async def ask() -> str:
        session = SearchSession(
            index,
            SearchLog(),
            max_k=100,
            max_result_tokens=args.tokens,
            count_tokens=estimate_tokens,
            enter=lambda session: None,
            leave=leave,
        )
        try:
            return await session.search(args.query, args.k)
        finally:
            await session.close()

    try:
        print(asyncio.run(ask()))
    except ToolError as error:
        raise ConfigError(str(error)) from error
    return DONE


def _info(args: argparse.Namespace) -> int:
    from vf.tools.search.meta import IndexMeta

    meta = IndexMeta.read(args.index)
    size = sum(path.stat().st_size for path in args.index.iterdir() if path.is_file())
    print(f"documents    {meta.documents:,}")
    print(f"fingerprint  {meta.fingerprint}")
    print(f"language     {meta.language or 'none'}")
    print(f"size         {size / 2**20:,.1f} MiB")
    print(f"written by   {meta.tantivy}")
    return DONE

"""`vf-rl search`: build, serve, query and inspect a search index."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

from vf.runtime.command import DONE, CommandParser, add_subcommand, complain, run_command
from vf.runtime.errors import ConfigError, ToolError

EXAMPLES = """\
examples:
  vf-rl search build notes/ -o indexes/notes
  vf-rl search build wiki-18.jsonl.gz -o indexes/wiki-18
  vf-rl search build passages.parquet -o indexes/mine --text-field passage
  vf-rl search query indexes/wiki-18 "capital of Burkina Faso" -k 3
  vf-rl search query http://127.0.0.1:8000 "capital of Burkina Faso"
  vf-rl search serve indexes/wiki-18 --port 8000
  vf-rl search info indexes/wiki-18

Exit codes: 0 done, 1 failed, 2 bad usage or input.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    args = _parser().parse_args(argv)
    run = {"build": _build, "serve": _serve, "query": _query, "info": _info}[args.command]
    return run_command("vf-rl search", lambda: run(args))


def _parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        prog="vf-rl search",
        description="Build, serve and query the indexes behind the search tool.",
        epilog=EXAMPLES,
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    build = add_subcommand(
        commands,
        "build",
        "build an index from documents",
        "notes/ -o indexes/notes",
        "wiki-18.jsonl.gz -o indexes/wiki-18",
        "hf:org/corpus:config@train -o indexes/theirs --text-field passage",
    )
    build.add_argument(
        "sources",
        nargs="+",
        metavar="SOURCE",
        help="folders of documents; .md, .rst, .txt or .html files, one document each; .jsonl, "
        ".json, .csv, .tsv or .parquet files, one document a row; or hf:NAME[:CONFIG][@SPLIT]",
    )
    build.add_argument(
        "-o", "--output", type=Path, required=True, metavar="INDEX", help="folder of the index"
    )
    build.add_argument("--overwrite", action="store_true", help="replace an existing index")
    build.add_argument(
        "--id-field", metavar="NAME", help="default: the first of id, _id, docid and doc_id"
    )
    build.add_argument("--title-field", metavar="NAME", help="default: title, if there is one")
    build.add_argument(
        "--text-field", metavar="NAME", help="default: the first of text, contents, content, body"
    )
    build.add_argument(
        "--language", default="english", help="language to stem, or none (default: english)"
    )
    build.add_argument(
        "--memory", type=int, default=512, metavar="MIB", help="memory for indexing (default: 512)"
    )

    serve = add_subcommand(
        commands,
        "serve",
        "serve an index over HTTP with Search-R1's protocol",
        "indexes/wiki-18 --port 8000",
    )
    serve.add_argument("index", metavar="INDEX", help="folder of an index, or URL of a server")
    serve.add_argument("--host", default="127.0.0.1", help="default: 127.0.0.1, this machine only")
    serve.add_argument("--port", type=int, default=8000, help="default: 8000")

    query = add_subcommand(
        commands,
        "query",
        "search, and print what a model would read",
        'indexes/wiki-18 "capital of Burkina Faso" -k 3',
        'http://127.0.0.1:8000 "capital of Burkina Faso"',
    )
    query.add_argument("index", metavar="INDEX", help="folder of an index, or URL of a server")
    query.add_argument("query", metavar="QUERY", help="words to search for")
    query.add_argument(
        "-k", type=int, default=5, metavar="N", help="number of results (default: 5)"
    )
    query.add_argument(
        "--max-tokens", type=int, default=1024, metavar="N", help="length limit (default: 1024)"
    )

    info = add_subcommand(commands, "info", "describe an index", "indexes/wiki-18")
    info.add_argument("index", type=Path, metavar="INDEX", help="folder of the index")
    return parser


def _build(args: argparse.Namespace) -> int:
    from vf.tools.search.build import build_index
    from vf.tools.search.sources import Documents, Fields

    documents = Documents(args.sources, Fields(args.id_field, args.title_field, args.text_field))
    meta = build_index(
        documents,
        args.output,
        overwrite=args.overwrite,
        language=None if args.language == "none" else args.language,
        memory_mib=args.memory,
        progress=sys.stderr.isatty(),
    )
    if documents.left_out:
        complain("vf-rl search", documents.left_out)
    print(f"{args.output}: {meta.documents:,} documents, fingerprint {meta.fingerprint}")
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
            max_result_tokens=args.max_tokens,
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

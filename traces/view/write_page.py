"""Write the page: traces in one HTML file that opens offline and trusts none of them."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vf.runtime.errors import ConfigError
from vf.traces.learned import learned_beside
from vf.traces.view.encode import compress, pack_trace, row_of, strict, text_of
from vf.traces.view.sources import Source, Unreadable, read

MARK = b"<!doctype html><!-- vf-view -->"
ASSETS = Path(__file__).parent / "assets"
SCRIPTS = (
    "data",
    "text",
    "copy",
    "search",
    "columns",
    "table",
    "filters",
    "conversations",
    "conversation",
    "colourings",
    "tokens",
    "changed",
    "panels",
    "detail",
    "app",
)

SEARCHED = 1 << 20  # characters of text that are searched, in one blob

TokenTexts = Callable[[Sequence[int]], list[str]]

# Scripts and styles run only if they are ours, by their hash; nothing is ever fetched; text can
# not become markup, for no policy may make TrustedHTML.
_POLICY = (
    "default-src 'none'; script-src 'sha256-{script}'; style-src 'sha256-{style}'; "
    "base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)


@dataclass(slots=True)
class Written:
    """What a page holds.

    Attributes:
        traces: How many traces.
        unreadable: How many lines are no traces.
        problems: The first of them of each file, in words.
    """

    traces: int = 0
    unreadable: int = 0
    problems: list[str] = field(default_factory=list)


def write_page(
    sources: Sequence[Source],
    output: Path,
    *,
    title: str,
    texts_of: Callable[[str], TokenTexts | None] = lambda model: None,
    advance: Callable[[int], None] | None = None,
) -> Written:
    """Write the traces of some files as one page, whole or not at all.

    One trace is in memory at a time, and for each about a kilobyte of the table.

    Args:
        sources: The files.
        output: The page. A page that this function wrote before is replaced.
        title: The page's title.
        texts_of: Given a model's name, returns what gives its tokens' texts, or None if its
            tokenizer cannot be had: the page shows ids then.
        advance: Told the number of bytes of every line that was read.

    Raises:
        ConfigError: A file cannot be opened, or ``output`` is something else than such a page.
        OSError: The disk is full, or the folder cannot be written to.
    """
    check_output(output)
    output.parent.mkdir(parents=True, exist_ok=True)
    written = Written()
    files: list[dict[str, Any]] = []
    rows: list[dict[str, Any]] = []
    seen: dict[str, int] = {}
    models: dict[str, str] = {}
    used: dict[str, set[int]] = {}
    with tempfile.TemporaryFile(dir=output.parent) as spool:
        texts = _Texts(spool)
        for number, source in enumerate(sources):
            file: dict[str, Any] = {
                "path": str(source.path),
                "run": source.run,
                "read": 0,
                "problems": [],
            }
            count, learned = 0, learned_beside(source.path)
            for found in read(source, advance):
                if isinstance(found, Unreadable):
                    count += 1
                    if len(file["problems"]) < 5:
                        file["problems"].append(f"line {found.line}: {found.why}")
                    continue
                row = row_of(found)
                name = source.model_of(found)
                model = source.model_behind(name)
                if models.setdefault(name, model) != model:  # two folders' models of one name
                    name = f"{name} ({model})"
                    models[name] = model
                row["file"], row["model"] = number, name
                row["split"], row["step"] = map(strict, source.place_of(found))
                of_loss = learned.get(found.id, ())
                row["learned"] = len({each.branch for each in of_loss})
                repeated = seen[row["id"]] = seen.get(row["id"], 0) + 1
                if repeated > 1:  # a link must lead to one trace
                    row["id"] += f"~{repeated}"
                _blob(spool, f"t{len(rows)}", pack_trace(found, of_loss))
                texts.add(text_of(found))
                ids = used.setdefault(name, set())
                ids.update(*(branch.token_ids for branch in found.branches))
                rows.append(row)
                file["read"] += 1
            file["unreadable"] = count
            written.unreadable += count
            written.problems += [f"{source.path}, {problem}" for problem in file["problems"][:1]]
            files.append(file)
        written.traces = len(rows)
        texts.flush()
        tokens = {name: texts_of(model) for name, model in models.items() if model and used[name]}
        index = {
            "title": title,
            "files": files,
            "vocabularies": _vocabularies(spool, used, tokens),
            "texts": texts.counts,
            "rows": rows,
        }
        _assemble(output, json.dumps(index, allow_nan=False).encode(), spool)
    return written


class _Texts:
    """Writes the texts of traces, in their order, to blobs that the page searches one by one.

    Attributes:
        counts: How many traces' texts each blob holds.
    """

    def __init__(self, spool: Any) -> None:
        self.counts: list[int] = []
        self._spool = spool
        self._waiting: list[str] = []
        self._size = 0

    def add(self, text: str) -> None:
        self._waiting.append(text)
        self._size += len(text)
        if self._size >= SEARCHED:
            self.flush()

    def flush(self) -> None:
        if self._waiting:
            _blob(self._spool, f"s{len(self.counts)}", json.dumps(self._waiting).encode())
            self.counts.append(len(self._waiting))
            self._waiting, self._size = [], 0


def check_output(output: Path) -> None:
    """Raise where writing would destroy something.

    Raises:
        ConfigError: ``output`` exists and is not a page that :func:`write_page` made.
    """
    if output.is_dir():
        raise ConfigError(f"{output} is a folder; name a file with -o")
    if output.exists():
        with output.open("rb") as file:
            if file.read(len(MARK)) != MARK:
                raise ConfigError(
                    f"{output} exists and was not made by vf-rl view; choose another -o"
                )


def _vocabularies(
    spool: Any, used: dict[str, set[int]], texts: dict[str, TokenTexts | None]
) -> dict[str, str]:
    """Write the texts of the tokens that occur; returns each model's blob."""
    blobs: dict[str, str] = {}
    for name, of in texts.items():
        if of is not None:
            ids = sorted(used[name])
            blobs[name] = f"v{len(blobs)}"
            data = json.dumps(dict(zip(ids, of(ids), strict=True))).encode()
            _blob(spool, blobs[name], data)
    return blobs


def _blob(file: Any, name: str, data: bytes) -> None:
    file.write(b'<script type="text/plain" id="%s">' % name.encode())
    file.write(compress(data))
    file.write(b"</script>\n")


def _assemble(output: Path, index: bytes, spool: Any) -> None:
    """Put the page together: what is needed first comes first, so it shows while it loads."""
    style = _asset("view.css")
    script = "".join(
        ['"use strict";\n(() => {\n', *(_asset(f"{name}.js") for name in SCRIPTS), "})();\n"]
    )
    policy = _POLICY.format(script=_sha256(script), style=_sha256(style))
    head = _asset("view.html").replace("{{policy}}", policy).replace("{{style}}", style)
    temporary = output.with_name(f".{output.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(MARK + b"\n" + head.encode())
            _blob(file, "index", index)
            file.write(f"<script>{script}</script>\n".encode())
            spool.seek(0)
            shutil.copyfileobj(spool, file, 1 << 20)
            file.write(b"</body></html>\n")
        temporary.replace(output)
    finally:
        temporary.unlink(missing_ok=True)


def _asset(name: str) -> str:
    return (ASSETS / name).read_text(encoding="utf-8")


def _sha256(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()

"""Write the page: traces in one HTML file that opens offline and trusts none of them."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vf.runtime.errors import ConfigError
from vf.traces.view.encode import compress
from vf.traces.view.encoded import Encoded, Encoder
from vf.traces.view.sources import Source

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
    "pictures",
    "conversations",
    "conversation",
    "colourings",
    "tokens",
    "changed",
    "panels",
    "detail",
    "app",
)

TokenTexts = Callable[[Sequence[int]], list[str]]

# Scripts and styles run only if they are ours, by their hash; nothing is ever fetched; text can
# not become markup, for no policy may make TrustedHTML.
_POLICY = (
    "default-src 'none'; script-src 'sha256-{script}'; style-src 'sha256-{style}'; "
    "img-src data: {images}; base-uri 'none'; form-action 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
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
    encoder: Encoder | None = None,
    advance: Callable[[int], None] | None = None,
    served: bool = False,
) -> Written:
    """Write the traces of some files as one page, whole or not at all.

    One trace is in memory at a time, and for each about a kilobyte of the table.

    Args:
        sources: The files.
        output: The page. A page that this function wrote before is replaced.
        title: The page's title.
        texts_of: Given a model's name, returns what gives its tokens' texts, or None if its
            tokenizer cannot be had: the page shows ids then.
        encoder: Remembers the files that have not changed since the page was written last.
        advance: Told the number of bytes of every line that was read.
        served: Whether a server gives out the images, at ``images/NAME``; else the page holds each
            once.

    Raises:
        ConfigError: If a file cannot be opened, or ``output`` is something else than such a page.
        OSError: If the disk is full, or the folder cannot be written to.
    """
    check_output(output)
    output.parent.mkdir(parents=True, exist_ok=True)
    if encoder is not None:
        return _write(sources, output, title, texts_of, encoder, advance, served)
    with tempfile.TemporaryDirectory(dir=output.parent) as folder:
        encoder = Encoder(Path(folder), images=not served)
        return _write(sources, output, title, texts_of, encoder, advance, served)


def _write(
    sources: Sequence[Source],
    output: Path,
    title: str,
    texts_of: Callable[[str], TokenTexts | None],
    encoder: Encoder,
    advance: Callable[[int], None] | None,
    served: bool,
) -> Written:
    written = Written()
    files: list[dict[str, Any]] = []
    rows: list[dict[str, Any]] = []
    seen: dict[str, int] = {}
    models: dict[str, str] = {}
    used: dict[str, set[int]] = {}
    encoded = [encoder.encode(source, advance) for source in sources]
    for number, entry in enumerate(encoded):
        names = {name: _name(name, entry.source, models) for name in entry.used}
        for name, ids in entry.used.items():
            used.setdefault(names[name], set()).update(ids)
        for row in entry.rows:
            repeated = seen[row["id"]] = seen.get(row["id"], 0) + 1
            unique = row["id"] if repeated == 1 else f"{row['id']}~{repeated}"  # a link's end
            rows.append({**row, "id": unique, "file": number, "model": names[row["model"]]})
        files.append(
            {
                "path": str(entry.source.path),
                "run": entry.source.run,
                "read": len(entry.rows),
                "problems": entry.problems,
                "unreadable": entry.unreadable,
            }
        )
        written.unreadable += entry.unreadable
        written.problems += [f"{entry.source.path}, {problem}" for problem in entry.problems[:1]]
    written.traces = len(rows)
    tokens = {name: texts_of(model) for name, model in models.items() if model and used[name]}
    of_models, vocabularies = _vocabularies(used, tokens)
    index = {
        "title": title,
        "files": files,
        "vocabularies": of_models,
        "texts": [count for entry in encoded for count in entry.counts],
        "rows": rows,
        "served": served,
    }
    text = json.dumps(index, allow_nan=False).encode()
    _assemble(output, text, encoded, vocabularies, "'self'" if served else "blob:")
    return written


def _name(name: str, source: Source, models: dict[str, str]) -> str:
    """Return what the page calls a file's model; two folders' models of one name differ."""
    model = source.model_behind(name)
    if models.setdefault(name, model) != model:
        name = f"{name} ({model})"
        models[name] = model
    return name


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
    used: dict[str, set[int]], texts: dict[str, TokenTexts | None]
) -> tuple[dict[str, str], list[bytes]]:
    """Return each model's blob, and the blobs: the texts of the tokens that occur."""
    names: dict[str, str] = {}
    blobs: list[bytes] = []
    for name, of in texts.items():
        if of is not None:
            ids = sorted(used[name])
            names[name] = f"v{len(blobs)}"
            blobs.append(json.dumps(dict(zip(ids, of(ids), strict=True))).encode())
    return names, blobs


def _head(name: str) -> bytes:
    return b'<script type="text/plain" id="%s">' % name.encode()


_END = b"</script>\n"


def _blob(file: Any, name: str, data: bytes) -> None:
    file.write(_head(name) + compress(data) + _END)


def _copy(page: Any, encoded: Sequence[Encoded]) -> None:
    """Give all blobs their names: t0, t1, … for traces, s0, s1, … for texts, images' by hash."""
    counts = {"t": 0, "s": 0}
    written: set[str] = set()
    for entry in encoded:
        images = iter(entry.images)
        with entry.spool.open("rb") as spool:
            for kind, size in entry.blobs:
                data = spool.read(size)
                if kind == "i":
                    name = f"i-{next(images)}"
                    if name in written:  # of another file's, too
                        continue
                    written.add(name)
                else:
                    name = f"{kind}{counts[kind]}"
                    counts[kind] += 1
                page.write(_head(name) + data + _END)


def _assemble(
    output: Path,
    index: bytes,
    encoded: Sequence[Encoded],
    vocabularies: Sequence[bytes],
    images: str,
) -> None:
    """Put the page together: what is needed first comes first, so it shows while it loads."""
    style = _asset("view.css")
    script = "".join(
        ['"use strict";\n(() => {\n', *(_asset(f"{name}.js") for name in SCRIPTS), "})();\n"]
    )
    policy = _POLICY.format(script=_sha256(script), style=_sha256(style), images=images)
    head = _asset("view.html").replace("{{policy}}", policy).replace("{{style}}", style)
    temporary = output.with_name(f".{output.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(MARK + b"\n" + head.encode())
            _blob(file, "index", index)
            file.write(f"<script>{script}</script>\n".encode())
            _copy(file, encoded)
            for number, data in enumerate(vocabularies):
                _blob(file, f"v{number}", data)
            file.write(b"</body></html>\n")
        temporary.replace(output)
    finally:
        temporary.unlink(missing_ok=True)


def _asset(name: str) -> str:
    return (ASSETS / name).read_text(encoding="utf-8")


def _sha256(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()

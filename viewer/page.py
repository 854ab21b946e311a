"""Put the page together: one HTML document without any request to elsewhere."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import os
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from vf.traces.view.encode import compress
from vf.traces.view.write_page import ASSETS as TRACES_ASSETS
from vf.traces.view.write_page import MARK
from vf.viewer.watch import Event

ASSETS = Path(__file__).parent / "assets"
SCRIPTS = ("metrics", "axes", "chart", "tables", "overview", "runs", "evaluations", "page")

# Scripts and styles run only if they are ours, by their hash; text can not become markup, for no
# policy may make TrustedHTML. A live page may ask its own server, an offline one nobody.
_POLICY = (
    "default-src 'none'; script-src {scripts}; style-src {styles}; img-src data: blob:; {sources}; "
    "base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
_LIVE = "connect-src 'self'; frame-src 'self'"
_OFFLINE = "frame-src blob:"


def live_page(title: str) -> bytes:
    """Return the page that a server serves: it asks for its data at ``events``."""
    return MARK + _document(title, _LIVE, live=True, blobs=b"", samples="", hashes=[])


def offline_page(
    events: Sequence[Event], title: str, *, samples: str = "", traces: bytes | None = None
) -> bytes:
    """Return the page with its data in it.

    Args:
        events: The page's data, from :meth:`~vf.viewer.watch.Watch.everything`.
        title: The page's title.
        samples: Sampled traces as HTML that has been escaped, for a page without a trace viewer.
        traces: The page of all traces, as :func:`~vf.traces.view.write_page.write_page` wrote it.
    """
    text = json.dumps(list(events), allow_nan=False, separators=(",", ":")).encode()
    blobs = b'<script type="text/plain" id="events">' + compress(text) + b"</script>\n"
    hashes: list[str] = []
    if traces is not None:
        blobs += b'<script type="text/plain" id="traces-page">' + compress(traces) + b"</script>\n"
        # The frame inherits this page's policy, so its script and style have to be allowed here.
        hashes = re.findall(r"'sha256-[^']+'", traces[:4000].decode(errors="replace"))
    return MARK + _document(
        title, _OFFLINE, live=False, blobs=blobs, samples=samples, hashes=hashes
    )


def write_offline(page: bytes, output: Path) -> None:
    """Write a page, whole or not at all.

    Raises:
        OSError: If the disk is full, or the folder cannot be written to.
    """
    temporary = output.with_name(f".{output.name}.{os.getpid()}.tmp")
    try:
        temporary.write_bytes(page)
        temporary.replace(output)
    finally:
        temporary.unlink(missing_ok=True)


def _document(
    title: str, sources: str, *, live: bool, blobs: bytes, samples: str, hashes: list[str]
) -> bytes:
    style, script = _style(), _script()
    policy = _POLICY.format(
        scripts=" ".join([_sha256(script), *hashes]),
        styles=" ".join([_sha256(style), *hashes]),
        sources=sources,
    )
    head = (
        _asset("page.html")
        .replace("{{policy}}", policy)
        .replace("{{style}}", style)
        .replace("{{mode}}", "live" if live else "offline")
        .replace("{{title}}", html.escape(title))
        .replace("{{samples}}", samples)
    )
    return b"".join(
        [b"\n", head.encode(), blobs, f"<script>{script}</script>\n</body></html>\n".encode()]
    )


@cache
def _script() -> str:
    # Elements and hidden characters are made by what the trace viewer makes them with.
    own = [_asset(f"{name}.js") for name in SCRIPTS]
    text = (TRACES_ASSETS / "text.js").read_text(encoding="utf-8")
    parts = ['"use strict";\n', _asset("uplot.min.js"), "\n(() => {\n", text, *own, "})();\n"]
    return "".join(parts)


@cache
def _style() -> str:
    colours = (TRACES_ASSETS / "view.css").read_text(encoding="utf-8")
    return "".join([colours, _asset("uplot.min.css"), "\n", _asset("page.css")])


@cache
def _asset(name: str) -> str:
    return (ASSETS / name).read_text(encoding="utf-8")


def _sha256(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"

"""Documents in files of text: Markdown, plain text and HTML, one by one or in whole folders.

A file is a document: its id is its path, its title the first heading, else its name.
"""

from __future__ import annotations

import codecs
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path

from vf.runtime.errors import ConfigError
from vf.runtime.rows import ENDINGS as ROW_ENDINGS
from vf.runtime.rows import HUB, Progress, kind_of, missing_file
from vf.tools.search.contract import Document
from vf.tools.search.snippets import SEARCHED

_HTML = (".html", ".htm", ".xhtml")
ENDINGS = (".md", ".markdown", ".rst", ".txt", *_HTML)
# What is read of a folder. JSON usually holds something else than documents: it has to be named.
_IN_FOLDERS = {*ENDINGS, *ROW_ENDINGS} - {".json"}
_NAMED = 3  # files left out for one reason that are named

_FRONT_MATTER = re.compile(r"\A---\n(.*?\n)??---\n", re.DOTALL)
_FRONT_TITLE = re.compile(r"""^title:[ \t]*(["']?)(.+?)\1[ \t]*$""", re.MULTILINE)
_FENCED = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)
# "# Title #", or "Title" above a line of "=" (Markdown and reStructuredText).
_HEADING = re.compile(r"^(?:#{1,6}[ \t]+(\S.*)|(\S.*)\n={3,}[ \t]*)$", re.MULTILINE)
_CLOSING = re.compile(r"[ \t]#+[ \t]*\Z")
_CHARSET = re.compile(rb"""charset=["']?([\w-]+)""", re.IGNORECASE)


@dataclass(slots=True)
class TextFiles:
    """Files of text among some sources.

    Attributes:
        texts: Files of text, each once.
        top: The folder that the documents' ids begin in.
        others: The other sources: files of rows, and Hugging Face datasets.
        left_out: Files that hold no document, by the reason. What only reading shows is added when
            the file is read.
    """

    texts: list[Path] = field(default_factory=list)
    top: str = ""
    others: list[str] = field(default_factory=list)
    left_out: dict[str, list[str]] = field(default_factory=dict)

    @classmethod
    def among(cls, sources: Sequence[str]) -> TextFiles:
        """Find them; folders are searched with all folders in them, links to folders excepted.

        Raises:
            ConfigError: If there is no such file or folder, or it cannot be read or is of another
                kind.
        """
        files, folders = cls(), []
        for name in sources:
            path = Path(name).expanduser()
            if name.startswith(HUB):
                files.others.append(name)
            elif path.is_dir():
                folders.append(os.path.abspath(path))
                files._search(path)
            elif not path.exists():
                raise missing_file(path, in_code=False)
            elif _kind(path) not in (*ENDINGS, *ROW_ENDINGS):
                raise ConfigError(
                    f"{name}: documents come from a folder, from a file whose name ends in "
                    f"{', '.join((*ENDINGS, *ROW_ENDINGS))}, or from hf:NAME"
                )
            elif files._take(path):
                folders.append(os.path.dirname(os.path.abspath(path)))
        files.texts = list({path.resolve(): path for path in files.texts}.values())
        files.top = os.path.commonpath(folders) if folders else ""
        return files

    def _search(self, top: Path) -> None:
        def refuse(error: OSError) -> None:
            raise ConfigError(f"cannot read {error.filename}: {error.strerror}") from error

        for root, folders, names in os.walk(top, onerror=refuse):
            folder = Path(root)
            for name in sorted(folders + names):
                if name.startswith("."):
                    self._leave_out("hidden", folder / name)
                elif name in folders:
                    if (folder / name).is_symlink():
                        self._leave_out("links to folders", folder / name)
                elif _kind(Path(name)) in _IN_FOLDERS:
                    self._take(folder / name)
                else:
                    self._leave_out("of another kind", folder / name)
            folders[:] = sorted(name for name in folders if not name.startswith("."))

    def _take(self, path: Path) -> bool:
        """Add a file; returns whether it is one of text."""
        is_text = _kind(path) in ENDINGS
        if is_text:
            self.texts.append(path)
        else:
            self.others.append(str(path))
        return is_text

    def _leave_out(self, why: str, path: Path) -> None:
        self.left_out.setdefault(why, []).append(str(path))

    def read(self, progress: Progress) -> Iterator[tuple[str, Document]]:
        """Yield where each document of a file of text stands, and the document.

        Raises:
            ConfigError: If a file cannot be read.
        """
        progress.done, progress.total = 0, sum(path.stat().st_size for path in self.texts)
        for path in self.texts:
            try:
                raw = path.read_bytes()
            except OSError as error:
                raise ConfigError(f"cannot read {path}: {error.strerror}") from error
            progress.done += len(raw)
            text = _decoded(raw, path)
            if text is None:
                binary = b"\0" in raw
                self._leave_out("binary" if binary else "not UTF-8: save them as UTF-8", path)
                continue
            if not text.strip():
                self._leave_out("empty", path)
                continue
            title, text = _title_and_text(text, path)
            doc_id = os.path.relpath(os.path.abspath(path), self.top).replace(os.sep, "/")
            for number, part in enumerate(parts := _parts(text), 1):
                more = f"#{number}" if len(parts) > 1 else ""
                yield str(path), Document(f"{doc_id}{more}", title, part)

    def summary(self) -> str:
        """Return in one line what was left out, and why; empty if nothing was."""
        if not self.left_out:
            return ""
        reasons = []
        for why, names in self.left_out.items():
            more = ", ..." if len(names) > _NAMED else ""
            reasons.append(f"{len(names)} {why} ({', '.join(names[:_NAMED])}{more})")
        return f"{sum(map(len, self.left_out.values()))} left out: {'; '.join(reasons)}"


def _kind(path: Path) -> str:
    kind = kind_of(path)
    return ".gz" if kind in ENDINGS and path.suffix.lower() == ".gz" else kind


def _decoded(raw: bytes, path: Path) -> str | None:
    """Return a file's text with one kind of line ends; None if it is not text in UTF-8.

    A byte order mark may say UTF-16, and an HTML page may name its encoding.
    """
    encoding = "utf-8-sig"
    if raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        if b"\0" not in raw:  # no text is without any space, digit or line end
            return None
        encoding = "utf-16"
    elif b"\0" in raw:
        return None
    elif path.suffix.lower() in _HTML and (named := _CHARSET.search(raw[:2048])):
        encoding = named[1].decode()
        encoding = "utf-8-sig" if encoding.lower() in ("utf-8", "utf8") else encoding
    try:
        return raw.decode(encoding).replace("\r\n", "\n").replace("\r", "\n")
    except (UnicodeError, LookupError):
        return None


def _title_and_text(text: str, path: Path) -> tuple[str, str]:
    if path.suffix.lower() in _HTML:
        page = _Page()
        page.feed(text)
        page.close()
        return page.title or path.stem, page.text
    if path.suffix.lower() == ".txt":
        return path.stem, text
    title = ""
    if front := _FRONT_MATTER.match(text):
        text = text[front.end() :]
        named = _FRONT_TITLE.search(front[0])
        title = named[2] if named else ""
    blank = _FENCED.sub(lambda code: re.sub(r"[^\n]", " ", code[0]), text)
    if heading := _HEADING.search(blank):
        title = title or _CLOSING.sub("", heading[1] or heading[2]).strip()
        if not text[: heading.start()].strip():  # the title is not repeated in the text
            text = text[heading.end() :]
    return title or path.stem, text


def _parts(text: str) -> list[str]:
    """Return a text in parts of at most as many characters as a snippet is looked for in."""
    parts = []
    text = text.strip()
    while len(text) > SEARCHED:
        ends = (text.rfind(mark, SEARCHED // 2, SEARCHED) for mark in ("\n\n", "\n", " "))
        end = next((at for at in ends if at > 0), SEARCHED)
        parts.append(text[:end])
        text = text[end:].lstrip()
    return [*parts, text] if text or not parts else parts


class _Page(HTMLParser):
    """The title and the text of an HTML page, a paragraph a line."""

    _UNSEEN = frozenset({"script", "style", "template", "svg", "noscript"})
    _INLINE = re.compile(
        r"a|abbr|b|bd[io]|cite|code|data|del|dfn|em|font|i|img|ins|kbd|mark|q|s|samp|small|span"
        r"|strike|strong|su[bp]|time|tt|u|var|wbr"
    )

    def __init__(self) -> None:
        super().__init__()
        self._lines: list[str] = [""]
        self._headings = {"title": "", "h1": ""}
        self._inside: list[str] = []  # open tags of those that matter

    @property
    def title(self) -> str:
        return next(
            (text for heading in self._headings.values() if (text := _one_line(heading))), ""
        )

    @property
    def text(self) -> str:
        return "\n".join(line for raw in self._lines if (line := _one_line(raw)))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in self._UNSEEN or tag in self._headings or tag == "pre":
            self._inside.append(tag)
        if tag in ("td", "th"):
            self._lines[-1] += " "
        elif not self._INLINE.fullmatch(tag):
            self._lines.append("- " if tag == "li" else "")

    def handle_endtag(self, tag: str) -> None:
        if tag in self._inside:
            del self._inside[self._inside.index(tag) :]
        if tag not in ("td", "th") and not self._INLINE.fullmatch(tag):
            self._lines.append("")

    def handle_data(self, data: str) -> None:
        if self._UNSEEN.intersection(self._inside):
            return
        for tag in self._headings.keys() & set(self._inside):
            self._headings[tag] += data
        if "title" not in self._inside:
            first, *more = data.split("\n") if "pre" in self._inside else [data]
            self._lines[-1] += first
            self._lines += more


def _one_line(text: str) -> str:
    return " ".join(text.split())

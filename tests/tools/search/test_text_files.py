"""Documents of folders: Markdown, text, HTML and rows, and what is left out of an index."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path

import pytest

from vf.runtime.errors import ConfigError
from vf.tools.commands.search import main
from vf.tools.search.build import build_index
from vf.tools.search.contract import Document
from vf.tools.search.snippets import SEARCHED
from vf.tools.search.sources import Documents, Fields

PAGE = """<!doctype html><html><head><title>Birds &amp;
 fish</title><style>p { color: red }</style></head><body><nav>Home</nav>
<h1>A heading</h1><p>An <b>ostri</b>ch runs.<script>alert("x")</script></p>
<ul><li>one<li>two</ul><pre>def f():
  return 1</pre><table><tr><td>a</td><td>b</td></tr></table></body></html>"""


def write(folder: Path, files: dict[str, str | bytes]) -> Path:
    """Write files by their paths in a folder."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return folder


def documents(*sources: Path) -> dict[str, Document]:
    return {document.id: document for _, document in Documents(sources)}


@pytest.mark.parametrize(
    ("name", "content", "title", "text"),
    [
        ("a.md", "\n# Oslo #\n\nA fjord.\n", "Oslo", "A fjord."),
        ("a.md", "Before.\n\n## About C#\nAfter.", "About C#", "Before.\n\n## About C#\nAfter."),
        ("a.MD", "```sh\n# a comment\n```\n# Title", "Title", "```sh\n# a comment\n```\n# Title"),
        ("a.md", '---\ntitle: "From above"\n---\ntext', "From above", "text"),
        ("a.md", "#hashtag, and no heading", "a", "#hashtag, and no heading"),
        ("a.md", "# Only a title", "Only a title", ""),
        ("a.rst", "Oslo\n====\n\nA fjord.", "Oslo", "A fjord."),
        ("my notes.txt", b"\xef\xbb\xbf# no heading\r\nhere", "my notes", "# no heading\nhere"),
        ("a.txt", "sixteen bits".encode("utf-16"), "a", "sixteen bits"),
        (
            "a.html",
            PAGE,
            "Birds & fish",
            "Home\nA heading\nAn ostrich runs.\n- one\n- two\ndef f():\nreturn 1\na b",
        ),
        ("a.htm", "<h1>First</h1>text", "First", "First\ntext"),
        ("a.htm", '<meta charset="latin1"><p>caf\xe9'.encode("latin1"), "a", "caf\xe9"),
    ],
)
def test_a_file_is_a_document(
    tmp_path: Path, name: str, content: str | bytes, title: str, text: str
) -> None:
    write(tmp_path, {name: content})
    assert documents(tmp_path) == {name: Document(name, title, text)}


def test_ids_are_paths_in_the_folder(tmp_path: Path) -> None:
    write(tmp_path, {"notes/sub/a.md": "a", "notes/b.txt": "b", "other/c.md": "c"})
    notes, other = tmp_path / "notes", tmp_path / "other"
    assert list(documents(notes)) == ["b.txt", "sub/a.md"]
    assert list(documents(notes / "b.txt")) == ["b.txt"]
    assert list(documents(notes, other)) == ["notes/b.txt", "notes/sub/a.md", "other/c.md"]
    assert list(documents(notes, notes / "b.txt")) == ["b.txt", "sub/a.md"]  # each once


def test_rows_and_texts_mix(tmp_path: Path) -> None:
    row = {"key": "r", "passage": "a row"}
    write(tmp_path, {"a.md": "# A\ntext", "rows.jsonl": json.dumps(row)})
    found = Documents(tmp_path, Fields(id="key", text="passage"))
    assert [document for _, document in found] == [
        Document("a.md", "A", "text"),
        Document("r", "", "a row"),
    ]
    assert found.done == found.total


def test_a_text_longer_than_a_snippet_is_looked_for_in_is_split(tmp_path: Path) -> None:
    paragraphs = "\n\n".join("word " * 200 for _ in range(2 * SEARCHED // 1000))
    write(tmp_path, {"book.txt": paragraphs})
    found = documents(tmp_path)
    assert list(found) == ["book.txt#1", "book.txt#2", "book.txt#3"]
    assert all(len(part.text) <= SEARCHED for part in found.values())
    words = [word for part in found.values() for word in part.text.split()]
    assert words == paragraphs.split()


def test_what_is_left_out_is_counted_and_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(
        tmp_path / "notes",
        {
            "a.md": "text",
            "empty.md": " \n",
            "binary.txt": b"\0\1",
            "old.txt": "caf\xe9".encode("latin1"),
            "marked.txt": b"\xff\xfe\xfd\xe9",  # begins like UTF-16
            "picture.png": b"\x89PNG",
            "packed.md.gz": b"\x1f\x8b",
            "package.json": "{}",
            ".git/config": "text",
            ".hidden.md": "text",
        },
    )
    os.symlink(tmp_path / "notes", tmp_path / "notes" / "loop")
    found = Documents(tmp_path / "notes")
    assert [document.id for _, document in found] == ["a.md"]
    for part in (
        "10 left out: ",
        "2 hidden",
        f"1 links to folders ({tmp_path}/notes/loop)",
        "3 of another kind",
        "1 empty",
        "1 binary",
        f"2 not UTF-8: save them as UTF-8 ({tmp_path}/notes/marked.txt, {tmp_path}/notes/old.txt)",
    ):
        assert part in found.left_out
    with caplog.at_level(logging.WARNING):
        build_index(tmp_path / "notes", tmp_path / "index")
    assert found.left_out in caplog.text
    with pytest.raises(ConfigError, match="no documents to index: 1 left out: 1 empty"):
        build_index(tmp_path / "notes" / "empty.md", tmp_path / "none")


def test_a_folder_of_notes_is_searched_from_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    notes = {f"notes/{n:02}.md": f"# Note {n}\nA word{n} alone.\n" for n in range(30)}
    write(tmp_path, {**notes, "notes/empty.md": ""})
    assert main(["build", "notes/", "-o", "index"]) == 0
    out, err = capsys.readouterr()
    assert "index: 30 documents" in out
    assert err == "vf-rl search: 1 left out: 1 empty (notes/empty.md)\n"
    assert main(["query", "index", "word17", "-k", "3"]) == 0
    out, _ = capsys.readouterr()
    assert out == '<result id="17.md" title="Note 17">\nA word17 alone.\n</result>\n'


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ("nots", r"there is no file nots\. Did you mean 'notes'\?"),
        ("a.pdf", r"a.pdf: documents come from a folder, .*\.md, .*\.html, .*\.jsonl, .*hf:NAME"),
        ("notes/table.csv", "table.csv, line 2: the field 'text' or .* is missing; it has: a"),
    ],
)
def test_an_unusable_source_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, complaint: str
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path, {"notes/table.csv": "a\n1\n", "a.pdf": "%PDF"})
    with pytest.raises(ConfigError, match=complaint):
        build_index(source, "index")

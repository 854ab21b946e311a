"""Find phrases that a technical writer would not use: `python scripts/check_prose.py`.

Reads what people read: Markdown outside of code, the comments, docstrings and messages of Python,
the names of tests, and the comments and texts of JavaScript. Reports each phrase of
`prose_words.toml` with its place and a better word, and exits with 1 if there is any.

In the rooms that `prose_words.toml` lists under `[rooms]`, it checks the names in the code and the
sections of docstrings, too: an entry of `Args:` begins with a noun, one of `Raises:` with "If".
"""

from __future__ import annotations

import ast
import inspect
import io
import re
import subprocess
import sys
import tokenize
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
WORDS = Path(__file__).with_name("prose_words.toml")
KINDS = (".md", ".py", ".js")
# Pages that give other libraries' words, files and prompts of tasks, the tests of this script.
SKIPPED = (
    *("docs/terms.md", "docs/coming-from.md"),
    *("bridges/harbor/bundled/", "environments/bundled/problems/", "scripts/agent_programs/"),
    "tests/test_prose.py",
)
_GAP = r"""[\s#*"'/]+"""  # between two words: a line may end there, or a string
_NOT_PROSE = re.compile(
    r"^(?P<fence>```|~~~).*?^(?P=fence)|^(?: {4}|\t)[^\n]*$|`[^`\n]+`|\]\([^)\n]*\)",
    re.DOTALL | re.MULTILINE,
)
_JAVASCRIPT = re.compile(
    r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'|`[^`]*`", re.DOTALL
)


_ENTRY = re.compile(r" {4}([\w.*]+): (\w+)")  # of a section of a docstring
_NO_NOUN = re.compile(
    r"(As|How|If|Is|It|Likewise|Of|On|Said|That|They|What|Where|Which|Who|Whom|Whose)\b"
)
_TEST_NAME = re.compile(r"(?<=def test)_\w+")


@dataclass(frozen=True, slots=True)
class Finding:
    """A phrase in a file.

    Attributes:
        path: The file, from the repository's root.
        line: Where the phrase begins, from 1.
        phrase: What it says there.
        better: What to write instead.
    """

    path: str
    line: int
    phrase: str
    better: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.phrase!r}: write {self.better}"


class Vocabulary:
    """Phrases to avoid.

    Args:
        phrases: Regular expressions in lower case, with a space for any gap between words, to
            better words.
    """

    def __init__(self, phrases: dict[str, str]) -> None:
        self._better = list(phrases.values())
        every = (f"(?P<p{n}>{phrase.replace(' ', _GAP)})" for n, phrase in enumerate(phrases))
        # Without IGNORECASE, on text in lower case: five times as fast.
        self._pattern = re.compile(rf"\b(?:{'|'.join(every)})(?!\w)")

    def check(self, path: str, text: str) -> Iterator[Finding]:
        """Yield the findings of a file; the end of its name says which part of it is prose."""
        if not self._pattern.search(_spoken(path, text).lower()):
            return  # most files: nothing else is computed for them
        prose = _prose(path, text).lower()
        for match in self._pattern.finditer(prose):
            better = self._better[int(str(match.lastgroup)[1:])]
            line = prose.count("\n", 0, match.start()) + 1
            yield Finding(path, line, " ".join(re.split(_GAP, match[0])), better)


def _spoken(path: str, text: str) -> str:
    """Return the text with the names of tests as words."""
    if not path.startswith("tests/"):
        return text
    words = _TEST_NAME.sub(lambda name: name[0].replace("_", " "), text)
    return re.sub(r"\bmicro (?=batch)", "micro-", words)


def _prose(path: str, text: str) -> str:
    """Return the text with spaces for all that is not prose, so that places stay the same."""
    if path.endswith(".md"):
        return _NOT_PROSE.sub(lambda code: re.sub(r"[^\n]", " ", code[0]), text)
    tests = path.startswith("tests/")
    spans = [*(_python(text, messages=not tests) if path.endswith(".py") else _javascript(text))]
    if tests:
        spans = sorted([*spans, *(name.span() for name in _TEST_NAME.finditer(text))])
        text = _spoken(path, text)
    kept, end = [], 0
    for start, stop in spans:
        kept += [re.sub(r"[^\n]", " ", text[end:start]), text[start:stop]]
        end = stop
    return "".join(kept)


def _javascript(text: str) -> Iterator[tuple[int, int]]:
    for match in _JAVASCRIPT.finditer(text):
        yield match.span()


def _python(text: str, *, messages: bool) -> Iterator[tuple[int, int]]:
    """Yield where comments, docstrings and, unless they are a test's data, other strings are."""
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    middle = getattr(tokenize, "FSTRING_MIDDLE", None)
    begins = True  # a statement: a string there is a docstring
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        string = token.type in (tokenize.STRING, middle) and (messages or begins)
        if (string and " " in token.string) or token.type == tokenize.COMMENT:  # else a key
            (row, column), (last, end) = token.start, token.end
            yield starts[row - 1] + column, starts[last - 1] + end
        if token.type not in (tokenize.COMMENT, tokenize.NL):
            begins = token.type in (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)


class Conventions:
    """What code must keep to in some rooms: names that are nouns, and sections of docstrings.

    Args:
        rooms: Folders whose Python files are checked.
        names: Names to avoid, without underscores around them, to better ones.
        verbs: Those of them that a function may have.
        kept: Those that must stay, as ``path:name``: what is written to files has them.
    """

    def __init__(
        self,
        rooms: Sequence[str],
        names: Mapping[str, str],
        verbs: Sequence[str],
        kept: Sequence[str],
    ) -> None:
        self._rooms = tuple(f"{room}/" for room in rooms)
        self._names, self._verbs, self._kept = names, {*verbs}, {*kept}

    def check(self, path: str, text: str) -> Iterator[Finding]:
        """Yield the findings of a file, in the order of its lines."""
        if not path.endswith(".py") or not path.startswith(self._rooms):
            return
        found = [self._name(path, 1, Path(path).stem)]
        for node in ast.walk(ast.parse(text)):
            match node:
                case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                    found.append(self._name(path, node.lineno, name))
                case ast.arg(arg=name) | ast.ClassDef(name=name):
                    found.append(self._name(path, node.lineno, name))
                case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                    if name not in self._verbs:
                        found.append(self._name(path, node.lineno, name))
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                found += _sections(path, node)
        yield from sorted(filter(None, found), key=lambda finding: finding.line)

    def _name(self, path: str, line: int, name: str) -> Finding | None:
        better = None if f"{path}:{name}" in self._kept else self._names.get(name.strip("_"))
        return None if better is None else Finding(path, line, name, better)


def _sections(
    path: str, node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
) -> Iterator[Finding]:
    """Yield the entries of a docstring's `Args:` and `Raises:` that begin with a wrong word."""
    text = ast.get_docstring(node, clean=False)
    if text is None:
        return
    [first, *_] = node.body
    section = ""
    for number, line in enumerate(inspect.cleandoc(text).splitlines()):
        if not line.startswith(" "):
            section = line
        elif entry := _ENTRY.match(line):
            phrase, better = f"{entry[1]}: {entry[2]} ...", ""
            if section == "Args:" and _NO_NOUN.match(entry[2]):
                better = "a noun phrase"
            elif section == "Raises:" and entry[2] != "If":
                better = "a condition: If ..."
            if better:
                yield Finding(path, first.lineno + number, phrase, better)


def files(root: Path) -> Iterator[str]:
    """Yield the files of a repository that hold prose."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=root,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    for path in listed:
        if path.endswith(KINDS) and not path.startswith(SKIPPED) and (root / path).is_file():
            yield path


def check(root: Path, paths: Iterable[str]) -> list[Finding]:
    """Return what is found in files of a repository."""
    words = tomllib.loads(WORDS.read_text(encoding="utf-8"))
    vocabulary, rooms = Vocabulary(words["phrases"]), words["rooms"]
    conventions = Conventions(rooms["clean"], words["names"], rooms["verbs"], rooms["kept"])
    texts = ((path, (root / path).read_text(encoding="utf-8")) for path in paths)
    return [
        finding
        for path, text in texts
        for finding in (*vocabulary.check(path, text), *conventions.check(path, text))
    ]


def main() -> int:
    """Check the repository, or the files that are named."""
    found = check(ROOT, sys.argv[1:] or files(ROOT))
    for finding in found:
        print(finding)
    if found:
        print(f"{len(found)} phrases to rewrite; the vocabulary is {WORDS.relative_to(ROOT)}")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())

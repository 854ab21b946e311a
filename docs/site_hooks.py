"""MkDocs hooks: adds pages from outside docs/, and converts GitHub's Markdown."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from pygments.lexers import BashLexer
from pygments.token import Name

ROOT = Path(__file__).resolve().parent.parent
BENCHMARKS = "benchmarks/results"
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_INDENTED = re.compile(r"(?<=\n\n)(?: {4}[^\n]*\n)+(?=\n|\Z)")
# What a block of the shell begins with; GitHub's pages name no language for it.
_COMMAND = (
    r"(?:\.venv/bin/|scripts/)?"
    r"(?:vf-rl|pip|python3?|make|uv|accelerate|torchrun|ray|sbatch|kubectl|bash|apt-get|export)\b"
)
_SHELL = re.compile(rf"\s*(?:[A-Z_]+=\S+ +)?{_COMMAND}")
# The lexer knows only the shell's own words: programs and options are given a colour as well.
BashLexer.tokens["basic"][:0] = [
    (rf"(?m)^{_COMMAND}", Name.Function),
    (r"(?<=\s)--?[a-zA-Z][\w-]*", Name.Attribute),
]


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """List the benchmarks in the navigation: whatever results there are."""
    found = sorted((ROOT / BENCHMARKS).glob("*.md"))
    for entry in config.nav or []:
        if "Benchmarks" in entry:
            entry["Benchmarks"] = [f"{BENCHMARKS}/{path.name}" for path in found]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that stand outside of docs/, with their plots."""
    results = ROOT / BENCHMARKS
    for path in [ROOT / "CONTRIBUTING.md", *results.glob("*.md"), *results.glob("*.png")]:
        name = path.relative_to(ROOT).as_posix()
        files.append(File.generated(config, name, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Write what GitHub understands as Python-Markdown does."""
    # The pages from outside stand beside the others in the site.
    markdown = re.sub(r"\]\((?:\.\./)+(benchmarks/results/|CONTRIBUTING)", r"](\1", markdown)
    markdown = re.sub(r"^(```\w+) no-run$", r"\1", markdown, flags=re.MULTILINE)
    markdown = _FENCE.sub(_shell_fence, markdown)
    markdown = _INDENTED.sub(_shell_block, markdown)
    # In a table, GitHub wants a pipe in code escaped; Python-Markdown would show the backslash.
    return re.sub(r"^\|.*\|$", _plain_pipes, markdown, flags=re.MULTILINE)


def _shell_fence(block: re.Match[str]) -> str:
    shell = not block[1] and _SHELL.match(block[2])
    return f"```bash\n{block[2]}```" if shell else block[0]


def _shell_block(block: re.Match[str]) -> str:
    if not _SHELL.match(block[0]):
        return block[0]
    return f"```bash\n{textwrap.dedent(block[0])}```\n"


def _plain_pipes(row: re.Match[str]) -> str:
    return re.sub(r"`[^`]*`", lambda code: code[0].replace(r"\|", "|"), row[0])

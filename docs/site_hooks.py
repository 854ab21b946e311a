"""MkDocs hooks: adds pages from outside docs/, and converts GitHub's Markdown."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent
BENCHMARKS = "benchmarks/results"


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
    # In a table, GitHub wants a pipe in code escaped; Python-Markdown would show the backslash.
    return re.sub(r"^\|.*\|$", _plain_pipes, markdown, flags=re.MULTILINE)


def _plain_pipes(row: re.Match[str]) -> str:
    return re.sub(r"`[^`]*`", lambda code: code[0].replace(r"\|", "|"), row[0])

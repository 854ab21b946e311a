"""Every block of README and docs that claims to run is run, straight from the text."""

from __future__ import annotations

import ast
import importlib
import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.docs.blocks import PAGES, ROOT, Block, blocks
from vf.environments import registry
from vf.evaluation.eval_config import parse_config as parse_evaluation
from vf.sandbox.hosting.source import sandbox_source
from vf.trainer.settings.load_config import parse_config
from vf.trainer.sft.settings import parse_sft_config

# Pages with a test of their own, which looks at more than whether the code runs.
ELSEWHERE = {
    "README.md": "tests/test_readme.py",
    "docs/evaluation.md": "tests/evaluation/test_docs.py",
    "docs/gymnasium.md": "tests/bridges/gym/test_docs.py",
    "docs/own-loop.md": "tests/trainer/test_own_loop_page.py",
    "docs/sandbox.md": "tests/sandbox/test_docs.py",
    "docs/services.md": "tests/sandbox/services/test_compose.py",
    "docs/testing.md": "tests/docs/test_testing_page.py",
}
ALL = [block for path in PAGES for block in blocks(path)]
HERE = [block for block in ALL if block.page not in ELSEWHERE]
# What a fragment of a training run leaves out.
ENV = {"id": "calculator"}
REST = {"model": "tiny", "env": ENV}


def of_kind(kind: str) -> list[Block]:
    return [block for block in HERE if block.kind == kind]


PYTHON = [block for block in of_kind("python") if block.runs]


@pytest.fixture(autouse=True)
def _own_registrations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_registered", {})


@pytest.mark.parametrize("page", sorted({block.page for block in PYTHON}))
def test_the_python_of_a_page_runs(
    page: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    scope: dict[str, Any] = {"__name__": "docs"}
    for block in PYTHON:
        if block.page == page:
            # Lines that come before, so that a traceback names the page's own.
            exec(compile("\n" * (block.line - 1) + block.text, str(ROOT / page), "exec"), scope)


@pytest.mark.parametrize("block", [b for b in ALL if b.kind == "python" and not b.runs], ids=str)
def test_python_that_is_not_run_is_python_and_imports_what_is_there(block: Block) -> None:
    for node in ast.walk(ast.parse(block.text)):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("vf"):
            module = importlib.import_module(node.module)
            assert [name.name for name in node.names if not hasattr(module, name.name)] == []


@pytest.mark.parametrize("block", of_kind("toml"), ids=str)
def test_the_toml_of_a_page_is_valid(block: Block) -> None:
    raw = tomllib.loads(block.text)
    if "environments" in raw:
        assert parse_evaluation(raw).environments
        return
    if "data" in raw:
        assert parse_sft_config(raw).data.traces
        return
    if "model" not in raw:  # a fragment, and no whole run
        raw = REST | raw | {"env": ENV | raw.get("env", {})}
    config, notes = parse_config(raw)
    assert notes == [], "say it by our names"
    if isinstance(sandbox := config.env[0].args.get("sandbox"), Mapping):
        assert sandbox_source(sandbox)


@pytest.mark.parametrize("block", of_kind("json"), ids=str)
def test_the_json_of_a_page_is_valid(block: Block) -> None:
    assert all(json.loads(line) for line in block.text.splitlines())


def test_none_is_overlooked() -> None:
    assert {block.kind for block in ALL} <= {"", "python", "toml", "json", "yaml"}
    assert {block.kind for block in HERE if block.runs} == {"", "python", "toml", "json"}
    for page, test in ELSEWHERE.items():
        assert Path(page).name in (ROOT / test).read_text(encoding="utf-8"), f"{test}: {page}"
        assert {block.kind for block in ALL if block.page == page} <= {"", "python", "toml", "yaml"}
    for path in PAGES:
        text = path.read_text(encoding="utf-8")
        assert text.count("```") == 2 * len(blocks(path)), f"{path.name}: a fence is not closed"

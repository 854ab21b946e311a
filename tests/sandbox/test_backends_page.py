"""The backend that the text about backends shows is a sandbox."""

from __future__ import annotations

import re
import sys
import types
from pathlib import Path

import pytest

from vf.sandbox.container.docker_engine import Engine
from vf.sandbox.selfcheck import main

TEXT = (Path(__file__).parents[2] / "docs" / "backends.md").read_text()


@pytest.mark.slow
def test_the_backend_keeps_the_contract(
    engine: Engine, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (code,) = re.findall(r"^```python\n(.*?)^```", TEXT, re.DOTALL | re.MULTILINE)
    assert len(code.splitlines()) <= 64  # it stays a page
    module = types.ModuleType("my_backend")
    monkeypatch.setitem(sys.modules, "my_backend", module)
    exec(compile(code, "docs/backends.md", "exec"), module.__dict__)
    (command,) = re.findall(r"^PYTHONPATH=. vf-rl sandbox self-check (.+)$", TEXT, re.MULTILINE)
    assert main(command.split()) == 0, capsys.readouterr().out

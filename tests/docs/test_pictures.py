"""The pictures of the docs can be made again, are used, and load nothing from elsewhere."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

from tests.docs.blocks import PAGES, ROOT

FOLDER = ROOT / "docs" / "pictures"
PICTURES = sorted(path.name for path in FOLDER.glob("*.svg"))


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_is_used_and_needs_nothing(name: str) -> None:
    assert any(f"](pictures/{name})" in page.read_text(encoding="utf-8") for page in PAGES)
    assert (FOLDER / f"make_{Path(name).stem.replace('-', '_')}.py").is_file()
    text = (FOLDER / name).read_text(encoding="utf-8")
    for scheme in ("http://", "https://"):
        text = text.replace(f'xmlns="{scheme}www.w3.org/2000/svg"', "")
        assert scheme not in text.partition("<defs>")[2]
    assert "@import" not in text
    assert "url(http" not in text


@pytest.mark.parametrize("name", ["architecture", "off-policy"])
def test_a_picture_is_what_its_script_draws(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(FOLDER)
    drawing = __import__("drawing")
    monkeypatch.setattr(drawing, "FOLDER", tmp_path)
    monkeypatch.setattr(sys, "argv", ["make"])
    runpy.run_path(str(FOLDER / f"make_{name.replace('-', '_')}.py"), run_name="__main__")
    drawn = (tmp_path / f"{name}.svg").read_text(encoding="utf-8")
    assert drawn == (FOLDER / f"{name}.svg").read_text(encoding="utf-8")

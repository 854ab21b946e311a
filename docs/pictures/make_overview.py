"""Photograph the page of a run: `python docs/pictures/make_overview.py runs/quickstart-1`.

Needs Chromium. What is written is the upper part of `vf-rl view RUN`, as a PNG.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
from chromium import find_chromium

PICTURE = Path(__file__).with_name("overview.png")
SIZE = "1400,735"


def main() -> None:
    """Write the page as a file, and photograph it."""
    browser = find_chromium()
    if browser is None or len(sys.argv) != 2:
        raise SystemExit(
            "usage: python docs/pictures/make_overview.py RUN, with Chromium installed"
        )
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "page.html"
        view = [sys.executable, "-m", "vf.trainer.commands.main", "view"]
        subprocess.run([*view, sys.argv[1], "-o", str(page)], check=True)
        switches = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
        shot = [f"--window-size={SIZE}", "--timeout=6000", f"--screenshot={PICTURE}"]
        subprocess.run([browser, *switches, *shot, page.as_uri()], check=True)


if __name__ == "__main__":
    main()

"""Draw what `vf-rl eval --validate calculator` prints: `python docs/pictures/make_validate.py`."""

from __future__ import annotations

import asyncio
import io
import re

from drawing import FOLDER
from rich.console import Console
from rich.terminal_theme import MONOKAI

import vf
from vf.evaluation.validation.findings import print_report


def main() -> None:
    """Validate the environment, and write `validate.svg`."""
    report = asyncio.run(vf.validate(vf.make("calculator"), again=vf.make("calculator"), tasks=20))
    console = Console(record=True, width=100, file=io.StringIO(), force_terminal=True)
    print_report(report, console)
    picture = console.export_svg(
        title="vf-rl eval --validate calculator", theme=MONOKAI, unique_id="validate"
    )
    # The fonts would come from elsewhere: the reader's own do.
    picture = re.sub(r"@font-face \{.*?\}\s*", "", picture, flags=re.DOTALL)
    path = FOLDER / "validate.svg"
    path.write_text(picture, encoding="utf-8")
    print(f"wrote {path}")


if __name__ == "__main__":
    main()

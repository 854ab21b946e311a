"""Task folders for the tests."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

MakeTask = Callable[..., Path]
SCRIPT = "#!/bin/sh\n"
LEAST: dict[str, str | None] = {
    "instruction.md": "Write the number 42 to /app/answer.txt.\n",
    "environment/Dockerfile": "FROM vf-sandbox:latest\nUSER root\nWORKDIR /app\n",
    "tests/test.sh": SCRIPT
    + "grep -qx 42 answer.txt && r=1 || r=0\necho $r > /logs/verifier/reward.txt\n",
    "solution/solve.sh": SCRIPT + "echo 42 > answer.txt\n",
}


def write_task(folder: Path, toml: str = "", files: Mapping[str, str | None] | None = None) -> Path:
    """Write the least task there is, with other files on top; None leaves one out."""
    least = {"task.toml": f'schema_version = "1.4"\n{toml}', **LEAST}
    for name, text in (least | dict(files or {})).items():
        if text is not None:
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            path.chmod(0o755 if name.endswith(".sh") else 0o644)
    return folder

"""Writing a task folder: what all of them have, unless something else is said."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

DOCKERFILE = "FROM vf-sandbox:latest\nWORKDIR /app\n"
SOLVE = "#!/bin/bash\necho done > /app/answer.txt\n"
PAID = "echo {} > /logs/verifier/reward.txt"


def pays_if(condition: str = '[ "$(cat /app/answer.txt)" = done ]') -> str:
    """Return a script that pays 1 if a condition of the shell's holds, else 0."""
    return f"#!/bin/bash\nif {condition}; then {PAID.format(1)}; else {PAID.format(0)}; fi\n"


def write(folder: Path, files: Mapping[str, str]) -> None:
    """Write files into a folder; scripts can be executed."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        if text.startswith("#!"):
            path.chmod(0o755)


def task(
    toml: str = "",
    *,
    dockerfile: str | None = DOCKERFILE,
    tests: str | None = None,
    solve: str | None = SOLVE,
    version: str = 'schema_version = "1.4"',
    more: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Return the files of a task: its ``task.toml`` begins with the version.

    Args:
        toml: The rest of ``task.toml``.
        dockerfile: None for none.
        tests: ``tests/test.sh``; None for one that reads ``/app/answer.txt``.
        solve: ``solution/solve.sh``; None for none.
        version: The line with the schema.
        more: Further files, or other ones.
    """
    files = {
        "task.toml": f"{version}\n{toml}",
        "instruction.md": "Write `done` to /app/answer.txt.\n",
        "tests/test.sh": tests or pays_if(),
    }
    if dockerfile is not None:
        files["environment/Dockerfile"] = dockerfile
    if solve is not None:
        files["solution/solve.sh"] = solve
    return {**files, **(more or {})}

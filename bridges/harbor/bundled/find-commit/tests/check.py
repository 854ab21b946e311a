"""Grade the task. What the agent wrote is only read here, never run."""

import os
import subprocess
import sys


def read(path, limit=1 << 20):
    """Return a file's text. A link could lead to a file of the verifier's."""
    if os.path.realpath(path) != path or os.path.getsize(path) > limit:
        sys.exit(f"{path} is a link, or too long")
    with open(path, encoding="utf-8", newline="") as file:
        return file.read()


def expect(condition, what):
    """End without a reward if the condition does not hold."""
    if not condition:
        sys.exit(what)


def git(folder, *arguments):
    """Return what Git prints. A bundle has no hooks and no settings, so nothing of it is run."""
    done = subprocess.run(
        ["git", "--no-replace-objects", "-C", folder, *arguments],
        capture_output=True,
        text=True,
        errors="replace",
    )
    expect(done.returncode == 0, f"git {' '.join(arguments)}: {done.stderr}")
    return done.stdout.strip()


wanted = git("/app/repo", "rev-list", "--reverse", "main").split()[12]
expect(read("/app/answer.txt").strip() == wanted, "another commit")

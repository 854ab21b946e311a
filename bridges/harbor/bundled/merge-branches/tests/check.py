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


def bundle():
    """Take the agent's refs into a repository of its own, and return its folder."""
    path = "/logs/artifacts/repo.bundle"
    expect(os.path.realpath(path) == path and os.path.getsize(path) < 1 << 22, "no bundle")
    subprocess.run(["git", "init", "-q", "--bare", "/tmp/theirs"], check=True)
    git("/tmp/theirs", "-c", "fetch.fsckObjects=true", "fetch", "-q", path, "+refs/*:refs/*")
    return "/tmp/theirs"


theirs, ours = bundle(), "/app/repo"
parents = [git(ours, "rev-parse", branch) for branch in ("main", "colours")]
expect(git(theirs, "rev-parse", "main^@").split() == parents, "main is no merge of the two")
expect(git(theirs, "rev-parse", "colours") == parents[1], "colours has changed")
wanted = {
    "README": "Colours, and how to name them.",
    "convert.py": "import palette",
    "palette.txt": "amber\nazure\nblue\ncyan\ngreen\njade",
    "settings.ini": "depth = 16\ngamma = 2.4\nmode = lab\nwhite = d65",
}
expect(git(theirs, "ls-tree", "-r", "--name-only", "main").split() == list(wanted), "other files")
for name, text in wanted.items():
    expect(git(theirs, "show", f"main:{name}") == text, f"{name} is wrong")
expect(read("/logs/artifacts/status.txt") == "", "the working tree is not clean")

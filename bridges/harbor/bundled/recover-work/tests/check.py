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
main = git(ours, "rev-parse", "main")
expect(git(theirs, "rev-parse", "main") == main, "main has changed")
subjects = git(theirs, "log", "--format=%s", f"{main}~1..experiment").splitlines()
expect(subjects == [f"Try number {n} (experiment)" for n in (3, 2, 1)], "not the three commits")
expect(git(theirs, "rev-parse", "experiment~3") == git(ours, "rev-parse", "main~1"), "elsewhere")
for number in (1, 2, 3):
    text = git(theirs, "show", f"experiment:try{number}.txt")
    expect(text == f"final {number}", "an earlier version")
lost = git(ours, "fsck", "--no-reflogs", "--unreachable")
tip = git(theirs, "rev-parse", "experiment")
expect(f"unreachable commit {tip}" in lost, "made again instead of recovered")
wanted = "# Ideas\n\n- count further\n- 1 2 3 4 5\n"
expect(read("/app/ideas.md") == wanted, "not the file")

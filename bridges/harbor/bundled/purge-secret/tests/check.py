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
refs = [
    "refs/heads/feature",
    "refs/heads/main",
    "refs/heads/release",
    "refs/tags/v1",
    "refs/tags/v2",
]
objects = git(theirs, "rev-list", "--objects", "--all")
expect("key.pem" not in objects, "a ref leads to key.pem")
for line in objects.splitlines():
    if git(theirs, "cat-file", "-t", line.split()[0]) == "blob":
        expect("PRIVATE KEY" not in git(theirs, "cat-file", "blob", line.split()[0]), "a key")
expect(git(theirs, "for-each-ref", "--format=%(refname)").split() == refs, "other refs")
expect(git(theirs, "cat-file", "-t", "refs/tags/v2") == "tag", "v2 is no annotated tag")
expect(
    git(theirs, "for-each-ref", "--format=%(contents)", "refs/tags/v2") == "Second version", "v2"
)


def history(folder, ref):
    lines = git(folder, "log", "--topo-order", "--format=%H|%an|%ae|%ad|%cd|%s|%p", ref)
    found = []
    for line in lines.splitlines():
        commit, *rest, parents = line.split("|")
        tree = git(folder, "ls-tree", "-r", commit).splitlines()
        tree = [file for file in tree if not file.endswith("key.pem")]
        found.append((rest, len(parents.split()), tree))
    return found


for ref in refs:
    expect(history(theirs, ref) == history(ours, ref), f"{ref} has changed")
expect(read("/logs/artifacts/status.txt") == "", "the working tree is not clean")

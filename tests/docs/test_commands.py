"""The commands that README and docs show exist, with the options and files that they name."""

from __future__ import annotations

import re
import tomllib
from functools import cache

import pytest

from tests.docs.blocks import PAGES, ROOT, commands
from vf.trainer.commands.main import COMMANDS, main

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
SHOWN = sorted({(where, tuple(words)) for path in PAGES for where, words in commands(path)})
OURS = [(where, words) for where, words in SHOWN if words[0].startswith("vf-")]
SUBCOMMANDS = {
    "cluster": ("kuberay", "slurm"),
    "sandbox": ("build", "doctor", "ps", "reap", "self-check"),
    "search": ("build", "info", "query", "serve"),
}
# Words that begin like a path of the repository and are one.
PATH = re.compile(r"(configs|scripts|benchmarks|docs|inference|tests)/[\w./-]+$")


@cache
def options(*command: str) -> frozenset[str]:
    """Return the options that the help of `vf-rl COMMAND` names."""
    with pytest.MonkeyPatch.context() as patch:
        said: list[str] = []
        patch.setattr("sys.stdout.write", said.append)
        with pytest.raises(SystemExit) as ended:
            main([*command, "--help"])
    assert ended.value.code == 0
    return frozenset(re.findall(r"(?<![\w-])--?[a-zA-Z][\w-]*", "".join(said)))


@pytest.mark.parametrize(("where", "words"), OURS, ids=[where for where, _ in OURS])
def test_a_command_has_the_options_that_are_shown(where: str, words: tuple[str, ...]) -> None:
    script, *rest = words
    assert script in PROJECT["scripts"]
    depth = 0 if rest[:1] and rest[0] not in COMMANDS else 1
    command = rest[: depth + (depth and rest[0] in SUBCOMMANDS)]
    assert set(command[1:]) <= set(SUBCOMMANDS.get(command[0], ()) if command else ())
    used = {word.partition("=")[0] for word in rest if re.match(r"--?[a-zA-Z]", word)}
    assert used - options(*command) == set()


def test_the_files_and_targets_that_commands_name_are_there() -> None:
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M)
    missing = [
        where
        for where, words in SHOWN
        for word in words[1:]
        if (words[0] == "make" and word not in targets)
        or (PATH.match(word) and not (ROOT / word).exists())
    ]
    assert missing == []


def test_there_are_commands_of_every_kind() -> None:
    assert {words[0] for _, words in SHOWN} >= {"make", "python", "pip", "vf-rl"}
    assert {words[1] for _, words in OURS} >= set(COMMANDS)

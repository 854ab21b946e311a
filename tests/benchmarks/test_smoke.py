"""Every benchmark is found and runs at its smallest size; the commands that pages show exist."""

from __future__ import annotations

import ast
import json
import re
from functools import cache
from pathlib import Path

import pytest
from harness import MISSING, parse, print_result
from smoke_benchmarks import benchmarks, fault, run

from tests.docs.blocks import PAGES, ROOT

RESULTS = sorted((ROOT / "benchmarks" / "results").glob("*.md"))
PROGRAMS = sorted((ROOT / "benchmarks").glob("*.py"))
OTHERS = [ROOT / ".ci" / "run", *sorted((ROOT / "configs").rglob("*.toml"))]
BENCHMARKS = benchmarks()
COMMAND = re.compile(r"python ((?:benchmarks|scripts)/\w+\.py)(.*)")


def shown(path: Path) -> set[tuple[str, frozenset[str]]]:
    """Return the programs that a file says to run, each with the options that it shows."""
    text = path.read_text(encoding="utf-8")
    pieces = [code.replace("\n", " ") for code in re.findall(r"(?<!`)`([^`\n]+\n?[^`\n]+)`", text)]
    found = [COMMAND.search(piece) for piece in (*pieces, *text.replace("`", "\n").splitlines())]
    return {
        (match[1], frozenset(re.findall(r"(?<=\s)--[a-z][\w-]*", match[2].partition("#")[0])))
        for match in found
        if match is not None
    }


SHOWN = sorted(
    {
        (path.relative_to(ROOT).as_posix(), program, tuple(sorted(options)))
        for path in (*PAGES, *RESULTS, *PROGRAMS, *OTHERS)
        for program, options in shown(path)
    }
)


@cache
def options_of(program: Path) -> set[str]:
    """Return the options that a program adds."""
    calls = [n for n in ast.walk(ast.parse(program.read_text())) if isinstance(n, ast.Call)]
    words = [word.value for n in calls for word in n.args if isinstance(word, ast.Constant)]
    smoke = {"--smoke"} if program in BENCHMARKS.values() else set()
    return {w for w in words if isinstance(w, str) and w.startswith("--")} | smoke | {"--help"}


@pytest.mark.parametrize(("page", "program", "options"), SHOWN)
def test_a_command_that_is_shown_exists_with_its_options(
    page: str, program: str, options: tuple[str, ...]
) -> None:
    path = ROOT / program
    assert path.is_file()
    if path.parent.name == "benchmarks":
        assert path.stem in BENCHMARKS
    assert set(options) <= options_of(path)


def test_every_benchmark_says_how_to_run_it() -> None:
    commands = {program for path in PROGRAMS for program, _ in shown(path)}
    assert {f"benchmarks/{path.name}" for path in BENCHMARKS.values()} <= commands


GUARD = 'if __name__ == "__main__":\n    main()\n'


def test_a_program_that_no_other_starts_is_a_benchmark(tmp_path: Path) -> None:
    files = {"speed": f'RUN = "worker.py"\n{GUARD}', "worker": GUARD, "helper": "", "new": GUARD}
    for name, text in files.items():
        (tmp_path / f"{name}.py").write_text(text)
    assert [*benchmarks(tmp_path)] == ["new", "speed"]


@pytest.mark.parametrize(
    ("last", "why"),
    [
        ({"benchmark": "b", "ratio": None, "target": 1, "smoke": True}, None),
        ({"benchmark": "b", "ratio": 2, "target": 1}, "lacks smoke"),
        ({"benchmark": "b", "ratio": 2, "target": 1, "smoke": False}, '"smoke": true'),
        ({"benchmark": "other", "ratio": 2, "target": 1, "smoke": True}, '"benchmark": "b"'),
        ([], "lacks benchmark, ratio, smoke, target"),
    ],
)
def test_the_last_line_is_checked(last: object, why: str | None) -> None:
    found = fault("b", 0, f"progress\n{json.dumps(last)}\n")
    assert found is None if why is None else why in (found or "")


def test_a_benchmark_that_prints_no_json_or_fails_has_a_fault() -> None:
    assert fault("b", 0, "") == fault("b", 0, "done\n") == "its last line is not JSON"
    assert fault("b", 1, "") == "it ended with exit code 1"


def test_one_without_the_flag_fails_and_one_that_lacks_a_part_is_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("VF_REQUIRE_ALL", raising=False)
    old, lacking = tmp_path / "old.py", tmp_path / "lacking.py"
    old.write_text("import argparse\nargparse.ArgumentParser().parse_args()\n")
    lacking.write_text(f'import sys\nprint("needs a GPU", file=sys.stderr)\nsys.exit({MISSING})\n')
    assert not run("old", old, 60)
    assert "unrecognized arguments: --smoke" in capsys.readouterr().out
    assert run("lacking", lacking, 60)
    assert "skipped  needs a GPU" in capsys.readouterr().out
    monkeypatch.setenv("VF_REQUIRE_ALL", "1")
    assert not run("lacking", lacking, 60)


def test_a_smoke_run_has_the_smallest_size_unless_told_otherwise(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import argparse

    def parsed(*words: str, **smallest: object) -> argparse.Namespace:
        parser = argparse.ArgumentParser()
        parser.add_argument("--rounds", type=int, default=5)
        parser.add_argument("--turns", type=int, default=30)
        monkeypatch.setattr("sys.argv", ["b", *words])
        return parse(parser, **smallest)

    small = {"rounds": 1, "turns": 2}
    assert vars(parsed(**small)) == {"rounds": 5, "turns": 30, "smoke": False}
    args = parsed("--smoke", "--turns", "3", **small)
    assert vars(args) == {"rounds": 1, "turns": 3, "smoke": True}
    print_result(args, "b", ratio=2.0, target=1.0, more=3)
    assert fault("b", 0, capsys.readouterr().out) is None
    with pytest.raises(TypeError, match="rouds"):
        parsed(rouds=1)

"""`vf-rl init`: what it writes, what it prints, and what it refuses."""

from __future__ import annotations

import ast
import asyncio
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import vf
from vf.environments.authoring.names import names_of
from vf.environments.authoring.package import KINDS
from vf.environments.commands.init import main
from vf.trainer.settings.load_config import parse_config

Capsys = pytest.CaptureFixture[str]
FLAGS = {
    (tools, sandbox): ["--tools"] * tools + ["--sandbox"] * sandbox for tools, sandbox in KINDS
}
EVERY = [
    *FLAGS.values(),
    ["--agent"],
    ["--agents"],
    *([*flags, "--prime-rl"] for flags in FLAGS.values()),
]


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_it_names_each_file_and_the_next_commands(capsys: Capsys) -> None:
    assert main(["word-count"]) == 0
    printed = capsys.readouterr().out
    written = [str(path) for path in Path("word-count").rglob("*") if path.is_file()]
    assert sorted(re.findall(r"wrote (\S+)", printed)) == sorted(written)
    for command in (
        "pip install -e 'word-count[test]'",
        "vf-rl eval word-count -m tiny",
        "vf-rl eval --validate word-count",
        "python -m pytest word-count",
        "vf-rl word-count/word-count.toml",
    ):
        assert command in printed
    assert "vf-rl sandbox" not in printed


@pytest.mark.parametrize("kind", FLAGS)
def test_every_combination_is_complete(kind: tuple[bool, bool], capsys: Capsys) -> None:
    tools, sandbox = kind
    assert main(["word-count", *FLAGS[kind]]) == 0
    folder = Path("word-count")
    texts = {path: path.read_text() for path in folder.rglob("*") if path.is_file()}
    assert [path for path, text in texts.items() if "$" in text] == []
    code = texts[folder / "word_count" / "environment.py"]
    assert ("@vf.tool" in code) == tools
    assert ("sandbox_source" in code) == sandbox
    assert ("vf-rl sandbox build" in capsys.readouterr().out) == sandbox
    classes = [node.name for node in ast.walk(ast.parse(code)) if isinstance(node, ast.ClassDef)]
    assert classes == ["WordCountEnv"]
    project = tomllib.loads(texts[folder / "pyproject.toml"])["project"]
    assert project["entry-points"]["vf.environments"] == {
        "word-count": "word_count.environment:WordCountEnv"
    }
    assert project["dependencies"] == ["vf-rl[sandbox]" if sandbox else "vf-rl"]
    config, notes = parse_config(tomllib.loads(texts[folder / "word-count.toml"]))
    assert (config.env[0].id, config.model, notes) == ("word-count", "tiny", [])


@pytest.mark.parametrize("flags", EVERY, ids=" ".join)
def test_what_is_written_is_formatted_and_clean(flags: list[str]) -> None:
    if shutil.which("ruff", path=str(Path(sys.executable).parent)) is None:
        pytest.skip("ruff is not installed")
    main(["counting-words", *flags])
    settings = ["--isolated", "--line-length", "100"]
    rules = ["--select", "E,F,W,I,B,UP,SIM,C4,RET,PIE,PT,ASYNC"]
    for command in (["check", *rules], ["format", "--check"]):
        done = subprocess.run(
            [sys.executable, "-m", "ruff", *command, *settings, "."],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr


def test_an_agent_is_a_function_with_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    assert main(["own-agent", "--agent"]) == 0
    project = tomllib.loads(Path("own-agent/pyproject.toml").read_text())["project"]
    [target] = project["entry-points"]["vf.environments"].values()
    assert target == "own_agent.environment:environment"
    assert project["dependencies"] == ["vf-rl", "openai"]
    monkeypatch.syspath_prepend(Path("own-agent").absolute())
    made = vf.make(target)
    assert isinstance(made, vf.AgentEnvironment)
    task = next(iter(made.tasks("eval")))
    trace = asyncio.run(vf.rollout(made, task, vf.ScriptedModel(made.oracle(task) or [])))
    assert (trace.error, trace.reward) == (None, 1.0)


@pytest.mark.slow
@pytest.mark.gate
def test_with_prime_rl_verifiers_loads_it_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaders = pytest.importorskip("verifiers.v1.utils.loaders")
    assert main(["sum-up", "--prime-rl"]) == 0
    folder = tmp_path / "sum-up"
    monkeypatch.syspath_prepend(folder)
    # What its entry point would do, were it installed.
    monkeypatch.setattr("vf.environments.registry._registered", {})
    vf.register("sum-up", "sum_up.environment:SumUpEnv")
    source = tomllib.loads(_block((folder / "README.md").read_text()))["orchestrator"]["train"]
    config = loaders.resolve_env_config(source["source"][0]["env"])
    made = loaders.load_environment(config).taskset
    assert type(made.environment).__name__ == "SumUpEnv"
    assert next(iter(made)).key == next(iter(made.environment.tasks("train"))).id
    text = (folder / "pyproject.toml").read_text()
    extras = tomllib.loads(text)["project"]["optional-dependencies"]
    assert extras["test"][-1] == "vf-rl[verifiers]"
    assert (folder / "tests" / "test_prime_rl.py").is_file()


def test_without_prime_rl_nothing_of_it_is_written() -> None:
    assert main(["word-count"]) == 0
    for path in Path("word-count").rglob("*"):
        assert path.is_dir() or "verifiers" not in path.read_text(), path


def _block(page: str) -> str:
    (text,) = re.findall(r"^```toml\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    return str(text)


def test_it_can_be_written_elsewhere(tmp_path: Path, capsys: Capsys) -> None:
    (tmp_path / "my envs").mkdir()
    assert main(["word-count", "--into", "my envs"]) == 0
    assert (tmp_path / "my envs" / "word-count" / "word_count" / "environment.py").is_file()
    assert "pip install -e 'my envs/word-count[test]'" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("id", "package", "cls"),
    [
        ("word-count", "word_count", "WordCountEnv"),
        ("shop", "shop", "ShopEnv"),
        ("iterator", "iterator", "IteratorEnv"),
        ("my-env", "my_env", "MyEnv"),
        ("game-2048", "game_2048", "Game2048Env"),
    ],
)
def test_the_names_follow_from_the_id(id: str, package: str, cls: str) -> None:
    names = names_of(id)
    assert (names.package, names.cls) == (package, cls)
    assert f"{names.package}.{names.cls}".replace(".", "").isidentifier()


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["My_Env"], "such as 'my-env'"),
        (["MyEnv"], "such as 'my-env'"),
        (["my--env"], "such as 'my-env'"),
        (["--", "-x-"], "such as 'x'"),
        (["2048-game"], "a letter first, such as 'game'"),
        (["Zürich"], "such as 'zurich'"),
        (["a/b"], "such as 'a-b'"),
        (["../up"], "such as 'up'"),
        ([""], "such as 'word-count'"),
        (["a" * 51], "take at most 50"),
        (["class"], "'class' cannot be the name of a package; take 'class-env'"),
        (["tests"], "'tests' cannot be the name of a package"),
        (["json"], "would hide the module 'json'"),
        (["pytest"], "would hide the module 'pytest'"),
        (["vf"], "would hide the module 'vf'"),
        (["calculator"], "there is an environment 'calculator' already"),
        (["my-shop"], "there is an environment 'my-shop' already"),  # registered in code
        (["word-count", "--into", "nowhere"], "there is no folder nowhere"),
        *(
            (["word-count", "--agent", flag], "leave out --tools, --sandbox and --prime-rl")
            for flag in ("--tools", "--sandbox", "--prime-rl")
        ),
        *(
            (["word-count", "--agents", flag], "--agents writes an environment with several roles")
            for flag in ("--agent", "--tools", "--sandbox", "--prime-rl")
        ),
    ],
)
def test_what_cannot_be_is_refused_and_nothing_is_written(
    argv: list[str], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capsys
) -> None:
    monkeypatch.setattr("vf.environments.registry._registered", {"my-shop": vf.Environment})
    assert main(argv) == 2
    assert words in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("make", [Path.mkdir, Path.touch, lambda path: path.symlink_to("nowhere")])
def test_what_exists_is_left_alone(make: object, capsys: Capsys) -> None:
    assert callable(make)
    make(Path("word-count"))
    assert main(["word-count"]) == 2
    assert "word-count exists, and nothing is overwritten" in capsys.readouterr().err
    assert not Path("word-count", "pyproject.toml").exists()


def test_a_folder_that_cannot_be_written_is_a_failure(capsys: Capsys) -> None:
    Path("file").touch()
    Path("full").symlink_to("/proc")
    assert main(["word-count", "--into", "full"]) == 1
    assert capsys.readouterr().err.startswith("vf-rl init: ")

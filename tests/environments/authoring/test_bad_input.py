"""What an author may get wrong, and what the commands say to it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import vf
from vf.environments import registry
from vf.environments.environment import Split
from vf.evaluation.commands.eval import main as vf_eval
from vf.trainer.commands.main import main as vf_rl

Command = Callable[[str], int]


@pytest.fixture(autouse=True)
def _apart(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(registry, "_registered", {})
    monkeypatch.chdir(tmp_path)


def evaluate(id: str) -> int:
    return vf_eval([id, "-m", "tiny", "-n", "2"])


def validate(id: str) -> int:
    return vf_eval(["--validate", id])


def train(id: str) -> int:
    Path("run.toml").write_text(
        f'model = "tiny"\n[env]\nid = "{id}"\n'
        "[trainer.args]\nmax_seq_len = 900\nmax_prompt_len = 500\n"
    )
    return vf_rl(["run.toml", "--dry-run"])


@pytest.fixture(params=[evaluate, validate, train])
def command(request: pytest.FixtureRequest) -> Command:
    """A command that makes an environment."""
    if request.param is train:
        pytest.importorskip("torch")
    found: Command = request.param
    return found


def of(tasks: Callable[[], Any]) -> type[vf.Environment]:
    """Return an environment with these tasks in both splits."""

    class Made(vf.Environment):
        def tasks(self, split: Split) -> Any:
            return tasks()

    return Made


def broken_rows() -> Any:
    yield vf.Task("a", "A?")
    raise ZeroDivisionError("of the author's")


def two(id: object) -> list[vf.Task]:
    anything: Any = id
    return [vf.Task("a", "A?"), vf.Task(anything, "B?")]


def not_a_task() -> list[Any]:
    return [{"id": "a", "prompt": "A?"}]


def no_prompt() -> list[vf.Task]:
    nothing: Any = None
    return [vf.Task("a", nothing)]


def forgotten() -> list[vf.Task]:
    make: Any = vf.Task
    return [make(prompt="A?")]


@pytest.mark.parametrize(
    ("tasks", "said"),
    [
        (lambda: two(""), "task number 2 has no id, but '' (its prompt: B?). Give it a text"),
        (lambda: two(None), "task number 2 has no id, but None (its prompt: B?)"),
        (lambda: two(7), "task number 2 has no id, but 7 (its prompt: B?)"),
        (lambda: two("a"), "tasks have the id 'a'; the second is number 2. Give each an id"),
        (not_a_task, "task number 1 is not a vf.Task, but dict: {'id': 'a', 'prompt': 'A?'}"),
        (no_prompt, "task number 1, 'a': its prompt must be text or a list of chat messages"),
        (forgotten, "missing 1 required positional argument: 'id'"),
        (broken_rows, "ZeroDivisionError: of the author's"),
        (lambda: None, "gave NoneType; let it yield tasks, or return a list of them"),
        (list, "split has no tasks"),
    ],
)
def test_tasks_that_are_none_end_a_command_with_2(
    tasks: Callable[[], Any], said: str, command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    vf.register("shop", of(tasks))
    assert command("shop") == 2
    error = capsys.readouterr().err
    assert "shop: " in error
    assert said in error


def test_an_error_in_tasks_shows_the_authors_lines(
    command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    vf.register("shop", of(forgotten))
    assert command("shop") == 2
    error = capsys.readouterr().err
    assert f'File "{__file__}"' in error
    assert 'return [make(prompt="A?")]' in error
    assert error.count("File ") == error.count(f'File "{__file__}"')


def test_a_tool_without_types_is_named_with_its_place(
    command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    class Shop(vf.Environment):
        def tasks(self, split: Split) -> list[vf.Task]:
            return [vf.Task("a", "A?"), vf.Task("b", "B?")]

        @vf.tool
        def price(self, item):  # type: ignore[no-untyped-def]
            """Look up a price."""

    vf.register("shop", Shop)
    assert command("shop") == 2
    error = capsys.readouterr().err
    assert f"tool 'price' ({__file__}, line " in error
    assert "parameter 'item' has no type; write it as `item: str`" in error


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("author_code:Shop", "importing it failed"),
        ("nowhere_to_be_found:Shop", "there is no module 'nowhere_to_be_found'"),
        ("vf.environments.bundled.calculator", "must be of the form 'module:name'"),
    ],
)
def test_what_cannot_be_imported_ends_a_command_with_2(
    target: str,
    said: str,
    command: Command,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "author_code.py").write_text("VALUE = {}['missing']\n")
    monkeypatch.syspath_prepend(tmp_path)
    vf.register("shop", target)
    assert command("shop") == 2
    error = capsys.readouterr().err
    assert said in error
    assert "Traceback" not in error

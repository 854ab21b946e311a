"""`vf-rl --tmux`, on a tmux server that only the test knows."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.trainer.conftest import small_run
from tests.waiting import wait_until
from vf.trainer.commands.main import main
from vf.trainer.processes import tmux
from vf.trainer.run.run_folder import RunFolder

pytestmark = pytest.mark.slow


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return small_run(tmp_path / "my run.toml", max_steps=1, eval_strategy="no")


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Give the test a server of its own, by the folder of its socket."""
    monkeypatch.delenv("TMUX", raising=False)
    with tempfile.TemporaryDirectory(prefix="vf-") as folder:  # a socket's path must be short
        monkeypatch.setenv("TMUX_TMPDIR", folder)
        yield
        subprocess.run(["tmux", "kill-server"], capture_output=True, check=False)


def ask(*command: str) -> str:
    done = subprocess.run(["tmux", *command], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def panes(session: str) -> dict[str, str]:
    """Return the panes' ids by their titles."""
    lines = ask("list-panes", "-t", f"={session}:", "-F", "#{pane_title} #{pane_id}").splitlines()
    return dict(line.rsplit(" ", 1) for line in lines)


def seen(pane: str) -> str:
    return ask("capture-pane", "-p", "-J", "-S", "-200", "-t", pane)


def shows(pane: str) -> Callable[[str], bool]:
    return lambda text: text in seen(pane)


@pytest.mark.tmux
def test_a_run_has_panes_for_trainer_and_logs_and_its_session_stays(
    config: Path, server: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(config), "--tmux", "--set", "max_steps=1"]) == 0
    assert "tmux attach -t my-run-1" in capsys.readouterr().out
    found = panes("my-run-1")
    assert sorted(found) == ["environment", "inference", "trainer"]
    # Each pane says what it waits for, until the run has made its folder.
    waited = config.parent / "runs" / "my-run-1" / "logs" / "environment.log"
    wait_until(lambda: shows(found["environment"])(f"Waiting for {waited}"))
    trainer = shows(found["trainer"])
    wait_until(lambda: trainer("The run ended with exit code 0"), 120.0)
    assert trainer("tmux kill-session -t my-run-1")
    run = config.parent / "runs" / "my-run-1"
    assert (run / "metrics.jsonl").is_file()
    wait_until(lambda: shows(found["inference"])("requests at once"))
    with (run / "logs" / "environment.log").open("a") as log:
        log.write("task 7 failed\n")
    wait_until(lambda: shows(found["environment"])("task 7 failed"))
    assert not any(shows(found[name])("tail:") for name in ("inference", "environment"))


@pytest.mark.tmux
def test_killing_the_trainers_pane_ends_the_run(config: Path, server: None) -> None:
    assert main([str(config), "--tmux", "--set", "max_steps=100000"]) == 0
    pane = panes("my-run-1")["trainer"]
    metrics = config.parent / "runs" / "my-run-1" / "metrics.jsonl"
    wait_until(metrics.exists, 120.0)
    shell = ask("display-message", "-p", "-t", pane, "#{pane_pid}")
    run = int(Path(f"/proc/{shell}/task/{shell}/children").read_text())
    ask("kill-pane", "-t", pane)
    wait_until(lambda: not Path(f"/proc/{run}").exists())
    assert sorted(panes("my-run-1")) == ["environment", "inference"]


@pytest.mark.tmux
def test_a_wrong_config_opens_nothing(
    config: Path, server: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(config), "--tmux", "--set", "max_prompt_len=100"]) == 2
    assert "max_prompt_len = 100, but the first prompt" in capsys.readouterr().err
    with pytest.raises(subprocess.CalledProcessError):
        ask("list-sessions")


@pytest.mark.tmux
def test_a_session_that_is_there_is_left_alone(
    tmp_path: Path, server: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask("new-session", "-d", "-s", "mine", "sleep", "1000")
    ask("new-session", "-d", "-s", "mine-2", "sleep", "1000")
    before = ask("list-panes", "-a", "-F", "#{session_name} #{pane_pid}")
    # The server is older than this variable, and knows nothing of it.
    monkeypatch.setenv("VF_TEST_SECRET", "two\n'lines'; $HOME;")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    code = "import os, sys; print(os.environ['VF_TEST_SECRET'], sys.argv[1:]); sys.exit(1)"
    command = [sys.executable, "-c", code, "one argument;", "$two"]
    session = tmux.open_session(RunFolder(tmp_path / "mine"), command)
    assert session == "mine-3"
    after = ask("list-panes", "-a", "-F", "#{session_name} #{pane_pid}").splitlines()
    assert set(before.splitlines()) <= set(after)
    pane = panes(session)["trainer"]
    wait_until(lambda: "exit code 1" in seen(pane))
    assert "two\n'lines'; $HOME; ['one argument;', '$two']" in seen(pane)
    assert not list(tmp_path.glob("vf-rl-*.sh"))


def test_without_tmux_the_error_says_what_to_do(
    config: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(config.parent))
    assert main([str(config), "--tmux"]) == 2
    assert "tmux is not installed; install it (`apt install tmux`" in capsys.readouterr().err
    assert not (config.parent / "runs").exists()


@pytest.mark.parametrize("inside", [False, True])
def test_how_to_see_the_run_is_reported(
    inside: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TMUX", "/tmp/socket,1,0" if inside else "")
    assert tmux.attach("my-run-1") == 0
    how = "switch-client" if inside else "attach"
    assert f"tmux {how} -t my-run-1" in capsys.readouterr().out


def test_tmux_goes_with_neither_dry_run_nor_a_launcher(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SystemExit):
        main([str(config), "--tmux", "--dry-run"])
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert main([str(config), "--tmux"]) == 2

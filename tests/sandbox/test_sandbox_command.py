"""``vf-rl sandbox`` as a user types it."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys

import pytest

from tests.waiting import wait_until
from vf.sandbox.commands.sandbox import main
from vf.sandbox.container.docker_engine import Engine
from vf.sandbox.container.docker_sandbox import DockerSandbox
from vf.sandbox.container.hardening import DEFAULT_IMAGE, Profile
from vf.sandbox.container.reaper import Owner, this_host
from vf.sandbox.contract import Limits

COMMANDS = ("ps", "reap", "build", "doctor")


def vf_sandbox(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "vf.trainer.commands.main", "sandbox", *words],
        env=os.environ | env,
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.parametrize("name", [*COMMANDS, "self-check"])
def test_help_has_examples_of_every_command(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    for words, example in (
        ([], f"vf-rl sandbox {name}"),
        ([name], f"examples:\n  vf-rl sandbox {name}"),
    ):
        with pytest.raises(SystemExit, match="0"):
            main([*words, "--help"])
        assert example in capsys.readouterr().out


@pytest.mark.parametrize("words", [[], ["pss"], ["ps", "--nonsense"]])
def test_a_wrong_command_is_a_usage_error(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(words)
    assert "usage: vf-rl sandbox" in capsys.readouterr().err


@pytest.mark.parametrize("name", COMMANDS)
def test_without_an_engine_one_line_says_what_to_do(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere")
    assert main([name, *(["--backend", "docker"] if name == "doctor" else [])]) == 2
    (line,) = "".join(capsys.readouterr()).strip().splitlines()
    assert "no container engine answers at unix:///nowhere" in line
    assert "apt-get install docker.io" in line


def test_ps_shows_the_living_and_reap_leaves_them(engine: Engine) -> None:
    profile = Profile(limits=Limits(lifetime=300))

    async def run() -> None:
        async with await DockerSandbox.create(engine, profile) as sandbox:
            told = await asyncio.to_thread(vf_sandbox, "ps")
            assert told.returncode == 0
            assert told.stdout.startswith("NAME")
            (line,) = (line for line in told.stdout.splitlines() if sandbox.name in line)
            assert "running" in line
            assert str(os.getpid()) in line
            assert "alive" in line
            assert (await asyncio.to_thread(vf_sandbox, "reap")).returncode == 0
            assert (await sandbox.python("1 + 1")).stdout == "2\n"

    asyncio.run(run())


def test_reap_names_what_it_removes(engine: Engine) -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    labels = Owner("gone", this_host(), gone.pid, "1").labels(3600)
    name = f"vf-test-gone-{os.getpid()}"

    def reaped() -> bool:
        engine.call_now(
            "create_container", DEFAULT_IMAGE, command=["sleep", "9"], labels=labels, name=name
        )
        told = vf_sandbox("reap")
        assert told.returncode == 0
        assert told.stdout.startswith("removed ")
        assert name not in vf_sandbox("ps").stdout
        return f"removed container {name}: its process {gone.pid} is gone" in told.stderr

    # Whatever else starts to use the engine removes what the dead left, too, and may come first.
    wait_until(reaped)


def test_doctor_tries_it_out(engine: Engine) -> None:
    told = vf_sandbox("doctor")
    assert told.returncode == 0, told
    assert "6 * 7 = 42" in told.stdout
    assert "MISSING" not in told.stdout


def test_doctor_says_all_that_is_missing(engine: Engine) -> None:
    told = vf_sandbox("doctor", "--image", "no-such-image", "--runtime", "no-such-runtime")
    assert told.returncode == 2
    missing = [line for line in told.stdout.splitlines() if line.startswith("MISSING")]
    assert len(missing) == 2
    assert "docker pull no-such-image" in told.stdout
    assert "daemon.json" in told.stdout
    assert "Traceback" not in told.stderr


def test_build_says_what_it_made(scratch: Engine) -> None:
    try:
        told = vf_sandbox("build", "--base", DEFAULT_IMAGE, "--tag", "vf-test-cli:1")
        assert (told.returncode, told.stdout) == (0, "vf-test-cli:1\n"), told
        again = vf_sandbox("build", "--base", DEFAULT_IMAGE, "--tag", "vf-test-cli:1")
        assert "is there" in again.stderr
    finally:
        scratch.call_now("remove_image", "vf-test-cli:1", force=True)


def test_build_explains_what_it_cannot_make(engine: Engine) -> None:
    told = vf_sandbox("build", "--base", "127.0.0.1:1/none", "--tag", "vf-test-cli:2")
    assert told.returncode == 2
    assert "cannot be fetched" in told.stderr
    assert "Traceback" not in told.stderr

"""Engines are reached by Unix sockets, TLS and ssh, and their streams hold over each."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.parts import require
from tests.sandbox.second_engine import (
    SecondEngine,
    make_certificates,
    ssh_server,
)
from tests.waiting import wait_until
from vf.runtime.errors import SandboxError
from vf.sandbox.container.address import Address
from vf.sandbox.container.docker_engine import (
    Engine,
    EngineMissing,
    EngineProblem,
    EngineRefused,
)
from vf.sandbox.container.docker_sandbox import DockerSandbox
from vf.sandbox.container.hardening import Profile
from vf.sandbox.container.reaper import find


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An authority's, an engine's and a client's."""
    folder = tmp_path_factory.mktemp("certificates")
    make_certificates(folder)
    return folder


@pytest.fixture(scope="module")
def second(containers: None, certificates: Path) -> Iterator[SecondEngine]:
    """An engine that speaks TLS, too."""
    require("dockerd")
    found = SecondEngine(certs=certificates)
    try:
        found.load()
        yield found
    finally:
        found.close()


@pytest.fixture
def by_ssh(
    second: SecondEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Address]:
    """The engine's address by ssh."""
    with ssh_server(tmp_path) as (port, _):
        monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
        yield Address(f"ssh://root@127.0.0.1:{port}{second.socket}")


async def use(engine: Engine, profile: Profile) -> None:
    """Make sandboxes, send megabytes both ways, and see them gone."""
    data = os.urandom(2**20) * 3
    async with (
        await DockerSandbox.create(engine, profile) as one,
        await DockerSandbox.create(engine, profile) as other,
    ):
        await asyncio.gather(one.write_file("data", data), other.write_file("data", data))
        assert await one.read_file("data") == await other.read_file("data") == data
        assert (await one.python("6 * 7")).stdout == "42\n"
        assert engine.live == {one.name, other.name}
    assert engine.live == set()
    assert not {one.name, other.name} & {item.name for item in await find(engine)}
    with pytest.raises(EngineRefused, match="no-such-container") as refused:
        await engine.attach("no-such-container")
    assert refused.value.status == 404


def test_by_tls(second: SecondEngine, certificates: Path, profile: Profile) -> None:
    for url in (f"tcp://127.0.0.1:{second.port}", f"https://localhost:{second.port}"):
        with contextlib.closing(Engine.connect(Address(url, certificates))) as engine:
            asyncio.run(use(engine, profile))


def test_by_tls_from_the_environment(
    second: SecondEngine, certificates: Path, profile: Profile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"tcp://127.0.0.1:{second.port}")
    monkeypatch.setenv("DOCKER_CERT_PATH", str(certificates))
    monkeypatch.setenv("DOCKER_TLS_VERIFY", "1")
    with contextlib.closing(Engine.connect()) as engine:
        assert engine.address.encrypted
        assert asyncio.run(engine.answers())


def test_an_engine_that_nobody_vouches_for_is_refused(
    second: SecondEngine, certificates: Path, tmp_path: Path
) -> None:
    make_certificates(tmp_path)  # another authority
    for certs in (tmp_path, None):
        with pytest.raises(EngineProblem, match="certificate"):
            Engine.connect(Address(f"https://127.0.0.1:{second.port}", certs))
    (certificates / "cert.pem").rename(certificates / "hidden")
    try:
        with pytest.raises(EngineProblem, match=r"it has ca\.pem, key\.pem"):
            Engine.connect(Address(f"tcp://127.0.0.1:{second.port}", certificates))
    finally:
        (certificates / "hidden").rename(certificates / "cert.pem")


def test_by_ssh(by_ssh: Address, profile: Profile) -> None:
    with contextlib.closing(Engine.connect(by_ssh)) as engine:
        asyncio.run(use(engine, profile))


def test_a_lost_tunnel_is_no_ones_result_and_is_made_again(
    by_ssh: Address, profile: Profile
) -> None:
    async def run(engine: Engine) -> None:
        sandbox = await DockerSandbox.create(engine, profile)
        work = asyncio.create_task(sandbox.exec("sleep 100", timeout=100))
        assert (await sandbox.exec("true")).ok
        assert engine._tunnel is not None
        assert engine._tunnel._process is not None
        engine._tunnel._process.kill()
        with pytest.raises(SandboxError):
            await work
        assert await engine.answers(timeout=60)
        await use(engine, profile)
        with contextlib.suppress(SandboxError):
            await sandbox.close()

    with contextlib.closing(Engine.connect(by_ssh)) as engine:
        asyncio.run(run(engine))


def test_a_tunnel_that_is_not_gone_yet_is_made_again(
    by_ssh: Address, monkeypatch: pytest.MonkeyPatch
) -> None:
    with contextlib.closing(Engine.connect(by_ssh)) as engine:
        assert engine._tunnel is not None
        process = engine._tunnel._process
        assert process is not None
        process.kill()
        wait, looked = process.wait, []

        def first_still_there(timeout: float | None = None) -> int:
            looked.append(timeout)
            if len(looked) == 1:
                raise subprocess.TimeoutExpired("ssh", 0)
            return wait(timeout)

        monkeypatch.setattr(process, "wait", first_still_there)
        assert asyncio.run(engine.answers(timeout=60))
        assert engine._tunnel._process is not process


def test_ssh_ends_with_its_process_however_that_ends(by_ssh: Address) -> None:
    code = (
        "import time; from vf.sandbox.container.docker_engine import Engine\n"
        "from vf.sandbox.container.address import Address\n"
        f"engine = Engine.connect(Address({by_ssh.url!r}))\n"
        "print(engine._tunnel._process.pid, flush=True); time.sleep(1000)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as client:
        assert client.stdout is not None
        pid = int(client.stdout.readline())
        os.kill(client.pid, signal.SIGKILL)
    wait_until(lambda: not Path(f"/proc/{pid}").exists())


def test_what_ssh_says_is_passed_on(by_ssh: Address) -> None:
    wrong = Address(by_ssh.url.replace("root@", "nosuchuser@"))
    with pytest.raises(EngineMissing, match=r"nosuchuser@.*Permission denied"):
        Engine.connect(wrong)


@pytest.mark.parametrize(
    "url",
    [
        "no address at all",
        "docker.sock",
        "unix://",
        "tcp://somewhere",
        "tcp://somewhere:port",
        "ssh://-oProxyCommand=x",
        "npipe:////./pipe/docker_engine",
    ],
)
def test_what_is_no_address_is_named(url: str) -> None:
    with pytest.raises(ValueError, match=url[:4]):
        Address(url)

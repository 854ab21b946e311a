"""Several engines: shortest queue, one that dies while it is used, and one that comes back."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

import vf
from tests.parts import require
from tests.sandbox.second_engine import SecondEngine
from tests.waiting import until
from vf.runtime.errors import ConfigError, HostLost
from vf.sandbox.container.address import Address
from vf.sandbox.container.docker_engine import Engine, EngineMissing
from vf.sandbox.container.docker_sandbox import DockerSandbox
from vf.sandbox.container.ending import ended_from_outside
from vf.sandbox.container.image import inspected
from vf.sandbox.container.reaper import find
from vf.sandbox.hosting.docker_source import DockerSource
from vf.sandbox.hosting.source import sandbox_source
from vf.sandbox.spec import SandboxSpec

SMALL = {"memory": 192 * 2**20, "workspace": 32 * 2**20, "tmp": 16 * 2**20, "lifetime": 300}
NOWHERE = "unix:///nowhere/docker.sock"


@pytest.fixture(scope="module")
def second(containers: None) -> Iterator[SecondEngine]:
    """An engine without any image."""
    require("dockerd")
    found = SecondEngine()
    yield found
    found.close()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look at engines often."""
    monkeypatch.setattr("vf.sandbox.hosting.host_connection.PING_INTERVAL", 0.2)
    monkeypatch.setattr("vf.sandbox.hosting.host_connection.SILENCE", 0.5)
    monkeypatch.setattr("vf.sandbox.hosting.hosts.FIRST_DELAY", 0.1)


def source_of(*hosts: Any, **settings: Any) -> DockerSource:
    """Return a source on the machine's own engine and others."""
    own = Address.from_environment().url
    made = sandbox_source({"hosts": [own, *hosts], "pool": 1, **SMALL, **settings})
    assert isinstance(made, DockerSource)
    return made


async def on(stack: AsyncExitStack, source: DockerSource, count: int) -> list[DockerSandbox]:
    """Open sandboxes at once."""
    opened = [stack.enter_async_context(source.open()) for _ in range(count)]
    found = await asyncio.gather(*opened)
    assert all(isinstance(sandbox, DockerSandbox) for sandbox in found)
    return found  # type: ignore[return-value]


def where(sandboxes: list[DockerSandbox]) -> Counter[str]:
    """Count the sandboxes of each engine."""
    return Counter(str(sandbox._engine.address) for sandbox in sandboxes)


@pytest.mark.slow
def test_the_shortest_queue_is_first_and_a_missing_image_is_copied(second: SecondEngine) -> None:
    async def run() -> None:
        source = source_of(second.address.url)
        await source.check()  # one of them has the image
        await source.start()
        async with AsyncExitStack() as stack:
            await on(stack, source, 1)
            hosts = await source._all()
            await until(lambda: len(hosts.hosts) == 2)
            sandboxes = await on(stack, source, 5)
            assert where(sandboxes)[second.address.url] == 3  # and the first had one already
            said = await asyncio.gather(*(sandbox.exec("echo it runs") for sandbox in sandboxes))
            assert {result.stdout for result in said} == {"it runs\n"}
            assert len(source.stats()) == 2

    asyncio.run(run())
    with contextlib.closing(second.connect()) as engine:
        assert asyncio.run(find(engine)) == []


@pytest.mark.slow
def test_a_host_at_its_bound_comes_after_one_with_room(second: SecondEngine) -> None:
    async def run() -> None:
        source = source_of(second.address.url, max_containers=2)
        async with AsyncExitStack() as stack:
            await on(stack, source, 1)
            hosts = await source._all()
            await until(lambda: len(hosts.hosts) == 2)
            there = next(
                connection
                for connection in hosts._connections.values()
                if connection.host.engine.address == second.address
            )
            there.cores *= 100  # so that nothing else speaks for the other one
            assert where(await on(stack, source, 3))[second.address.url] == 2

    asyncio.run(run())


@pytest.mark.slow
def test_an_engine_that_dies_while_used_is_left_out_and_comes_back(
    second: SecondEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A lost sandbox is reason enough.
    monkeypatch.setattr("vf.sandbox.hosting.host_connection.PING_INTERVAL", 600.0)

    async def use(sandbox: DockerSandbox) -> str:
        """Use it until it is lost; return the error's text."""
        try:
            while True:
                assert (await sandbox.exec("echo right")).stdout == "right\n"
        except HostLost as error:
            return str(error)

    async def run() -> None:
        source = source_of(second.address.url)
        async with AsyncExitStack() as stack:
            sandboxes = await on(stack, source, 4)
            there = [s for s in sandboxes if s._engine.address == second.address]
            here = [s for s in sandboxes if s not in there]
            assert len(there) == 2
            users = [asyncio.create_task(use(sandbox)) for sandbox in there]
            await asyncio.to_thread(second.kill)
            async with asyncio.timeout(60):
                said = await asyncio.gather(*users)
            assert all(said)
            assert not any(sandbox.alive for sandbox in there)
            # The other one takes all, and lost nothing.
            assert where(await on(stack, source, 4)).keys() == where(here).keys()
            assert [(await sandbox.exec("echo right")).stdout for sandbox in here] == 2 * [
                "right\n"
            ]

            await asyncio.to_thread(second.start)
            hosts = await source._all()
            await until(lambda: len(hosts.hosts) == 2)
            again = await on(stack, source, 2)
            assert where(again) == {second.address.url: 2}
            assert (await again[0].exec("echo right")).stdout == "right\n"

    asyncio.run(run())
    with contextlib.closing(second.connect()) as engine:
        assert asyncio.run(find(engine)) == []


@pytest.mark.slow
def test_calls_on_an_engine_that_hangs_fail_though_they_have_hours_left(
    second: SecondEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(Engine.answers.__kwdefaults__ or {}, "timeout", 0.5)
    assert second.process is not None
    pid = second.process.pid

    async def run() -> None:
        source = source_of(second.address.url)
        async with AsyncExitStack() as stack:
            hosts = await source._all()
            await until(lambda: len(hosts.hosts) == 2)
            sandboxes = await on(stack, source, 2)
            (there,) = [s for s in sandboxes if s._engine.address == second.address]
            (here,) = [s for s in sandboxes if s is not there]
            calls = [asyncio.create_task(s.exec("sleep 3", timeout=7200)) for s in sandboxes]
            await asyncio.gather(there.exec("true"), here.exec("true"))
            os.kill(pid, signal.SIGSTOP)
            try:
                await asyncio.wait(calls, timeout=20)
                with pytest.raises(HostLost, match="does not answer"):
                    await calls[sandboxes.index(there)]
                assert (await calls[sandboxes.index(here)]).ok
            finally:
                os.kill(pid, signal.SIGCONT)

    asyncio.run(run())
    with contextlib.closing(second.connect()) as engine:
        assert asyncio.run(find(engine)) == []


@pytest.mark.slow
def test_what_ran_in_a_sandbox_is_not_blamed_by_an_engine_that_has_forgotten_it(
    second: SecondEngine,
) -> None:
    """A machine that is back before its client notices knows nothing of what it had."""
    second.load()

    async def use() -> str:
        async with vf.open_sandbox({"hosts": [second.address.url], **SMALL}) as sandbox:
            assert isinstance(sandbox, DockerSandbox)
            assert (await sandbox.exec("true")).ok
            assert await ended_from_outside(sandbox._engine, sandbox.name, cut=False) is None
            await asyncio.to_thread(second.kill)
            await asyncio.to_thread(second.start)
            with contextlib.closing(second.connect()) as engine:
                await ended_from_outside(engine, sandbox.name, cut=True)
        return sandbox.name

    with pytest.raises(HostLost, match="started again since"):
        asyncio.run(use())


WORKER = """
import asyncio, sys
from contextlib import AsyncExitStack
from vf.runtime.share import take_share
from vf.sandbox.hosting.source import sandbox_source

async def one(source, number):
    async with source.open() as sandbox:
        print(sandbox._engine.address.url, flush=True)
        assert (await sandbox.exec("sleep 0.3; echo it runs")).stdout == "it runs\\n"

async def run(settings, count):
    source = sandbox_source(settings)
    await source.start()
    await asyncio.gather(*(one(source, number) for number in range(count)))

take_share(int(sys.argv[1]), 2)
asyncio.run(run(eval(sys.argv[2]), int(sys.argv[3])))
"""


def workers(count: int, **settings: Any) -> list[subprocess.Popen[str]]:
    """Start two worker processes with so many episodes each."""
    given = repr({"pool": 1, **SMALL, **settings})
    commands = [[sys.executable, "-c", WORKER, str(n), given, str(count)] for n in range(2)]
    return [subprocess.Popen(each, stdout=subprocess.PIPE, text=True) for each in commands]


@pytest.mark.slow
def test_worker_processes_together_keep_to_the_bound(engine: Engine) -> None:
    started = workers(5, max_containers=3)
    pids = {str(each.pid) for each in started}
    most = 0

    async def watch() -> None:
        nonlocal most
        while any(each.poll() is None for each in started):
            most = max(most, len([item for item in await find(engine) if item.pid in pids]))
            await asyncio.sleep(0.02)

    asyncio.run(watch())
    said = [each.communicate()[0].splitlines() for each in started]
    assert [each.returncode for each in started] == [0, 0]
    assert [len(lines) for lines in said] == [5, 5]
    assert 2 <= most <= 3
    assert not [item for item in asyncio.run(find(engine)) if item.pid in pids]


@pytest.mark.slow
def test_workers_begin_with_different_hosts(second: SecondEngine) -> None:
    second.load()
    both = [Address.from_environment().url, second.address.url]
    said = [each.communicate()[0].split() for each in workers(1, hosts=both)]
    assert said == [[both[0]], [both[1]]]


def test_one_that_is_not_there_yet_comes_later(second: SecondEngine, tmp_path: Path) -> None:
    async def run() -> None:
        link = tmp_path / "engine.sock"
        source = source_of(f"unix://{link}")
        await source.check()
        async with source.open():
            hosts = await source._all()
            assert len(hosts.hosts) == 1
            link.symlink_to(second.socket)
            await until(lambda: len(hosts.hosts) == 2)

    asyncio.run(run())


@pytest.mark.slow
def test_a_snapshot_starts_on_every_host(second: SecondEngine, engine: Engine) -> None:
    """What one engine has is copied to the one that makes the sandbox."""
    tag = f"vf-test-hosts-{os.getpid()}:1"
    engine.call_now("tag", "vf-sandbox:latest", *tag.split(":"))

    async def run() -> None:
        source = source_of(second.address.url, pull="never")
        async with AsyncExitStack() as stack:
            hosts = await source._all()
            await until(lambda: len(hosts.hosts) == 2)
            both = {Address.from_environment().url, second.address.url}
            spec = SandboxSpec(image=tag)
            opened = [stack.enter_async_context(source.open(spec)) for _ in range(2)]
            sandboxes = await asyncio.gather(*opened)
            assert {sandbox._engine.address.url for sandbox in sandboxes} == both  # type: ignore

    try:
        asyncio.run(run())
        with contextlib.closing(second.connect()) as other:
            assert inspected(other, tag) is not None
    finally:
        engine.call_now("remove_image", tag)


def test_without_any_engine_a_run_does_not_begin() -> None:
    source = sandbox_source({"hosts": [NOWHERE, "tcp://127.0.0.1:1"]})
    with pytest.raises(EngineMissing, match="nowhere"):
        asyncio.run(source.check())

    async def run() -> None:
        async with source.open():
            pass

    with pytest.raises(EngineMissing, match="nowhere"):
        asyncio.run(run())


def test_one_sandbox_is_opened_where_an_engine_answers(engine: Engine) -> None:
    async def run() -> str:
        hosts = [NOWHERE, Address.from_environment().url]
        async with vf.open_sandbox({"hosts": hosts, **SMALL}) as sandbox:
            return (await sandbox.exec("echo it runs")).stdout

    assert asyncio.run(run()) == "it runs\n"


@pytest.mark.parametrize(
    ("hosts", "said"),
    [
        ([], "sandbox.hosts must be a list of addresses, got \\[\\]"),
        ("unix:///x", "sandbox.hosts must be a list"),
        ([1], r"sandbox.hosts\[0\] must be an address"),
        (["unix:///x", "x"], r"sandbox.hosts\[1\]: 'x' is no address of an engine"),
        (["unix:///x", "unix:///x"], r"sandbox.hosts\[1\] is there twice"),
        ([{"url": "tcp://x:1", "cert": "y"}], "no setting 'cert'. Did you mean 'certs'"),
        ([{"url": "ssh://x", "certs": "y"}], "takes no certificates"),
        ([{"url": "tcp://x:1", "certs": 1}], r"sandbox.hosts\[0\].certs must be text"),
    ],
)
def test_what_is_wrong_with_the_setting_is_named(hosts: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        sandbox_source({"hosts": hosts})

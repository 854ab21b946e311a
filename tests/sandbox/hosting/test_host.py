"""One engine's containers: a pool for each spec, within bounds for all of them together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from tests.sandbox.conftest import small_profile
from tests.sandbox.own_images import REPOSITORY, remove_images
from tests.waiting import until
from vf.runtime.errors import ConfigError, SandboxError
from vf.sandbox.bounds import Bounds
from vf.sandbox.container.docker_engine import Engine
from vf.sandbox.container.reaper import find, this_process
from vf.sandbox.contract import Limits
from vf.sandbox.hosting.host import Host
from vf.sandbox.hosting.spec_images import check_spec
from vf.sandbox.images.builds import ImageFailed, Images
from vf.sandbox.spec import Build, SandboxSpec, whole

PROFILE = small_profile()
A, B, C = (SandboxSpec(env={"WHICH": name}) for name in "ABC")


@asynccontextmanager
async def opened(engine: Engine, folder: Path, **bounds: object) -> AsyncIterator[Host]:
    """Open a host, and see that it leaves nothing."""
    images = Images(engine, folder=folder, repository=REPOSITORY)
    host = Host(engine, PROFILE, SandboxSpec(), Bounds(**bounds), images)  # type: ignore[arg-type]
    try:
        yield host
    finally:
        await host.close()
        assert not [item for item in await find(engine) if item.mine]


async def use(host: Host, spec: SandboxSpec | None) -> str:
    """Open a sandbox; return what it was made from."""
    async with host.open(spec) as sandbox:
        return (await sandbox.exec('echo "$WHICH"')).stdout.strip()


def sizes(host: Host) -> dict[str, int]:
    return {dict(spec.env).get("WHICH", ""): s.size for spec, s in host.stats().specs.items()}


def test_each_spec_has_a_pool_and_what_comes_often_is_ready(engine: Engine, tmp_path: Path) -> None:
    async def run() -> None:
        async with opened(engine, tmp_path, pool=2) as host:
            assert await use(host, A) == "A"
            assert sizes(host) == {"A": 0}  # once is not often
            await host.prefetch(A, 8)
            await host.filled(A)
            assert host.stats().containers.ready == 2
            assert await use(host, A) == "A"
            assert sizes(host) == {"A": 2}

    asyncio.run(run())


def test_what_comes_no_more_gives_way(engine: Engine, tmp_path: Path) -> None:
    async def run() -> None:
        async with opened(engine, tmp_path, pool=2) as host:
            await host.prefetch(A, 8)
            await host.filled(A)
            await host.prefetch(B, 4)
            assert sizes(host) == {"A": 1, "B": 1}
            await host.prefetch(B, 4)
            await host.filled(B)
            await until(lambda: sizes(host) == {"B": 2})  # the pool of A is gone with its last
            stats = host.stats().containers
            assert (stats.ready, stats.made) == (2, 4)

    asyncio.run(run())


def test_the_bound_holds_for_all_specs_and_what_is_ready_gives_way(
    engine: Engine, tmp_path: Path
) -> None:
    most = 0

    async def run() -> None:
        async with (
            opened(engine, tmp_path, pool=2, max_containers=3) as host,
            AsyncExitStack() as s,
        ):
            await host.prefetch(A, 8)
            await host.filled(A)
            for spec in (B, C):  # the second takes the place of one of A that nobody uses
                await s.enter_async_context(host.open(spec))
            waiting = asyncio.create_task(use(host, replace(B, user="root")))

            async def watch() -> None:
                nonlocal most
                while True:
                    listed = [item for item in await find(engine) if item.mine]
                    most = max(most, len(listed))

            watching = asyncio.create_task(watch())
            assert await waiting == "B"
            episodes = [use(host, (A, B, C)[n % 3]) for n in range(6)]
            done = asyncio.gather(*episodes)
            await until(lambda: host.stats().containers.waiting > 0)
            await s.aclose()
            assert await done == ["A", "B", "C"] * 2
            watching.cancel()
            await asyncio.wait([watching])

    asyncio.run(run())
    assert most <= 3


def test_who_asks_first_is_served_first_whatever_the_spec(engine: Engine, tmp_path: Path) -> None:
    served: list[str] = []

    async def run() -> None:
        async def episode(spec: SandboxSpec) -> None:
            async with host.open(spec):
                served.append(dict(spec.env)["WHICH"])

        def is_waiting(count: int) -> bool:
            return host.stats().containers.waiting == count

        async with opened(engine, tmp_path, pool=1, max_containers=1) as host:
            async with host.open(C):
                waiting = []
                for number, spec in enumerate([A, B, A, A, B]):
                    waiting.append(asyncio.create_task(episode(spec)))
                    await until(partial(is_waiting, number + 1))
            await asyncio.gather(*waiting)

    asyncio.run(run())
    assert served == ["A", "B", "A", "A", "B"]


def test_the_settings_own_pool_is_filled_at_the_start(engine: Engine, tmp_path: Path) -> None:
    async def run() -> None:
        async with opened(engine, tmp_path, pool=2) as host:
            host.start()
            await host.filled()
            assert host.stats().containers.ready == 2
            assert await use(host, None) == ""
            assert await use(host, SandboxSpec()) == ""
            assert len(host.stats().specs) == 1

    asyncio.run(run())


def test_an_image_that_is_removed_meanwhile_is_built_again(engine: Engine, tmp_path: Path) -> None:
    place = tmp_path / "task"
    place.mkdir()
    (place / "Dockerfile").write_text("FROM vf-sandbox:latest\nRUN echo it is there > /file\n")
    spec = SandboxSpec(build=Build(place))

    async def run() -> None:
        async with opened(engine, tmp_path / "images") as host:
            for _ in range(2):
                async with host.open(spec) as sandbox:
                    assert await sandbox.read_file("/file") == b"it is there\n"
                remove_images(engine)

    asyncio.run(run())


def test_an_image_that_cannot_be_had_is_the_failure_of_its_task_alone(
    engine: Engine, tmp_path: Path
) -> None:
    (tmp_path / "Dockerfile").write_text("FROM vf-sandbox:latest\nRUN false\n")
    volumes = tmp_path / "volumes"
    volumes.mkdir()
    (volumes / "Dockerfile").write_text("FROM vf-sandbox:latest\nVOLUME /data\n")

    async def run() -> None:
        async with opened(engine, tmp_path / "images") as host:
            with pytest.raises(ImageFailed, match=r"The whole log: /.*\.log"):
                await use(host, SandboxSpec(build=Build(tmp_path)))
            with pytest.raises(SandboxError, match="declares volumes"):
                await use(host, SandboxSpec(build=Build(volumes)))
            assert await use(host, A) == "A"
        remove_images(engine)

    asyncio.run(run())


@pytest.mark.slow
def test_side_services_and_a_way_out_are_ready_with_their_sandbox(
    engine: Engine, tmp_path: Path
) -> None:
    (tmp_path / "compose.yaml").write_text(
        "services:\n"
        "  main: {image: vf-sandbox:latest}\n"
        "  web:\n"
        "    image: vf-sandbox:latest\n"
        '    command: ["python3", "-m", "http.server", "80"]\n'
    )
    spec = SandboxSpec(compose=tmp_path / "compose.yaml", allow=("127.0.0.1",))
    fetch = "import urllib.request as r; print(r.urlopen('http://{}').status)"

    async def run() -> None:
        async with opened(engine, tmp_path / "images", pool=1) as host:
            await host.prefetch(spec, 4)
            await host.filled(spec)
            server = await asyncio.start_server(_answer, "127.0.0.1", 0)
            _, port = server.sockets[0].getsockname()
            outside = f"127.0.0.1:{port}"
            async with host.open(spec) as sandbox:
                by_proxy = fetch.replace("r; ", "r; import os; os.environ['no_proxy'] = ''; ")
                for code in (fetch.format("web"), by_proxy.format(outside)):
                    result = await sandbox.exec(["python3", "-c", code])
                    assert result.stdout == "200\n", result.stderr
                refused = await sandbox.exec(["python3", "-c", by_proxy.format("127.0.0.2:1")])
                assert "403" in refused.stderr
            server.close()
            # One that nobody took is ready again, with services of its own.
            await host.filled(spec)
        assert not engine.call_now(
            "networks", filters={"label": f"vf.sandbox.run={this_process().run}"}
        )

    asyncio.run(run())


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.0 200 OK\r\n\r\n")
    writer.close()


def test_a_tasks_spec_stands_on_the_settings() -> None:
    own = SandboxSpec(build=Build(Path("a")), env={"A": "1", "B": "1"}, user="root")
    assert whole(None, own) is own
    assert whole(SandboxSpec(), own) == own
    image = whole(SandboxSpec(image="i", env={"B": "2"}), own)
    assert (image.image, image.build, image.user) == ("i", None, "root")
    assert dict(image.env) == {"A": "1", "B": "2"}
    compose = SandboxSpec(compose=Path("c"), compose_main="web", allow=("a",))
    assert whole(SandboxSpec(user="x"), compose) == replace(compose, user="x")
    assert whole(SandboxSpec(image="i"), compose) == SandboxSpec(image="i", allow=("a",))
    assert whole(SandboxSpec(compose=Path("d")), compose).compose_main == "main"


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        (SandboxSpec(build=Build(Path("/none"))), "sandbox_spec.build.folder: there is no folder"),
        (SandboxSpec(compose=Path("/none")), "sandbox_spec.compose: /none cannot be read"),
        (SandboxSpec(allow=("a b",)), "sandbox_spec.allow: 'a b' is no host"),
        (SandboxSpec(workdir="app"), "sandbox_spec: workdir must be an absolute path"),
        (SandboxSpec(limits=Limits(pids=1)), "sandbox_spec: pids must be at least"),
    ],
)
def test_a_spec_that_cannot_be_made_is_refused(spec: SandboxSpec, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        check_spec(spec, PROFILE)

"""Images are built once however many ask, within bounds, and failures name the log."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.sandbox.own_images import REPOSITORY
from tests.waiting import Clock, until
from vf.runtime.errors import SandboxError
from vf.sandbox.container.docker_engine import Engine
from vf.sandbox.images.builds import ImageFailed, Images
from vf.sandbox.images.long_call import Refused, long_call
from vf.sandbox.spec import Build

Make = Callable[..., Images]
Folder = Callable[..., Path]
SLEEP = f"sleep 600.{os.getpid()}"  # other processes of the tests have their own


def there(engine: Engine, name: str) -> bool:
    return bool(engine.call_now("images", name=name))


def test_an_image_is_built_once_however_many_ask(make_images: Make, folder: Folder) -> None:
    place = folder("one", "RUN date +%s%N > /when")
    again = folder("same", "RUN date +%s%N > /when")

    async def run() -> None:
        images, others = make_images(), make_images()  # as of another process
        names = await asyncio.gather(
            *(images.image(Build(place)) for _ in range(5)),
            *(others.image(Build(each)) for each in (place, again)),
        )
        assert len(set(names)) == 1
        assert images.stats().built + others.stats().built == 1
        assert await make_images().image(Build(again)) == names[0]

    asyncio.run(run())


def test_a_build_is_repeated_if_the_engine_lost_an_image_of_its_cache(
    make_images: Make, folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, lost = folder("one", "RUN true"), [1, 2]

    async def call(*args: Any, **kwargs: Any) -> None:
        if lost:
            raise Refused(f'unable to find image "sha256:{lost.pop()}"')
        await long_call(*args, **kwargs)

    monkeypatch.setattr("vf.sandbox.images.builds.long_call", call)
    assert asyncio.run(make_images().image(Build(place)))
    assert not lost


def test_another_base_is_another_image(make_images: Make, folder: Folder, engine: Engine) -> None:
    place = folder("one", "RUN true")
    base, other = folder("base", "RUN echo 1 > /base"), folder("other", "RUN echo 2 > /base")

    async def run() -> None:
        images = make_images()
        (place / "Dockerfile").write_text(f"FROM {REPOSITORY}:base\nRUN true\n")
        found = set()
        for start in (base, other):
            name = await images.image(Build(start))
            engine.call_now("tag", name, REPOSITORY, "base")
            found.add(await make_images().image(Build(place)))
        assert len(found) == 2

    asyncio.run(run())


def test_only_so_many_are_built_at_a_time(make_images: Make, folder: Folder) -> None:
    places = [folder(f"f{n}", f"RUN sleep 0.3; echo {n}") for n in range(4)]
    most = 0

    async def run() -> None:
        images = make_images(at_once=2)
        work = asyncio.gather(*(images.image(Build(place)) for place in places))
        nonlocal most
        while not work.done():
            most = max(most, len(images.stats().busy))
            await asyncio.wait([work], timeout=0.02)
        assert len(set(await work)) == 4
        stats = images.stats()
        assert (stats.ready, stats.failed, stats.built, stats.busy) == (5, 0, 4, ())

    asyncio.run(run())
    assert most == 2


def test_a_failure_names_its_log_and_ends_with_its_last_lines(
    make_images: Make, folder: Folder
) -> None:
    place = folder("bad", "RUN seq 1000 && echo why it failed && false")

    async def run() -> ImageFailed:
        images = make_images()
        with pytest.raises(ImageFailed) as raised:
            await images.image(Build(place))
        assert raised.value.log is not None
        assert "\n500\n" in raised.value.log.read_text()
        raised.value.log.write_text("remembered")
        with pytest.raises(ImageFailed):
            await images.image(Build(place))
        assert raised.value.log.read_text() == "remembered", "it was built again"
        assert images.stats().failed == 1
        return raised.value

    error = asyncio.run(run())
    said = str(error)
    assert str(place) in said
    assert "returned a non-zero code: 1" in said
    assert "\n  why it failed\n" in said
    assert "\n  500\n" not in said
    assert said.endswith(f"The whole log: {error.log}")


def test_a_build_ends_with_its_time(
    make_images: Make, folder: Folder, engine: Engine, clock: Clock
) -> None:
    place = folder("slow", f"RUN echo begun; {SLEEP}")

    async def run() -> None:
        work = asyncio.create_task(make_images().image(Build(place, timeout=100.0)))
        await until(lambda: building(engine))
        await clock.skip(100.0)
        with pytest.raises(ImageFailed, match="it took longer than its 100 s"):
            await work
        await until(lambda: not building(engine))

    asyncio.run(run())


def building(engine: Engine) -> list[str]:
    listed = engine.call_now("containers")
    return [item["Id"] for item in listed if SLEEP in item["Command"]]


def test_a_build_that_nobody_waits_for_is_cancelled(
    make_images: Make, folder: Folder, engine: Engine
) -> None:
    place = folder("slow", f"RUN {SLEEP}")

    async def run() -> None:
        images = make_images()
        asking = [asyncio.create_task(images.image(Build(place))) for _ in range(2)]
        await until(lambda: bool(building(engine)), 20)
        asking[0].cancel()
        await asyncio.wait([asking[0]])
        assert building(engine)  # the other one still waits
        asking[1].cancel()
        await asyncio.wait([asking[1]])
        await until(lambda: not building(engine))
        (place / "Dockerfile").write_text("FROM vf-sandbox:latest\n")
        assert await images.image(Build(place))  # and may be asked for again
        await images.close()

    asyncio.run(run())


def test_those_who_wait_when_it_is_closed_get_an_error(make_images: Make, folder: Folder) -> None:
    place = folder("slow", f"RUN {SLEEP}")

    async def run() -> None:
        images = make_images()
        asking = asyncio.create_task(images.image(Build(place)))
        await until(lambda: bool(images.stats().busy), 20)
        await images.close()
        with pytest.raises(SandboxError, match="closed"):
            await asking

    asyncio.run(run())


def test_the_least_recently_used_give_way_to_the_bound_on_disk(
    make_images: Make, folder: Folder, engine: Engine
) -> None:
    size = 3 * 2**20
    places = [
        folder(f"f{n}", f"RUN head -c {size} /dev/urandom > /big; echo {n}") for n in range(4)
    ]

    async def run() -> None:
        images = make_images(disk=2.5 * size)
        first, second = [await images.image(Build(place)) for place in places[:2]]
        os.utime(await _record(images, second), (1, 1))
        container = engine.call_now("create_container", second, command=["true"])["Id"]
        third = await images.image(Build(places[2]))
        # The second was not used for longer, but a container has it.
        assert [there(engine, name) for name in (first, second, third)] == [False, True, True]
        engine.call_now("remove_container", container)
        fourth = await images.image(Build(places[3]))
        assert [there(engine, name) for name in (second, third, fourth)] == [False, True, True]
        assert await images.image(Build(places[0])) == first  # built again
        assert there(engine, first)

    asyncio.run(run())


def test_the_processes_of_a_machine_keep_to_one_bound_on_disk(
    make_images: Make, folder: Folder, engine: Engine
) -> None:
    size = 3 * 2**20
    places = [folder(f"f{n}", f"RUN head -c {size} /dev/urandom > /{n}") for n in range(4)]

    async def run() -> None:
        both = [make_images(disk=2.5 * size), make_images(disk=2.5 * size)]  # as of two workers
        names = [await both[n % 2].image(Build(place)) for n, place in enumerate(places)]
        assert [there(engine, name) for name in names] == [False, False, True, True]

    asyncio.run(run())


async def _record(images: Images, name: str) -> Path:
    return (await images._ledger())._file(name)


def test_an_image_that_is_there_is_not_pulled(make_images: Make) -> None:
    async def run() -> None:
        images = make_images(pull="never")
        assert await images.image("vf-sandbox:latest") == "vf-sandbox:latest"
        assert images.stats().pulled == 0

    asyncio.run(run())


def test_what_may_not_be_pulled_says_so(make_images: Make, folder: Folder) -> None:
    place = folder("one")
    (place / "Dockerfile").write_text("FROM vf-test-pools-none:1\n")

    async def run() -> None:
        images = make_images(pull="never")
        for wanted in ("vf-test-pools-none:1", Build(place)):
            with pytest.raises(
                ImageFailed, match=r"'vf-test-pools-none:1' is not on .*docker pull"
            ):
                await images.image(wanted)
        with pytest.raises(ImageFailed, match="is not the name of an image"):
            await images.image("not A name")

    asyncio.run(run())


def test_a_pull_that_fails_names_the_image(make_images: Make) -> None:
    async def run() -> None:
        with pytest.raises(ImageFailed, match=r"'127\.0\.0\.1:9/none:1' cannot be pulled: "):
            await make_images().image("127.0.0.1:9/none:1")

    asyncio.run(run())

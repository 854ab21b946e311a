"""Side services: who reaches whom, in which order they start, and what becomes of them."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from vf.runtime.errors import SandboxError
from vf.sandbox.container.docker_engine import Engine
from vf.sandbox.container.docker_sandbox import DockerSandbox
from vf.sandbox.container.doctor import prepare
from vf.sandbox.container.profile import DEFAULT_IMAGE, Profile
from vf.sandbox.services.opening import Services, open_services
from vf.sandbox.spec import Build

# A web server that is healthy a moment after its start.
SERVER = "import http.server as s; s.test(s.SimpleHTTPRequestHandler, port=8000)"
GET = "import urllib.request as r, sys; print(r.urlopen(sys.argv[1], timeout=10).status)"


async def image(wanted: Build | str) -> str:
    assert isinstance(wanted, str)
    return wanted


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "docker-compose.yaml"
    path.write_text(text.replace("IMAGE", DEFAULT_IMAGE))
    return path


@asynccontextmanager
async def episode(
    engine: Engine, path: Path, profile: Profile
) -> AsyncIterator[tuple[Services, DockerSandbox]]:
    async with open_services(engine, path, image=image, lifetime=300, timeout=60) as services:
        prepared = prepare(engine, services.main_profile(profile))
        async with await DockerSandbox.create(engine, prepared) as box:
            await services.start_main(box)
            yield services, box


async def get(box: DockerSandbox, url: str) -> str:
    done = await box.exec(["python3", "-c", GET, url])
    return done.stdout.strip() or done.stderr.strip().splitlines()[-1]


def test_main_reaches_a_service_by_its_names_and_nothing_else(
    engine: Engine, profile: Profile, tmp_path: Path
) -> None:
    path = write(
        tmp_path,
        f"""
services:
  main:
    image: IMAGE
    depends_on: {{db: {{condition: service_healthy}}}}
  db:
    image: IMAGE
    hostname: database
    working_dir: /workspace
    command: ["python3", "-u", "-c", "{SERVER}"]
    networks: {{default: {{aliases: [store]}}}}
    healthcheck:
      test: ["CMD", "python3", "-c", "{GET}", "http://localhost:8000/"]
      interval: 1s
      retries: 20
""",
    )

    async def body() -> None:
        async with (
            await asyncio.start_server(lambda *ends: ends[1].close(), "0.0.0.0", 0) as server,
            episode(engine, path, profile) as (services, box),
        ):
            for name in ("db", "store"):
                assert await get(box, f"http://{name}:8000/") == "200"
            assert (await services.service("db").exec("hostname")).stdout == "database\n"
            assert "GET / HTTP" in services.logs()["db"]
            # This machine listens, on every address that it has: none is reached.
            port = server.sockets[0].getsockname()[1]
            own = addresses()
            assert own
            for place in (box, services.service("db").sandbox):
                done = await place.exec(["python3", "-c", REACH, str(port), *sorted(own)])
                assert done.ok, done
                assert done.stdout == ""

    asyncio.run(body())


def addresses() -> set[str]:
    """Return what this machine is called, but for its loopback."""
    found = re.findall(r"-- (\S+)\s+/32 host LOCAL", Path("/proc/net/fib_trie").read_text())
    return {each for each in found if not each.startswith("127.")}


# Every way to send to an address that no route leads to. Prints what was reached.
REACH = """
import select, socket, sys
port, *addresses = sys.argv[1:]
here = socket.gethostbyname(socket.gethostname())
sockets = {}
for address in [*addresses, here.rpartition(".")[0] + ".1"]:
    for options in [], [(1, 5, 1)], [(1, 5, 1), (1, 25, b"eth0\\0")], [(1, 25, b"eth0\\0")]:
        s = socket.socket()
        s.setblocking(False)
        for option in options: s.setsockopt(*option)
        if s.connect_ex((address, int(port))) == 115: sockets[s] = address, options
while ready := select.select([], list(sockets), [], 2)[1]:
    for s in ready:
        place = sockets.pop(s)
        if s.getsockopt(1, 4) == 0: print(place)
try: print(socket.getaddrinfo("example.com", 80))
except OSError: pass
"""


def test_a_service_that_fails_before_the_episode_is_a_failure(
    engine: Engine, profile: Profile, tmp_path: Path
) -> None:
    path = write(
        tmp_path,
        """
services:
  main: {image: IMAGE, depends_on: {init: {condition: service_completed_successfully}}}
  init: {image: IMAGE, command: ["sh", "-c", "echo no such table >&2; exit 3"]}
""",
    )

    async def body() -> None:
        with pytest.raises(
            SandboxError, match=r"'init' has not completed \(exit code 3\)"
        ) as caught:
            async with episode(engine, path, profile):
                pass
        assert "no such table" in str(caught.value)

    asyncio.run(body())
    assert not [n for n in engine.client.networks() if n["Name"].startswith("vf-")]

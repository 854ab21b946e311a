"""Side services: who reaches whom, in which order they start, and what happens to them."""

from __future__ import annotations

import asyncio
import io
import re
import subprocess
import sys
import tarfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.waiting import until, wait_until
from vf.runtime.errors import ConfigError, SandboxError
from vf.sandbox.container.docker_engine import Engine, EngineProblem
from vf.sandbox.container.docker_sandbox import DockerSandbox
from vf.sandbox.container.doctor import prepare
from vf.sandbox.container.hardening import DEFAULT_IMAGE, Profile
from vf.sandbox.container.reaper import PREFIX, reap, this_process
from vf.sandbox.services.network import open_network
from vf.sandbox.services.opening import Services, open_services
from vf.sandbox.spec import Build

pytestmark = pytest.mark.slow

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
            reach = ["python3", "-c", REACH, str(port), *sorted(own)]
            for done in await asyncio.gather(box.exec(reach), services.service("db").exec(reach)):
                assert done.ok, done
                assert done.stdout == ""

    asyncio.run(body())


def addresses() -> set[str]:
    """Return what this machine is called, except for its loopback."""
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
        with pytest.raises(EngineProblem, match="no-such-runtime"):
            async with open_services(engine, path, image=image, runtime="no-such-runtime"):
                pass

    asyncio.run(body())
    assert not left(engine)


ORDINARY = "vf-test-services-ordinary:1"
# As images of databases are: an entry point that starts as root, gives its folder to another user,
# becomes that user, and listens on a low port.
ENTRYPOINT = """#!/bin/sh
set -e
chown daemon /var/store
install -m 600 -o daemon /etc/store.conf /var/store/conf
exec setpriv --reuid daemon --regid daemon --clear-groups python3 -u /srv/serve.py "$@"
"""
SERVE = """
import http.server, os, sys
os.chdir("/var/store")
print("uid", os.getuid(), *sys.argv[1:])
class Handler(http.server.SimpleHTTPRequestHandler):
    def do_POST(self):
        print("stopped by a request", flush=True)
        os._exit(7)
http.server.HTTPServer(("", 80), Handler).serve_forever()
"""


@pytest.fixture(scope="module")
def ordinary(containers: None) -> Iterator[str]:
    """An image that knows nothing of sandboxes."""
    engine = Engine.connect()
    dockerfile = f"""
FROM {DEFAULT_IMAGE}
COPY entrypoint.sh /usr/local/bin/
COPY serve.py /srv/
VOLUME /var/store
ENTRYPOINT ["entrypoint.sh"]
CMD ["by default"]
HEALTHCHECK --interval=1s --retries=30 CMD python3 -c "import urllib.request as r; \
r.urlopen('http://localhost/conf')"
"""
    context = io.BytesIO()
    with tarfile.open(fileobj=context, mode="w") as archive:
        files = {"Dockerfile": dockerfile, "entrypoint.sh": ENTRYPOINT, "serve.py": SERVE}
        for name, text in files.items():
            item = tarfile.TarInfo(name)
            item.mode, item.size = 0o755, len(text)
            archive.addfile(item, io.BytesIO(text.encode()))
    context.seek(0)
    engine.call_now("build", fileobj=context, custom_context=True, tag=ORDINARY, rm=True)
    yield ORDINARY
    engine.call_now("remove_image", ORDINARY, force=True)
    engine.close()


def test_an_ordinary_image_is_a_service_and_what_it_does_is_not_a_failure(
    engine: Engine, profile: Profile, ordinary: str, tmp_path: Path
) -> None:
    (tmp_path / "store.conf").write_text("a = 1\n")
    path = write(
        tmp_path,
        f"""
services:
  main:
    image: IMAGE
    environment: {{WHERE: http://store/conf}}
    working_dir: /srv
    volumes: [shared:/shared:ro]
    depends_on:
      store: {{condition: service_healthy}}
      seed: {{condition: service_completed_successfully}}
  store:
    image: {ordinary}
    volumes: [./store.conf:/etc/store.conf:ro]
    mem_limit: 128m
  seed:
    image: IMAGE
    user: daemon
    command: sh -c "echo seeded > /shared/file"
    volumes: [shared:/shared]
volumes: {{shared: }}
""",
    )

    async def body() -> None:
        async with episode(engine, path, profile) as (services, box):
            assert (await box.exec("pwd; cat /shared/file")).stdout == "/srv\nseeded\n"
            assert not (await box.exec("echo x > /shared/file")).ok
            done = await box.exec(
                'python3 -c "import os, urllib.request as r; '
                "print(r.urlopen(os.environ['WHERE']).read())\""
            )
            assert done.stdout == "b'a = 1\\n'\n", done
            assert Services.beside(box) is services
            store = services.service("store")
            assert store.log.startswith("uid 1 by default\n")
            assert (await store.exec("id -u")).stdout == "0\n"
            # A model can make a service end: that is for whoever scores, and no failure.
            await box.exec(
                'python3 -c "import urllib.request as r; '
                "r.urlopen('http://store/', data=b'stop')\""
            )
            await until(lambda: store.ended is not None)
            assert store.ended is not None
            assert store.ended.returncode == 7
            assert store.log.endswith("stopped by a request\n")
            assert await store.sandbox.read_file("/var/store/conf") == b"a = 1\n"
            assert (await box.exec("true")).ok
            seed = services.service("seed")
            assert (await seed.exec("id -u")).stdout == "1\n"
            with pytest.raises(ConfigError, match=r"has no service 'sotre'.*'store'"):
                services.service("sotre")
            with pytest.raises(ConfigError, match="has no side services"):
                Services.beside(store.sandbox)

    asyncio.run(body())
    assert not left(engine)


def left(engine: Engine) -> list[str]:
    """Return what this process has left behind on the engine."""
    mine = {"label": f"{PREFIX}run={this_process().run}"}
    networks = [item["Name"] for item in engine.client.networks(filters=mine)]
    volumes = [item["Name"] for item in engine.client.volumes(filters=mine)["Volumes"] or ()]
    return networks + volumes + [c["Id"] for c in engine.client.containers(all=True, filters=mine)]


HOLD = """
import asyncio, sys
from pathlib import Path
from vf.sandbox.container.docker_engine import Engine
from vf.sandbox.container.reaper import this_process
from vf.sandbox.container.reaper import PREFIX, reap, this_process
from vf.sandbox.services.opening import open_services
async def image(wanted): return wanted
async def main():
    async with open_services(Engine.connect(), Path(sys.argv[1]), image=image, lifetime=300):
        print(this_process().run, flush=True)
        await asyncio.Event().wait()
asyncio.run(main())
"""


def test_nothing_outlives_a_client_that_is_killed(engine: Engine, tmp_path: Path) -> None:
    path = write(
        tmp_path,
        """
services:
  main: {image: IMAGE}
  db: {image: IMAGE, command: [sleep, "600"], volumes: [data:/data]}
volumes: {data: }
""",
    )
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        run = process.stdout.readline().strip()
        process.kill()
    theirs = {"label": f"{PREFIX}run={run}"}
    wait_until(lambda: not engine.client.containers(all=True, filters=theirs))
    assert engine.client.networks(filters=theirs)
    assert engine.client.volumes(filters=theirs)["Volumes"]
    asyncio.run(reap(engine))
    assert not engine.client.networks(filters=theirs)
    assert not engine.client.volumes(filters=theirs)["Volumes"]


def test_a_network_that_cannot_be_removed_now_is_removed_later(engine: Engine) -> None:
    async def run() -> None:
        async with open_network(engine, ["data"], lifetime=60) as network:
            holder = engine.call_now(
                "create_container",
                DEFAULT_IMAGE,
                command=["sleep", "600"],
                host_config={
                    "NetworkMode": network.name,
                    "Binds": [f"{network.volumes['data']}:/d"],
                },
            )["Id"]
            engine.call_now("start", holder)
        assert len(left(engine)) == 2
        await reap(engine)
        assert len(left(engine)) == 2
        await engine.remove(holder)
        await reap(engine)
        assert not left(engine)

    asyncio.run(run())


ENDS = """
import asyncio
from vf.sandbox.container.docker_engine import Engine
from vf.sandbox.container.reaper import this_process
from vf.sandbox.services.network import open_network
async def hold(engine):
    async with open_network(engine, ["data"], lifetime=60):
        await asyncio.Event().wait()
async def main():
    engine, seconds = Engine.connect(), float(input())
    holding = [asyncio.ensure_future(hold(engine)) for _ in range(2)]
    await asyncio.sleep(seconds)
    print(this_process().run)
asyncio.run(main())
"""


@pytest.mark.parametrize("seconds", [0.02, 2.0], ids=["while they are made", "later"])
def test_an_event_loop_that_ends_leaves_no_network(engine: Engine, seconds: float) -> None:
    command = [sys.executable, "-c", ENDS]
    done = subprocess.run(command, input=str(seconds), capture_output=True, text=True, check=True)
    run = f"vf-{done.stdout.strip()}"
    assert not engine.call_now("networks", [run])
    assert not engine.call_now("volumes", filters={"name": run})["Volumes"]

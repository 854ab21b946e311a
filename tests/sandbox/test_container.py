"""Real containers: hard from the first moment, quick to talk to, gone when they should be."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import tarfile
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.sandbox.conftest import small_profile
from vf.runtime.errors import SandboxError
from vf.sandbox.container.docker_engine import Engine, EngineProblem, ImageMissing, ImageUnfit
from vf.sandbox.container.docker_sandbox import DockerSandbox
from vf.sandbox.container.hardening import DEFAULT_IMAGE, SYSCTLS, Profile
from vf.sandbox.container.opening import open_container, open_pool
from vf.sandbox.container.reaper import find
from vf.sandbox.contract import Limits
from vf.sandbox.seccomp import seccomp_profile

MIB = 2**20


Shared = Callable[[Callable[[DockerSandbox], Awaitable[Any]]], Any]
SHARED: set[str] = set()


@pytest.fixture(scope="module")
def shared(containers: None) -> Iterator[Shared]:
    """Runs coroutine functions with one container, for tests that leave nothing of note in it."""
    with asyncio.Runner() as runner, contextlib.closing(Engine.connect()) as engine:
        sandbox = runner.run(DockerSandbox.create(engine, small_profile()))
        SHARED.add(sandbox.name)
        yield lambda work: runner.run(work(sandbox))  # type: ignore[arg-type]
        runner.run(sandbox.close())


async def names(engine: Engine) -> set[str]:
    """Return this process's containers, without the shared one."""
    return {item.name for item in await find(engine) if item.mine} - SHARED


async def printed(sandbox: DockerSandbox, code: str) -> Any:
    """Run a program and return what it prints, as JSON."""
    result = await sandbox.exec(["python3", "-c", code])
    assert result.ok, result
    return json.loads(result.stdout)


def inside(engine: Engine, profile: Profile, code: str) -> Any:
    """Run a program in a container of its own and return what it prints, as JSON."""

    async def run() -> Any:
        async with await DockerSandbox.create(engine, profile) as sandbox:
            return await printed(sandbox, code)

    return asyncio.run(run())


def test_a_working_directory_that_code_closed_is_opened_for_it_again(shared: Shared) -> None:
    async def check(sandbox: DockerSandbox) -> None:
        assert (await sandbox.exec("chmod 000 .")).ok
        assert (await sandbox.exec("pwd > here; cat here")).stdout == "/workspace\n"
        await sandbox.bash("chmod 444 .; exit")
        assert (await sandbox.bash("pwd")).stdout == "/workspace\n"

    shared(check)


ENVIRONMENT = {"HOME", "LANG", "PATH", "PWD", "PYTHONDONTWRITEBYTECODE", "HOSTNAME", "LC_CTYPE"}
ENVIRONMENT |= {"USER", "LOGNAME"}
RIGHTS = """
import json, os
status = dict(line.split(":\\t", 1) for line in open("/proc/self/status") if ":\\t" in line)
print(json.dumps({
    "uids": status["Uid"].split(), "groups": status["Groups"].split(),
    "caps": [status[k].strip() for k in ("CapInh", "CapPrm", "CapEff", "CapAmb")],
    "bounding": int(status["CapBnd"], 16),
    "no_new_privs": status["NoNewPrivs"].strip(), "seccomp": status["Seccomp"].strip(),
    "interfaces": sorted(os.listdir("/sys/class/net")),
    "docker_socket": [p for p in ("/var/run/docker.sock", "/run/docker.sock") if os.path.exists(p)],
    "devices": sorted(os.listdir("/dev")),
    "env": [f"{name}={value}" for name, value in sorted(os.environ.items())],
    "supervisor": os.stat("/proc/1").st_uid,
}))
"""


def image_env(engine: Engine) -> list[str]:
    config = engine.call_now("inspect_image", DEFAULT_IMAGE)["Config"]
    return [pair.split("=")[0] for pair in config.get("Env") or ()]


def test_the_models_code_has_no_rights_and_no_network(engine: Engine, shared: Shared) -> None:
    features = asyncio.run(engine.features())
    found = shared(lambda sandbox: printed(sandbox, RIGHTS))
    (uid,) = set(found["uids"])
    assert int(uid) in features.uids
    assert found["groups"] == []
    assert found["caps"] == ["0" * 16] * 4
    kill_setgid_setuid = 1 << 5 | 1 << 6 | 1 << 7
    assert found["bounding"] == kill_setgid_setuid
    assert (found["no_new_privs"], found["seccomp"]) == ("1", "2")
    assert found["interfaces"] == ["lo"]
    assert found["docker_socket"] == []
    harmless = {"full", "null", "zero", "random", "urandom", "tty", "ptmx", "console"}
    ways = {"fd", "stdin", "stdout", "stderr", "pts", "shm", "mqueue", "core"}
    assert set(found["devices"]) <= harmless | ways
    assert {pair.split("=")[0] for pair in found["env"]} <= {*ENVIRONMENT, *image_env(engine)}
    assert found["supervisor"] in features.uids
    assert found["supervisor"] != int(uid)


WRITABLE = """
import json, os, tempfile
found = []
for folder, _, _ in os.walk("/"):
    if folder.startswith(("/proc", "/sys/fs/cgroup")) and folder.count("/") > 3: continue
    try:
        with tempfile.TemporaryFile(dir=folder): found.append(folder)
    except OSError: pass
print(json.dumps(found))
"""


def test_only_the_three_temporary_file_systems_can_be_written(shared: Shared) -> None:
    assert sorted(shared(lambda sandbox: printed(sandbox, WRITABLE))) == [
        "/dev/mqueue",
        "/dev/shm",
        "/tmp",
        "/workspace",
    ]


def test_the_engine_was_asked_for_the_hardened_profile(
    engine: Engine, profile: Profile, shared: Shared
) -> None:
    async def inspected(sandbox: DockerSandbox) -> Any:
        return engine.call_now("inspect_container", sandbox.name)

    found = shared(inspected)
    host, config, limits = found["HostConfig"], found["Config"], profile.limits
    expected = {
        "NetworkMode": "none",
        "CapDrop": ["ALL"],
        "SecurityOpt": ["no-new-privileges:true", f"seccomp={seccomp_profile()}"],
        "Sysctls": SYSCTLS,
        "Privileged": False,
        "ReadonlyRootfs": True,
        "Memory": limits.memory,
        "MemorySwap": limits.memory,
        "NanoCpus": 1_000_000_000,
        "PidsLimit": limits.pids,
        "LogConfig": {"Type": "none", "Config": {}},
        "Init": False,
        "AutoRemove": True,
        "IpcMode": "private",
        "PidMode": "",
        "UTSMode": "",
        "Binds": None,
        "VolumesFrom": None,
    }
    assert {key: host[key] for key in expected} == expected
    assert {cap.removeprefix("CAP_") for cap in host["CapAdd"]} == {"KILL", "SETGID", "SETUID"}
    assert not host["Devices"]
    assert {limit["Name"] for limit in host["Ulimits"]} >= {"core", "nofile", "memlock"}
    assert set(host["Tmpfs"]) == {"/tmp", "/workspace", "/dev/shm"}
    for options in host["Tmpfs"].values():
        assert {"nosuid", "nodev", f"nr_inodes={limits.files}"} <= set(options.split(","))
    assert found["Mounts"] == []
    assert config["User"] == "0:0"
    assert config["StdinOnce"]
    labels = {key.removeprefix("vf.sandbox."): value for key, value in config["Labels"].items()}
    assert set(labels) >= {"run", "host", "pid", "start", "expires"}
    assert labels["pid"] == str(os.getpid())


def test_this_users_proxies_stay_outside(
    profile: Profile, engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxies = {"default": {"httpProxy": "http://me:secret@127.0.0.1:1"}}
    (tmp_path / "config.json").write_text(json.dumps({"proxies": proxies}))
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    with contextlib.closing(Engine.connect()) as configured:
        assert "secret" not in json.dumps(inside(configured, profile, RIGHTS))


def test_the_network_is_there_when_it_was_asked_for(engine: Engine, profile: Profile) -> None:
    found = inside(engine, replace(profile, network="bridge"), RIGHTS)
    assert len(found["interfaces"]) == 2


LIMITS = """
import json, os, resource
def read(*paths):
    for path in paths:
        if os.path.exists(path): return open(path).read().split()[0]
v, M = os.statvfs, "/sys/fs/cgroup"
print(json.dumps({
    "memory": read("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory.max"),
    "swap": read(M + "/memory/memory.memsw.limit_in_bytes", M + "/memory.swap.max"),
    "pids": read("/sys/fs/cgroup/pids/pids.max", "/sys/fs/cgroup/pids.max"),
    "sizes": [v(p).f_blocks * v(p).f_frsize for p in ("/workspace", "/tmp", "/dev/shm")],
    "files": [v(p).f_files for p in ("/workspace", "/tmp", "/dev/shm")],
    "core": resource.getrlimit(resource.RLIMIT_CORE),
    "nofile": resource.getrlimit(resource.RLIMIT_NOFILE)[1],
}))
"""


def test_every_limit_is_the_kernels(engine: Engine) -> None:
    limits = Limits(
        memory=200 * MIB, pids=50, workspace=30 * MIB, tmp=20 * MIB, files=777, lifetime=300
    )
    found = inside(engine, Profile(limits=limits), LIMITS)
    assert found["memory"] == str(200 * MIB)
    # On cgroup v1 memory and swap together; on v2 swap alone; nowhere where swap is not counted.
    assert found["swap"] in (str(200 * MIB), "0", None)
    assert found["pids"] == "50"
    assert found["sizes"] == [30 * MIB, 20 * MIB, 16 * MIB]
    assert found["files"] == [777] * 3
    assert found["core"] == [0, 0]
    assert found["nofile"] <= 4096


def test_the_cpu_limit_is_the_engines(engine: Engine, profile: Profile) -> None:
    async def run() -> Any:
        limits = replace(profile.limits, cpus=0.5)
        async with await DockerSandbox.create(engine, replace(profile, limits=limits)) as sandbox:
            spin = "import time\nt = time.time()\nwhile time.time() - t < 1: pass\n"
            code = spin + "print(time.process_time())"
            return (await sandbox.exec(["python3", "-c", code])).stdout

    assert float(asyncio.run(run())) < 0.8


def test_a_lost_sandbox_says_so_for_good_and_is_removed(engine: Engine, profile: Profile) -> None:
    async def run() -> None:
        sandbox = await DockerSandbox.create(engine, profile)
        waiting = asyncio.create_task(sandbox.exec("touch begun; sleep infinity"))
        await sandbox.exec("until [ -e begun ]; do sleep 0.01; done")
        await engine.call("kill", sandbox.name)
        with pytest.raises(SandboxError, match=f"{sandbox.name}.*killed through the engine"):
            await waiting
        assert not sandbox.alive
        with pytest.raises(SandboxError):
            await sandbox.python("1")
        await sandbox.close()
        assert sandbox.name not in await names(engine)

    asyncio.run(run())


def test_it_ends_by_itself_when_its_lifetime_is_over(engine: Engine, profile: Profile) -> None:
    async def run() -> None:
        short = replace(profile, limits=replace(profile.limits, lifetime=1.5))
        sandbox = await DockerSandbox.create(engine, short)
        result = await sandbox.exec("sleep 30")
        assert (result.ended, result.ok) == (True, False)
        assert "lifetime is over" in result.stderr
        await sandbox.close()
        assert await names(engine) == set()

    asyncio.run(run())


@pytest.mark.parametrize("after", [0.0, 0.02, 0.1, 0.3])
def test_a_cancelled_creation_leaves_nothing(
    engine: Engine, profile: Profile, after: float
) -> None:
    async def run() -> None:
        task = asyncio.create_task(DockerSandbox.create(engine, profile))
        await asyncio.sleep(after)
        if not task.cancel():
            await (await task).close()
        with contextlib.suppress(asyncio.CancelledError):
            await (await task).close()
        assert await names(engine) == set()

    asyncio.run(run())


def test_what_cannot_be_created_is_explained_and_leaves_nothing(
    engine: Engine, profile: Profile
) -> None:
    async def run() -> None:
        with pytest.raises(ImageMissing, match="no-such-image"):
            await DockerSandbox.create(engine, replace(profile, image="no-such-image:1"))
        with pytest.raises(EngineProblem, match="no-such-runtime"):
            await DockerSandbox.create(engine, replace(profile, runtime="no-such-runtime"))
        assert await names(engine) == set()

    asyncio.run(run())


def test_an_image_without_python_is_named(engine: Engine, profile: Profile) -> None:
    empty = io.BytesIO()
    with tarfile.open(fileobj=empty, mode="w") as tar:
        tar.addfile(tarfile.TarInfo("nothing"), io.BytesIO())
    engine.call_now("import_image_from_data", empty.getvalue(), repository="vf-test-empty", tag="1")
    try:
        with pytest.raises(ImageUnfit, match="has no python3"):
            asyncio.run(DockerSandbox.create(engine, replace(profile, image="vf-test-empty:1")))
    finally:
        engine.call_now("remove_image", "vf-test-empty:1")
    assert asyncio.run(names(engine)) == set()


def test_the_pool_hands_out_real_ones_that_share_nothing(engine: Engine, profile: Profile) -> None:
    async def run() -> None:
        async with open_pool(profile, size=2, concurrency=2) as pool:

            async def episode() -> str:
                async with pool.acquire() as sandbox:
                    await sandbox.exec("echo secret > /tmp/left; (sleep 99 &)")
                    found = await sandbox.exec("ls /tmp; ps ax 2>/dev/null | grep -c sleep || true")
                    return sandbox.name + found.stdout.split("\n")[0]

            seen = await asyncio.gather(*(episode() for _ in range(5)))
            assert len(set(seen)) == 5
        assert await names(engine) == set()

    asyncio.run(run())


def test_open_sandbox_is_all_that_one_needs(engine: Engine) -> None:
    async def run() -> str:
        async with open_container() as sandbox:
            return (await sandbox.python("'hello ' + 'there'")).stdout

    assert asyncio.run(run()) == "'hello there'\n"


def test_weakening_is_on_the_record(caplog: pytest.LogCaptureFixture) -> None:
    Profile()
    assert caplog.records == []
    Profile(network="bridge")
    assert "can reach the network" in caplog.text


@pytest.mark.parametrize(
    ("limits", "why"),
    [
        (Limits(pids=4), "pids must be at least"),
        (Limits(lifetime=float("inf")), "lifetime must be finite"),
        (Limits(memory=256 * MIB, workspace=200 * MIB, tmp=50 * MIB), "count as memory"),
    ],
)
def test_limits_that_cannot_hold_are_refused(limits: Limits, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        Profile(limits=limits)


def test_a_network_is_named_or_described() -> None:
    with pytest.raises(ValueError, match='"none" or "bridge"'):
        Profile(network="host")  # type: ignore[arg-type]

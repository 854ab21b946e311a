"""What is missing is found before a run starts, and the message says how to fix it."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from vf.runtime.errors import ConfigError
from vf.sandbox.commands.sandbox import main
from vf.sandbox.container import doctor
from vf.sandbox.container.docker_engine import (
    Engine,
    EngineMissing,
    EngineProblem,
    ImageMissing,
    ImageUnfit,
)
from vf.sandbox.container.doctor import check_engine, diagnose, examine
from vf.sandbox.container.features import features_of
from vf.sandbox.container.hardening import Profile, container_settings
from vf.sandbox.container.opening import open_container, open_pool
from vf.sandbox.contract import Limits

GOOD: dict[str, Any] = {
    "CgroupDriver": "systemd",
    "MemoryLimit": True,
    "SwapLimit": True,
    "PidsLimit": True,
    "CpuCfsQuota": True,
    "NCPU": 4,
    "SecurityOptions": ["name=apparmor", "name=seccomp,profile=default"],
    "Runtimes": {"runc": {}, "runsc": {}},
    "DefaultRuntime": "runc",
}
Check = Callable[[Mapping[str, Any]], str]


def test_a_good_engine_passes_every_check(engine: Engine) -> None:
    found = examine(engine, Profile())
    assert [item.check for item in found if item.problem] == []
    assert {item.check for item in found} == {
        "engine",
        "limits",
        "cpus",
        "seccomp",
        "users",
        "ipc",
        "runtime",
        "image",
    }
    check_engine(Profile())


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("unix:///nowhere/docker.sock", EngineMissing),
        ("tcp://127.0.0.1:1", EngineMissing),
        ("no address at all", EngineProblem),
        ("npipe:////./pipe/docker_engine", EngineProblem),
    ],
)
def test_without_an_engine_everything_says_so_at_once(
    monkeypatch: pytest.MonkeyPatch, address: str, why: type[EngineProblem]
) -> None:
    monkeypatch.setenv("DOCKER_HOST", address)
    with pytest.raises(why, match="DOCKER_HOST"):
        check_engine(Profile())
    (finding,) = diagnose(Profile())
    assert isinstance(finding.problem, why)

    async def open_one() -> None:
        async with open_container():
            pass

    async def open_many() -> None:
        async with open_pool():
            pass

    for opening in (open_one, open_many):
        with pytest.raises(why, match="DOCKER_HOST"):
            asyncio.run(opening())


@pytest.mark.timeout(50)  # less than the 60 s of the docker package
def test_an_engine_that_never_answers_is_not_waited_for_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("vf.sandbox.container.docker_engine.CONNECT_TIMEOUT", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("DOCKER_HOST", f"tcp://127.0.0.1:{server.getsockname()[1]}")
        with pytest.raises(EngineMissing):
            check_engine(Profile())


@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="needs root to stop being it")
def test_missing_permission_is_reported() -> None:
    code = (
        "import os, sys, docker\n"
        "from vf.sandbox.commands.sandbox import main\n"
        "os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "sys.exit(main(['doctor', '--backend', 'docker']))\n"
    )
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as server:
        path = Path(folder, "engine.sock")
        server.bind(str(path))
        server.listen()
        path.chmod(0o660)
        Path(folder).chmod(0o755)
        done = subprocess.run(
            [sys.executable, "-c", code],
            env=os.environ | {"DOCKER_HOST": f"unix://{path}"},
            capture_output=True,
            text=True,
        )
    assert done.returncode == 2, done.stderr
    assert "EngineProblem" not in done.stdout
    assert "may not use the engine" in done.stdout
    assert "usermod -aG docker" in done.stdout


def test_without_the_sdk_the_message_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("docker", "docker.errors"):  # which an earlier test may have imported
        monkeypatch.setitem(sys.modules, name, None)
    assert main(["ps"]) == 2
    error = capsys.readouterr().err
    assert "pip install 'vf-rl[sandbox]'" in error
    assert "Traceback" not in error


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"CgroupDriver": "none"}, "without cgroups"),
        ({"MemoryLimit": False}, "cgroup_enable=memory"),
        ({"PidsLimit": False}, "number of processes"),
        ({"CpuCfsQuota": False}, "CPU time"),
    ],
)
def test_a_limit_that_the_kernel_would_ignore_is_named(change: dict[str, Any], why: str) -> None:
    assert "enforced" in doctor.check_limits(GOOD)
    with pytest.raises(EngineProblem, match=why):
        doctor.check_limits(GOOD | change)


def test_swap_matters_only_where_there_is_some(monkeypatch: pytest.MonkeyPatch) -> None:
    unlimited = GOOD | {"SwapLimit": False}
    monkeypatch.setattr(doctor, "_may_swap", lambda: False)
    assert "enforced" in doctor.check_limits(unlimited)
    monkeypatch.setattr(doctor, "_may_swap", lambda: True)
    with pytest.raises(EngineProblem, match="swapoff -a"):
        doctor.check_limits(unlimited)


PODMAN = {"Components": [{"Name": "Podman Engine"}]}
ROOTLESS = {"SecurityOptions": ["name=seccomp,profile=default", "name=rootless"]}


@pytest.mark.parametrize("options", [[], None, ["name=apparmor"]])
def test_unfiltered_system_calls_are_refused(options: list[str] | None) -> None:
    assert "comes with vf-rl" in doctor.check_seccomp(GOOD, features_of(GOOD, {}))
    with pytest.raises(EngineProblem, match="CONFIG_SECCOMP_FILTER"):
        doctor.check_seccomp(GOOD | {"SecurityOptions": options}, features_of(GOOD, {}))


def test_an_engine_that_takes_no_list_of_calls_must_have_its_own() -> None:
    features = features_of(GOOD, PODMAN)
    assert not features.networks
    assert "the engine's own" in doctor.check_seccomp(GOOD, features)
    open_one = GOOD | {"SecurityOptions": ["name=seccomp,profile=unconfined"]}
    with pytest.raises(EngineProblem, match="unconfined"):
        doctor.check_seccomp(open_one, features)


def test_podmans_id_which_is_another_each_time_does_not_count() -> None:
    assert features_of({"ID": "a"}, PODMAN).id == ""
    assert features_of({"ID": "a"}, {}).id == "a"


def test_a_rootless_engine_is_asked_for_what_it_can_do() -> None:
    features = features_of(ROOTLESS, {})
    assert "65535" not in doctor.describe_users(features)
    assert max(features.uids) < 64_998  # the uids of helpers, and of nobody
    assert "counts as memory only" in doctor.describe_ipc(features)
    settings = container_settings(Profile(), {}, features)
    assert "Sysctls" not in settings["host_config"]


def test_every_container_has_two_uids_of_its_own() -> None:
    features = features_of(GOOD, {})
    commands = [container_settings(Profile(), {}, features)["entrypoint"] for _ in range(50)]
    guards = [int(each[each.index("--guard") + 1]) for each in commands]
    users = [each[each.index("--user") + 1].split(":") for each in commands]
    assert all(uid == gid for uid, gid in users)
    uids = {*guards, *(int(uid) for uid, _ in users)}
    assert len(uids) == 100
    assert all(uid in features.uids for uid in uids)


def test_old_and_windows_engines_are_refused() -> None:
    assert "24.0" in doctor.check_version({"Version": "24.0", "ApiVersion": "1.43"}, {})
    for version in ({"ApiVersion": "1.39"}, {"ApiVersion": "?"}, {}):
        with pytest.raises(EngineProblem, match="too old"):
            doctor.check_version(version, {})
    with pytest.raises(EngineProblem, match="Linux containers"):
        doctor.check_version({"ApiVersion": "1.43"}, {"OSType": "windows"})


def test_the_runtime_must_be_known() -> None:
    assert doctor.check_runtime(GOOD, "runsc") == "runsc"
    assert "the engine's default" in doctor.check_runtime(GOOD, None)
    with pytest.raises(EngineProblem, match="only runc, runsc"):
        doctor.check_runtime(GOOD, "runcs")


@pytest.mark.parametrize("cpus", [0.001, 4.5])
def test_more_cores_than_there_are_cannot_be_had(cpus: float) -> None:
    assert doctor.check_cpus(GOOD, 4)
    with pytest.raises(EngineProblem, match=r"from 0\.01 to 4"):
        doctor.check_cpus(GOOD, cpus)


@pytest.mark.parametrize(
    "name", ["memory", "cpus", "pids", "workspace", "tmp", "files", "lifetime"]
)
@pytest.mark.parametrize("value", [0, -1, float("nan")])
def test_limits_of_nothing_are_refused(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"{name} must be positive"):
        Limits(**{name: value})  # type: ignore[arg-type]


def test_every_problem_of_a_profile_is_found_with_the_real_engine(engine: Engine) -> None:
    bad = Profile(image="no-such-image", runtime="no-such-runtime", limits=Limits(cpus=10_000))
    problems = {item.check: item.problem for item in diagnose(bad) if item.problem}
    assert set(problems) == {"cpus", "runtime", "image"}
    assert isinstance(problems["image"], ImageMissing)
    assert "docker pull no-such-image" in str(problems["image"])
    with pytest.raises(ConfigError):
        check_engine(bad)
    with pytest.raises(ImageUnfit, match="not the name of an image"):
        check_engine(Profile(image="No Name"))


def test_an_image_with_volumes_is_refused(engine: Engine) -> None:
    engine.call_now(
        "import_image_from_data",
        b"\0" * 1024,
        repository="vf-test-volumes",
        tag="1",
        changes=["VOLUME /data"],
    )
    try:
        with pytest.raises(ImageUnfit, match="/data"):
            check_engine(Profile(image="vf-test-volumes:1"))
    finally:
        engine.call_now("remove_image", "vf-test-volumes:1")


@pytest.mark.parametrize(("api", "can"), [("1.40", False), ("1.41", True), ("1.5x", False)])
def test_networks_without_their_host_take_docker_20(api: str, can: bool) -> None:
    assert features_of(GOOD, {"ApiVersion": api}).networks is can

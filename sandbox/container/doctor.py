"""Checks, before a run, that this machine can run sandboxes in containers; how to fix it if not."""

from __future__ import annotations

import platform
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vf.sandbox.container.address import Address
from vf.sandbox.container.disk import has_quotas
from vf.sandbox.container.docker_engine import (
    NOT_THERE,
    Engine,
    EngineProblem,
    EngineRefused,
    ImageMissing,
    ImageUnfit,
)
from vf.sandbox.container.features import Features, api_version, features_of
from vf.sandbox.container.hardening import DEFAULT_IMAGE, Entry, Profile
from vf.sandbox.container.image import inspected, with_packages
from vf.sandbox.container.kit import kit_of
from vf.sandbox.spec import pairs

OLDEST_API = (1, 40)
ROOT = "0:0"
KERNEL_LIMITS = {
    "MemoryLimit": ("memory", "cgroup_enable=memory"),
    "PidsLimit": ("number of processes", "CONFIG_CGROUP_PIDS"),
    "CpuCfsQuota": ("CPU time", "CONFIG_CFS_BANDWIDTH"),
}


@dataclass(frozen=True, slots=True)
class Finding:
    """The outcome of one check.

    Attributes:
        check: What was checked.
        outcome: What the check showed.
        problem: The error that a run would end with; None where all is well.
    """

    check: str
    outcome: str
    problem: EngineProblem | None = None


def check_engine(profile: Profile, address: Address | None = None) -> None:
    """Make sure that containers with this profile can be made; see :func:`prepare`.

    Args:
        profile: The settings of the containers.
        address: The engine's address; None: that of ``DOCKER_HOST``, or this machine's.

    Raises:
        ConfigError: If they cannot be made; the message says why, and how to fix it.
        SandboxError: If the engine stopped responding.
    """
    engine = Engine.connect(address)
    try:
        prepare(engine, profile)
    finally:
        engine.close()


def prepare(engine: Engine, profile: Profile) -> Profile:
    """Check everything and add packages, once before the first container.

    Where the image is not the default one, or could be changed from inside, the supervisor gets a
    Python of its own: see kit.py.

    Blocks: some milliseconds, or as long as it takes to build an image with new packages.

    Returns:
        The profile with the image that has the packages, and with the way into it.

    Raises:
        ConfigError: If containers cannot be made; the message says why, and how to fix it.
        SandboxError: If the engine stopped responding.
    """
    for finding in examine(engine, profile):
        if finding.problem:
            raise finding.problem
    image = with_packages(engine, profile.image, profile.packages)
    if profile.image == DEFAULT_IMAGE and not profile.writable:
        return replace(profile, image=image, packages=())
    config = (inspected(engine, image) or {}).get("Config") or {}
    entry = Entry(
        kit=kit_of(engine),
        env=pairs(pair.split("=", 1) for pair in config.get("Env") or () if "=" in pair),
        user=config.get("User") or ROOT,
        workdir=config.get("WorkingDir") or "/",
        quota=profile.writable and has_quotas(engine),
    )
    return replace(profile, image=image, packages=(), entry=entry)


def diagnose(profile: Profile, address: Address | None = None) -> list[Finding]:
    """Run all checks, even after the first problem. Blocks."""
    try:
        engine = Engine.connect(address)
    except EngineProblem as problem:
        return [Finding("engine", str(problem), problem)]
    try:
        return examine(engine, profile)
    finally:
        engine.close()


def examine(engine: Engine, profile: Profile) -> list[Finding]:
    """Run all checks and return their outcomes. Blocks.

    Raises:
        SandboxError: If the engine stopped responding.
    """
    info: dict[str, Any] = engine.call_now("info")
    version: dict[str, Any] = engine.call_now("version")
    features = features_of(info, version)
    findings = []

    def check(name: str, look: Callable[[], str]) -> None:
        try:
            findings.append(Finding(name, look()))
        except EngineProblem as problem:
            findings.append(Finding(name, str(problem), problem))

    check("engine", lambda: check_version(version, info))
    check("limits", lambda: check_limits(info))
    check("cpus", lambda: check_cpus(info, profile.limits.cpus))
    check("seccomp", lambda: check_seccomp(info, features))
    check("users", lambda: describe_users(features))
    check("ipc", lambda: describe_ipc(features))
    check("runtime", lambda: check_runtime(info, profile.runtime))
    covered = {mount.target for mount in profile.joined.mounts} if profile.joined else set[str]()
    check("image", lambda: check_image(engine, profile.image, covered))
    return findings


def check_version(version: Mapping[str, Any], info: Mapping[str, Any]) -> str:
    """Check that the engine is new enough and runs Linux.

    Raises:
        EngineProblem: If it is too old, or runs another system.
    """
    description = f"{version.get('Version', '?')}, API {version.get('ApiVersion', '?')}"
    if api_version(version) < OLDEST_API:
        raise EngineProblem(
            f"the engine is too old ({description}): it needs Docker 19.03 or newer"
        )
    if info.get("OSType", "linux") != "linux":
        raise EngineProblem("the engine runs Windows containers: switch it to Linux containers")
    return f"{description}, cgroup v{info.get('CgroupVersion', '1')}, {info.get('Driver', '?')}"


def check_limits(info: Mapping[str, Any]) -> str:
    """Check that the kernel enforces the limits that a container is given.

    Raises:
        EngineProblem: If the kernel would ignore a limit.
    """
    if info.get("CgroupDriver") == "none":
        raise EngineProblem(
            "the engine runs without root and without cgroups, so it enforces no limits: give it "
            "cgroup v2 with delegation (systemd: Delegate=cpu memory pids), or run it as root"
        )
    for key, (what, needs) in KERNEL_LIMITS.items():
        if not info.get(key, False):
            raise EngineProblem(
                f"the kernel does not limit the {what} of a container: boot it with {needs}, then "
                "restart the engine"
            )
    if not info.get("SwapLimit", False) and _may_swap():
        raise EngineProblem(
            "the kernel does not limit swap of a container, so its memory limit does not hold: "
            "turn swap off (`swapoff -a`), or start the kernel with swapaccount=1"
        )
    return "memory, processes and CPU time are enforced"


def check_cpus(info: Mapping[str, Any], cpus: float) -> str:
    """Check that the engine's machine has ``cpus`` cores.

    Raises:
        EngineProblem: If it has fewer.
    """
    cores = info.get("NCPU") or 0
    if not 0.01 <= cpus <= cores:
        raise EngineProblem(f"cpus = {cpus}: the engine's machine takes from 0.01 to {cores}")
    return f"{cpus} of {cores} cores"


def _may_swap() -> bool:
    """Return whether the kernel has swap; True where that is unknown."""
    if platform.system() != "Linux":
        return False  # the engine is in a virtual machine, whose swap is its own affair
    try:
        return len(Path("/proc/swaps").read_text().splitlines()) > 1
    except OSError:
        return True


def check_seccomp(info: Mapping[str, Any], features: Features) -> str:
    """Check that system calls are filtered.

    Raises:
        EngineProblem: If they are not filtered.
    """
    options = [str(option) for option in info.get("SecurityOptions") or ()]
    filters = [option for option in options if "name=seccomp" in option]
    if not filters:
        raise EngineProblem(
            "the engine does not filter system calls: it needs a kernel with CONFIG_SECCOMP_FILTER"
        )
    if features.own_seccomp:
        return "the list of calls that comes with vf-rl"
    if any("profile=unconfined" in option for option in filters):
        raise EngineProblem(
            "the engine takes no list of system calls with a container, and filters none itself: "
            "take `unconfined` out of its settings"
        )
    return "the engine's own list of calls: it takes no other with a container"


def describe_users(features: Features) -> str:
    """Describe the users that the model's code runs as."""
    first, last = features.uids[0], features.uids[-1]
    return f"a uid for each container, from {first} to {last}"


def describe_ipc(features: Features) -> str:
    """Describe the limits of System V IPC objects, which outlive processes."""
    if features.sysctls:
        return "shared memory, messages and semaphores are limited"
    return "what outlives its processes counts as memory only: the engine is rootless"


def check_runtime(info: Mapping[str, Any], runtime: str | None) -> str:
    """Check that the engine knows the runtime; None is its default.

    Raises:
        EngineProblem: If it does not know it.
    """
    runtimes = sorted(info.get("Runtimes") or {})
    if runtime is not None and runtime not in runtimes:
        raise EngineProblem(
            f"the engine has no runtime {runtime!r}, only {', '.join(runtimes)}: install it, add "
            'it to "runtimes" in the engine\'s daemon.json, and restart the engine'
        )
    return runtime or f"{info.get('DefaultRuntime', '?')} (the engine's default)"


def check_image(engine: Engine, image: str, covered: Collection[str] = ()) -> str:
    """Check that an image is on this machine and asks for nothing that would weaken the sandbox.

    Args:
        engine: The engine that has the image.
        image: The image's name.
        covered: The targets of other file systems that replace its volumes.

    Raises:
        ImageMissing: If the image is not on this machine.
        ImageUnfit: If its name is invalid, or it declares volumes.
    """
    try:
        image_info: dict[str, Any] = engine.call_now("inspect_image", image)
    except EngineRefused as error:
        if error.status != NOT_THERE:
            raise ImageUnfit(f"{image!r} is not the name of an image: {error}") from error
        if image == DEFAULT_IMAGE:
            fix = "build it with `vf-rl sandbox build`"
        else:
            fix = f"pull it with `docker pull {image}`, or use {DEFAULT_IMAGE!r}"
        raise ImageMissing(
            f"the image {image!r} is not on this machine, and nothing is pulled during a run: {fix}"
        ) from None
    volumes = sorted(set((image_info.get("Config") or {}).get("Volumes") or {}) - set(covered))
    if volumes:
        raise ImageUnfit(
            f"the image {image!r} declares volumes ({', '.join(volumes)}): code could fill the "
            "engine's disk through them. Use an image without"
        )
    return f"{image}, {image_info.get('Size', 0) / 2**20:.0f} MiB"

"""The settings of a container: as restrictive as possible; what weakens them is logged."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import resources
from typing import Any, Literal

from vf.sandbox.container.features import Features
from vf.sandbox.container.joined import Joined
from vf.sandbox.contract import Limits
from vf.sandbox.seccomp import seccomp_profile
from vf.sandbox.spec import Pairs, SandboxSpec, pairs
from vf.sandbox.uids import next_uids

log = logging.getLogger("vf.sandbox")

DEFAULT_IMAGE = "vf-sandbox:latest"
USER = "sandbox"  # the model's code has it in $USER; its uid is the container's own
WORKSPACE = "/workspace"
SHM = 16 * 2**20
OVERHEAD = 48 * 2**20  # bytes for the supervisor, an interpreter and the kernel's bookkeeping

FEWEST_PIDS = 16

# What outlives the processes that made it, and would fill the memory without them: segments of
# shared memory, which from now on end with their last process, messages and semaphores.
SYSCTLS = {
    "kernel.shm_rmid_forced": "1",
    "kernel.shmmax": str(SHM),
    "kernel.shmall": str(SHM // 4096),  # pages
    "kernel.msgmni": "64",  # queues, each of kernel.msgmnb = 16 KiB
    "kernel.sem": "250 16000 100 64",  # in a set, in all, in one operation, sets
}

# What uid 0 needs to start the model's code as another user and to kill it. The supervisor gives up
# uid 0 and keeps them; what it starts has none, nor can regain any: no-new-privileges.
SUPERVISOR_CAPABILITIES = ["KILL", "SETGID", "SETUID"]

# The supervisor's source is an argument and its modules come over the stream, so nothing has to be
# put into an image or shared with the engine's file system. It ends itself at the end of its
# lifetime; should it hang, the kernel's alarm ends it, and the container with it. As PID 1 it would
# ignore the alarm without a handler.
BOOTSTRAP = (
    "import os, signal, sys; signal.signal(signal.SIGALRM, lambda *_: os._exit(1)); "
    "signal.alarm(int(sys.argv.pop(1))); exec(compile(sys.argv.pop(1), 'supervisor', 'exec'))"
)
PYTHON = ["python3", "-I", "-S"]  # the image's own
# The kit's, through its loader: see kit.py. Its locale is in no image's power.
KIT = "/.vf"
KIT_PYTHON = [f"{KIT}/ld.so", "--library-path", f"{KIT}/lib", f"{KIT}/bin/python3", "-I", "-S"]
KIT_LOCALE = {"LC_ALL": "C"}
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"  # as Docker has it
ALARM_GRACE = 30.0  # seconds
# The engine's own list, and /dev: user 0 could replace /dev/null with a file or a pipe of its own.
# The file systems that are mounted below /dev stay writable.
READ_ONLY = [f"/proc/{name}" for name in ("bus", "fs", "irq", "sys", "sysrq-trigger")] + ["/dev"]


@dataclass(frozen=True, slots=True)
class Entry:
    """How the supervisor enters an image without the image's help.

    Attributes:
        kit: The engine's volume with a Python; see kit.py.
        env: The image's variables.
        user: The image's user; root, where it has none.
        workdir: The image's working directory.
        quota: Whether the engine bounds the size of a writable root.
    """

    kit: str
    env: Pairs
    user: str
    workdir: str
    quota: bool


@dataclass(frozen=True, slots=True)
class Profile:
    """The settings of a container.

    Attributes:
        image: Any image.
        limits: Its limits.
        network: "bridge" lets the model's code reach the network; "none" does not.
        runtime: A runtime other than the engine's default, such as "runsc".
        packages: Packages from PyPI, in pip's notation, that are added to the image before anything
            runs; see :func:`~vf.sandbox.container.image.with_packages`.
        writable: Whether the root can be written to, up to ``limits.disk`` bytes. Otherwise only
            the working directory, ``/tmp`` and ``/dev/shm`` can.
        user: The user that code runs as by default, like ``USER`` in a Dockerfile. None: a uid that
            only this container has; with a writable root, the image's user.
        workdir: The working directory. None: ``/workspace``; with a writable root, the image's.
        env: Environment variables of everything that runs inside, in addition to the image's; a
            mapping is turned into sorted pairs.
        entry: How the supervisor enters the image with a Python of its own. None: the image's own
            ``python3`` runs it. :func:`~vf.sandbox.container.doctor.prepare` decides.
        joined: What it shares with other containers of its episode, in place of ``network``.

    Raises:
        ValueError: If the network is neither, there are too few processes to run anything, the
            lifetime is infinite, temporary files leave no memory to run in, or the working
            directory is not an absolute path.
        TypeError: If ``packages`` is a string.
    """

    image: str = DEFAULT_IMAGE
    limits: Limits = field(default_factory=Limits)
    network: Literal["none", "bridge"] = "none"
    runtime: str | None = None
    packages: Sequence[str] = ()
    writable: bool = False
    user: str | None = None
    workdir: str | None = None
    env: Pairs | Mapping[str, str] = ()
    entry: Entry | None = None
    joined: Joined | None = None

    def __post_init__(self) -> None:
        """Check what depends on more than one field, and log a weakening."""
        object.__setattr__(self, "env", pairs(self.env))
        if self.network not in ("none", "bridge"):
            raise ValueError(f'network must be "none" or "bridge", got {self.network!r}')
        if isinstance(self.packages, str):
            raise TypeError(f"packages must be a list of names, got {self.packages!r}")
        object.__setattr__(self, "packages", tuple(self.packages))  # so that it can be a key
        if not math.isfinite(self.limits.lifetime):
            raise ValueError("lifetime must be finite: a container has to end by itself")
        if self.limits.pids < FEWEST_PIDS:
            raise ValueError(
                f"pids must be at least {FEWEST_PIDS}, got {self.limits.pids}: the "
                "supervisor and what keeps a program count too"
            )
        if self.workdir is not None and not self.workdir.startswith("/"):
            raise ValueError(f"workdir must be an absolute path, got {self.workdir!r}")
        files, what = self.limits.tmp + SHM, "tmp"
        if not self.writable:
            files, what = files + self.limits.workspace, "workspace + tmp"
        if files + OVERHEAD > self.limits.memory:
            raise ValueError(
                f"{what} + {SHM} in /dev/shm = {files} bytes, all of which count as memory, leave "
                f"less than {OVERHEAD} of memory = {self.limits.memory}"
            )
        if self.network != "none":
            log.warning(
                "sandboxes are weakened: code from the model can reach the network (network=%r)",
                self.network,
            )

    @property
    def prepared(self) -> bool:
        """Whether containers can be made with it."""
        return not self.packages and (self.entry is not None or not self.writable)

    @property
    def watched(self) -> bool:
        """Whether the size of its root has to be polled."""
        return self.writable and self.entry is not None and not self.entry.quota

    @property
    def code_user(self) -> str | None:
        """The user that code runs as by default; None for a uid that only the container has."""
        image_user = self.entry.user if self.entry and self.writable else None
        return image_user if self.user is None else self.user

    @property
    def code_workdir(self) -> str:
        """The working directory."""
        return self.workdir or (self.entry.workdir if self.entry and self.writable else WORKSPACE)

    @property
    def code_env(self) -> dict[str, str]:
        """The variables, the image's own among them where they are known."""
        return {**dict(self.entry.env if self.entry else ()), **dict(self.env)}


def profile_for(spec: SandboxSpec, base: Profile) -> Profile:
    """Return the settings of a task's container.

    Args:
        spec: The task's request, with an image or none: a build or a Compose file is built first.
        base: The values where the task requests nothing. Its packages are those of its own image.

    Raises:
        ValueError: If the spec names a build or a Compose file, or the fields do not fit together.
    """
    if spec.build is not None or spec.compose is not None:
        raise ValueError("the spec names no image: build it first")
    return replace(
        base,
        image=spec.image or base.image,
        packages=() if spec.image else base.packages,
        limits=spec.limits or base.limits,
        writable=base.writable if spec.writable is None else spec.writable,
        user=base.user if spec.user is None else spec.user,
        workdir=base.workdir if spec.workdir is None else spec.workdir,
        env={**dict(base.env), **dict(spec.env)},
        entry=None,
    )


def kit_mount(volume: str, *, read_only: bool = True) -> dict[str, Any]:
    """Return the engine's mount of the volume with the kit."""
    return {
        "Type": "volume",
        "Source": volume,
        "Target": KIT,
        "ReadOnly": read_only,
        "VolumeOptions": {"NoCopy": True},
    }


def host_config(profile: Profile, uids: tuple[int, int], features: Features) -> dict[str, Any]:
    """Return the engine's ``HostConfig`` for a profile.

    Args:
        profile: The container's settings.
        uids: The uid of the supervisor, and that of code without a user of its own.
        features: The engine's features.
    """
    limits = profile.limits
    security = ["no-new-privileges:true"]
    if features.own_seccomp:
        security.append(f"seccomp={seccomp_profile()}")

    def tmpfs(size: int, *, owner: int | None = None) -> str:
        shared = f"rw,exec,nosuid,nodev,size={int(size)},mode="
        if not features.tmpfs:
            return f"{shared}1777"
        own = f"0700,uid={owner},gid={owner}" if owner is not None else "1777"
        return f"{shared}{own},nr_inodes={int(limits.files)}"

    folders = {"/tmp": tmpfs(limits.tmp), "/dev/shm": tmpfs(SHM)}
    if not profile.writable:
        owner = None if profile.user else uids[1]
        folders[profile.code_workdir] = tmpfs(limits.workspace, owner=owner)
    nproc = features.nproc
    quota = profile.writable and profile.entry is not None and profile.entry.quota
    return {
        "NetworkMode": profile.network,
        "CapDrop": ["ALL"],
        "CapAdd": SUPERVISOR_CAPABILITIES,
        "SecurityOpt": security,
        "Privileged": False,
        "ReadonlyRootfs": not profile.writable,
        "ReadonlyPaths": READ_ONLY,
        "Tmpfs": folders,
        **({"Mounts": [kit_mount(profile.entry.kit)]} if profile.entry else {}),
        **({"StorageOpt": {"size": str(int(limits.disk))}} if quota else {}),
        "IpcMode": "private",
        **({"Sysctls": SYSCTLS} if features.sysctls else {}),
        "Memory": int(limits.memory),
        "MemorySwap": int(limits.memory),
        "NanoCpus": round(limits.cpus * 1e9),
        "PidsLimit": int(limits.pids),
        "OomScoreAdj": 500,  # if the host itself runs out, sandboxes go before the trainer
        "Ulimits": [
            {"Name": "core", "Soft": 0, "Hard": 0},
            {"Name": "nofile", "Soft": 4096, "Hard": 4096},
            {"Name": "memlock", "Soft": 65536, "Hard": 65536},
            *([{"Name": "nproc", "Soft": nproc, "Hard": nproc}] if nproc else []),
        ],
        "LogConfig": {"Type": "none", "Config": {}},
        "Init": False,  # the supervisor is PID 1, which nothing inside can kill
        "AutoRemove": True,
        "RestartPolicy": {"Name": "no", "MaximumRetryCount": 0},
        **({"Runtime": profile.runtime} if profile.runtime else {}),
    }


def container_settings(
    profile: Profile, labels: Mapping[str, str], features: Features
) -> dict[str, Any]:
    """Return the arguments of the SDK's ``create_container``.

    Args:
        profile: The container's settings, as :func:`~vf.sandbox.container.doctor.prepare` returns
            them.
        labels: The container's labels.
        features: The engine's features.
    """
    guard, uid = uids = next_uids(features.uids)
    limits, workdir = profile.limits, profile.code_workdir
    supervisor = (resources.files("vf.sandbox") / "supervisor.py").read_text("utf-8")
    flags = ["--guard", str(guard), "--user", profile.code_user or f"{uid}:{uid}"]
    flags += ["--workdir", workdir, "--lifetime", str(limits.lifetime)]
    variables = {}
    if profile.writable:
        # No file can outgrow the root, which cannot be looked at all the time.
        flags += ["--rlimit", f"FSIZE={int(limits.disk)}"]
    else:
        flags += ["--home", workdir]
        # No image's list of users has its uid: programs that ask for a name find it here.
        variables = {"LANG": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": "1"}
        variables |= {"USER": USER, "LOGNAME": USER} if profile.user is None else {}
    variables |= profile.code_env
    if profile.entry:
        # The image's variables are for the code: some would change how the supervisor starts.
        for name, value in {"PATH": PATH, **variables}.items():
            flags += ["--env", f"{name}={value}"]
        flags += ["--python", "python3"]
        variables = {**dict.fromkeys(variables, ""), **KIT_LOCALE}
    alarm = str(math.ceil(limits.lifetime + ALARM_GRACE))
    python = KIT_PYTHON if profile.entry else PYTHON
    return {
        "image": profile.image,
        # All of it as entry point: an image's own would otherwise come before.
        "entrypoint": [*python, "-c", BOOTSTRAP, alarm, supervisor, *flags],
        "command": [],
        "user": "0:0",
        "working_dir": "/",
        "hostname": "sandbox",
        "labels": dict(labels),
        "environment": variables,
        # The SDK would put this user's proxies in it, often with a password.
        "use_config_proxy": False,
        "stdin_open": True,
        "tty": False,
        "network_disabled": profile.network == "none",
        "healthcheck": {"Test": ["NONE"]},
        "host_config": host_config(profile, uids, features),
    }

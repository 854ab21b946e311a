"""Builds images for sandboxes, from a registry's image or, if none can be reached, from nothing.

A base image comes from a registry, or is there already. Otherwise ``debootstrap`` makes a small
Debian with Python from the distribution's packages, which needs root. Packages from PyPI are
fetched by this machine's pip and put in a layer of their own, so none of their code runs here, and
containers need no network for them.
"""

from __future__ import annotations

import hashlib
import io
import logging
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vf.runtime.errors import ConfigError, SandboxError
from vf.runtime.temporary import temporary_folder
from vf.sandbox.container.docker_engine import (
    NOT_THERE,
    Engine,
    EngineRefused,
    ImageMissing,
    ImageUnfit,
)
from vf.sandbox.container.hardening import DEFAULT_IMAGE
from vf.sandbox.container.reaper import this_process
from vf.sandbox.container.remains import named

log = logging.getLogger("vf.sandbox")

BASE = "python:3.12-slim"
SUITE = "bookworm"
BUILD_TIMEOUT = 600  # seconds that a step may be silent
RUN_TIMEOUT = 60.0  # seconds that a program of ``run_in`` may take
RECIPE = "2"  # counts up when what is built changes
LABEL = "vf.sandbox.recipe"
INSTALL_GIT = (
    "apt-get update -qq && apt-get install -y -qq --no-install-recommends git && apt-get clean"
    " && rm -rf /var/lib/apt/lists/*"
)
NOBODY = "65534:65534"
# Not needed to run code, and a third of the whole. resolv.conf and hostname are the builder's.
LEFT_OUT = (
    "var/cache/apt/*",
    "var/cache/debconf/*-old",
    "var/lib/apt/lists/*",
    "var/log/*",
    "usr/share/doc/*",
    "usr/share/info/*",
    "usr/share/locale/*",
    "usr/share/man/*",
    "etc/resolv.conf",
    "etc/hostname",
)
ABOUT_PYTHON = (
    "import sys, sysconfig; print('%d.%d' % sys.version_info[:2], sysconfig.get_platform());"
    "print(*[p for p in sys.path if p.endswith('-packages')], sep='\\n')"
)
BUILD_ATTEMPTS = 4
_CACHE_RACE = re.compile("unable to find image|no such image: sha256|unknown parent image", re.I)


def inspected(engine: Engine, image: str) -> dict[str, Any] | None:
    """Return the engine's description of an image; None if it is not on this machine. Blocks.

    Raises:
        SandboxError: If the engine does not respond.
    """
    try:
        image_info: dict[str, Any] = engine.call_now("inspect_image", image)
    except EngineRefused as error:
        if error.status == NOT_THERE:
            return None
        raise
    return image_info


def is_cache_race(reason: str) -> bool:
    """Return whether a build failed as another image, with which its cache compares, was removed.

    Asked again, the engine builds it.
    """
    return _CACHE_RACE.search(reason) is not None


def build(
    engine: Engine,
    *,
    tag: str = DEFAULT_IMAGE,
    base: str | None = None,
    packages: Sequence[str] = (),
    suite: str = SUITE,
    fresh: bool = False,
) -> str:
    """Build an image and return its name. Blocks, for minutes perhaps.

    Args:
        engine: The engine to build it.
        tag: The name of the new image.
        base: The image to start from. None: ``python:3.12-slim`` and Git, if it is available
            locally or can be pulled, else a Debian with both, made here.
        packages: The packages to install from PyPI, in pip's notation: ``numpy==2.1.0``. They
            weaken the sandbox by what they can do.
        suite: The Debian release, if one is made here.
        fresh: Build it even if it exists.

    Raises:
        ConfigError: If the base or a package cannot be fetched.
        SandboxError: If the engine failed.
    """
    key = f"{RECIPE} {base or ''} {' '.join(sorted(packages))}".strip()
    if not fresh and _label(engine, tag) == key:
        log.info("image %s is there", tag)
        return tag
    if base is not None:
        _fetch(engine, base)
        start = base
    elif _reachable(engine):
        start = _with_git(engine)
    else:
        log.info("no registry answers: making a Debian here")
        start = f"vf-sandbox-base:{suite}-{RECIPE}"
        if fresh or inspected(engine, start) is None:
            debootstrap(engine, start, suite)
    return _layer(engine, start, tag, packages, key)


def with_packages(engine: Engine, image: str, packages: Sequence[str]) -> str:
    """Return the name of an image with packages from PyPI on top, made if need be. Blocks.

    Raises:
        ImageMissing: If the image is not on this machine.
        ConfigError: If a package cannot be fetched.
        SandboxError: If the engine failed.
    """
    if not packages:
        return image
    image_info = inspected(engine, image)
    if image_info is None:
        raise ImageMissing(f"the image {image!r} is not on this machine: `vf-rl sandbox build`")
    log.warning("sandboxes get additional packages: %s", ", ".join(sorted(packages)))
    key = f"{RECIPE} {image_info['Id']} {' '.join(sorted(packages))}"
    tag = f"vf-sandbox:with-{hashlib.sha256(key.encode()).hexdigest()[:12]}"
    return tag if _label(engine, tag) == key else _layer(engine, image, tag, packages, key)


def _label(engine: Engine, tag: str) -> str | None:
    config = (inspected(engine, tag) or {}).get("Config") or {}
    label: str | None = (config.get("Labels") or {}).get(LABEL)
    return label


def _reachable(engine: Engine) -> bool:
    try:
        _fetch(engine, BASE)
    except ImageMissing:
        return False
    return True


def _fetch(engine: Engine, image: str) -> None:
    if inspected(engine, image) is not None:
        return
    name, _, tag = image.rpartition(":") if ":" in image.rsplit("/", 1)[-1] else (image, "", "")
    log.info("fetching %s", image)
    try:
        engine.call_now("pull", name, tag=tag or "latest")
    except SandboxError as error:
        raise ImageMissing(
            f"the image {image!r} is not on this machine and cannot be fetched: {error}"
        ) from error


def debootstrap(engine: Engine, tag: str, suite: str = SUITE) -> None:
    """Make a small Debian with Python and Git from its packages. Takes a minute or two.

    Raises:
        ConfigError: ``debootstrap`` is missing, this is not root, or it fails.
    """
    if shutil.which("debootstrap") is None:
        raise ConfigError(
            "without a registry the image is made by debootstrap: `apt-get install debootstrap`"
        )
    if os.geteuid() != 0:
        raise ConfigError("debootstrap needs root: `sudo vf-rl sandbox build`")
    with temporary_folder("image") as folder:
        root, archive = folder / "root", folder / "root.tar"
        # python3-minimal lacks json, ctypes and asyncio.
        command = ["debootstrap", "--force-check-gpg", "--variant=minbase"]
        command += ["--include=python3,git", suite, str(root)]
        done = subprocess.run(command, capture_output=True, text=True, errors="replace")
        if done.returncode != 0:
            end = "\n".join((done.stdout + done.stderr).strip().splitlines()[-15:])
            keys = "\nIts keys: `apt-get install debian-archive-keyring`" * ("eyring" in end)
            raise ConfigError(f"`{' '.join(command)}` failed:\n{end}{keys}")
        for pattern in LEFT_OUT:
            for path in root.glob(pattern):
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        with tarfile.open(archive, "w") as tar:
            tar.add(root, arcname=".")
        repository, _, version = tag.partition(":")
        engine.call_now(
            "import_image_from_file", str(archive), repository=repository, tag=version or "latest"
        )


def _with_git(engine: Engine) -> str:
    """Add Git to Debian's image with a package manager; the engine needs the network."""
    tag = f"vf-sandbox-base:{BASE.rpartition(':')[2]}-{RECIPE}"
    if inspected(engine, tag) is None:
        log.info("adding git to %s", BASE)
        with temporary_folder("image") as folder:
            (folder / "Dockerfile").write_text(f"FROM {BASE}\nRUN {INSTALL_GIT}\n")
            _build(engine, folder, tag, network="default")
    return tag


def _layer(engine: Engine, start: str, tag: str, packages: Sequence[str], key: str) -> str:
    """Build the packages on top of an image."""
    with temporary_folder("image") as folder:
        about = _python_of(engine, start)
        lines = [f"FROM {start}"]
        if packages:
            site = _install(start, about, packages, folder / "site")
            lines.append(f"COPY site {site}")
            lines.append(f"RUN python3 -I -m compileall -q {site} || true")
        lines.append(f'LABEL {LABEL}="{key}"')
        (folder / "Dockerfile").write_text("\n".join(lines) + "\n")
        _build(engine, folder, tag)
    return tag


def _as_root(info: tarfile.TarInfo) -> tarfile.TarInfo:
    info.uid = info.gid = 0
    info.uname = info.gname = "root"
    return info


def _build(engine: Engine, folder: Path, tag: str, network: str = "none") -> None:
    context = io.BytesIO()
    with tarfile.open(fileobj=context, mode="w") as tar:
        tar.add(folder, arcname=".", filter=_as_root)
    for attempt in range(BUILD_ATTEMPTS):
        context.seek(0)
        output: list[dict[str, Any]] = engine.call_now(
            "build",
            fileobj=context,
            custom_context=True,
            tag=tag,
            rm=True,
            forcerm=True,
            network_mode=network,
            decode=True,
            timeout=BUILD_TIMEOUT,
            use_config_proxy=False,
        )
        error = next((str(line["error"]) for line in output if "error" in line), None)
        if error is None:
            return
        if attempt == BUILD_ATTEMPTS - 1 or not is_cache_race(error):
            log_end = "".join(str(item.get("stream", "")) for item in output[-20:])
            raise ImageUnfit(f"image {tag} cannot be built: {error}\n{log_end}".strip())


def _install(image: str, about: list[str], packages: Sequence[str], folder: Path) -> str:
    """Fetch wheels for the image's Python into a folder; return where they belong inside."""
    version, platform = about[0].split()
    site = next(iter(about[1:]), None)
    if site is None:
        raise ImageUnfit(f"the Python of {image!r} has no folder for packages")
    machine = platform.rpartition("linux-")[2].replace("-", "_")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(folder)]
    command += ["--only-binary", ":all:", "--python-version", version, "--implementation", "cp"]
    for tags in ("manylinux_2_28", "manylinux_2_17", "manylinux2014", "linux"):
        command += ["--platform", f"{tags}_{machine}"]
    for package in packages:
        if package.startswith("-") or re.search(r"[\s;]", package.strip()):
            raise ConfigError(
                f"{package!r} is not the name of a package, like 'numpy' or 'numpy==2.1'"
            )
    done = subprocess.run([*command, *packages], capture_output=True, text=True, errors="replace")
    if done.returncode != 0:
        raise ConfigError(
            f"packages {', '.join(packages)} cannot be had for Python {version} on {machine}:\n"
            + "\n".join(done.stderr.strip().splitlines()[-8:])
        )
    return site


def _python_of(engine: Engine, image: str) -> list[str]:
    """Run the image's Python, hardened; return its version with the platform, and site folders."""
    try:
        code, output = run_in(engine, image, ["python3", "-c", ABOUT_PYTHON], user=NOBODY)
    except EngineRefused as error:
        raise ImageUnfit(f"the image {image!r} has no python3: {error}") from error
    if code != 0:
        raise ImageUnfit(f"the image {image!r} has no working python3: {output}")
    return output.splitlines()


def run_in(
    engine: Engine, image: str, command: list[str], *, user: str, **host_config: Any
) -> tuple[int, str]:
    """Run a program of an image in a separate, hardened container. Blocks.

    Args:
        engine: The engine to run it.
        image: The image's name.
        command: The program.
        user: The user that it runs as.
        host_config: Further settings of the container, as the engine calls them.

    Returns:
        Its exit code, and what it wrote.

    Raises:
        SandboxError: If the engine failed, or there is no such program.
    """
    settings = {"NetworkMode": "none", "ReadonlyRootfs": True, "CapDrop": ["ALL"], **host_config}
    with named(engine) as name:
        engine.call_now(
            "create_container",
            image,
            name=name,
            entrypoint=command,
            command=[],
            user=user,
            host_config=settings,
            labels=this_process().labels(RUN_TIMEOUT),  # in case no process is left to remove it
        )
        engine.call_now("start", name)
        code = engine.call_now("wait", name, timeout=RUN_TIMEOUT)["StatusCode"]
        output = engine.call_now("logs", name, stream=False).decode("utf-8", "replace").strip()
    return int(code), str(output)

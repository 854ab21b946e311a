"""This machine's equipment for training, and the commands that install what is missing."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

from vf.sandbox.container.doctor import diagnose
from vf.sandbox.container.hardening import Profile
from vf.trainer.installed_packages import OURS, Check
from vf.trainer.run.plan import size_text

FILES = 4096  # open files; each request to a server is one
SHARED_MEMORY = 2**30  # for processes that share GPUs' work: NCCL, vLLM's workers
DISK = 10 * 2**30  # for a model and some checkpoints
PATIENCE = 10.0  # seconds for nvidia-smi
QUERY = [
    "--query-gpu=name,memory.total,memory.free,driver_version",
    "--format=csv,noheader,nounits",
]
DRIVERS = {11: 450, 12: 525, 13: 580}  # the oldest that runs a version of CUDA


class Gpu(NamedTuple):
    """A GPU as the driver tells of it; memory in bytes."""

    name: str
    total: int
    free: int
    driver: str


def check_machine() -> list[Check]:
    """Look at what any run uses: Python, cores, memory, files, shared memory."""
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    text = f"{cores} core{'s' * (cores != 1)}"
    if sys.platform != "win32":
        text += f", {size_text(os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES'))} of memory"
    checks = [
        Check("Python", f"{platform.python_version()}, {OURS} {version(OURS)}, {sys.prefix}"),
        Check("CPU", text),
    ]
    if sys.platform != "win32":
        checks.append(check_files())
    shared = Path("/dev/shm")
    if shared.is_dir():
        checks.append(check_shared_memory(shutil.disk_usage(shared).total))
    return checks


def check_gpus(gpus: list[Gpu]) -> list[Check]:
    """Compare the GPUs that the driver shows with what torch can use.

    Args:
        gpus: The result of :func:`visible_gpus`.
    """
    try:
        import torch
    except ModuleNotFoundError:
        return []  # the check of packages says so
    count, cuda = torch.cuda.device_count(), torch.version.cuda
    checks = []
    if not gpus and count:  # without nvidia-smi, as in some containers
        for number in range(count):
            kind = torch.cuda.get_device_properties(number)
            checks.append(Check(f"GPU {number}", f"{kind.name}, {size_text(kind.total_memory)}"))
    for number, gpu in enumerate(gpus):
        text = f"{gpu.name}, {size_text(gpu.free)} free of {size_text(gpu.total)}"
        checks.append(Check(f"GPU {number}", f"{text}, driver {gpu.driver}"))
    build = f"{torch.__version__}, built for {f'CUDA {cuda}' if cuda else 'the CPU'}"
    if not checks:
        return [
            Check(
                "GPU", "none that NVIDIA's driver or torch shows: this machine trains on its CPU"
            ),
            Check("torch", build),
        ]
    return [*checks, check_build(build, cuda, gpus, count, torch.__version__)]


def check_build(build: str, cuda: str | None, gpus: list[Gpu], count: int, release: str) -> Check:
    """Say why torch does not see the GPUs that are there, if it does not.

    Args:
        build: The build, in words.
        cuda: The version of CUDA that it was built for; None for a CPU's build.
        gpus: The GPUs that the driver shows.
        count: GPUs that torch sees.
        release: torch's version.
    """
    if count:
        return Check("torch", build)
    if cuda is None:
        fix = f"pip install --force-reinstall torch=={release.partition('+')[0]}"
        return Check("torch", f"{build}, so it cannot use the GPU", "missing", fix)
    if os.environ.get("CUDA_VISIBLE_DEVICES") == "":
        build += ", and CUDA_VISIBLE_DEVICES is empty, which hides all GPUs"
        return Check("torch", build, "missing", "unset CUDA_VISIBLE_DEVICES")
    needed, driver = DRIVERS.get(int(cuda.split(".")[0])), gpus[0].driver if gpus else "0"
    if needed is not None and int(driver.split(".")[0]) < needed:
        build += f", which needs a driver of at least {needed}; {driver} is installed"
        return Check("torch", build, "missing", "update NVIDIA's driver (apt, dnf or nvidia.com)")
    return Check(
        "torch",
        f"{build}, but finds no GPU",
        "missing",
        'python -c "import torch; torch.cuda.init()"',
    )


def check_containers() -> Check:
    """See whether sandboxes can run in containers; `vf-rl sandbox doctor` says all of it."""
    findings = diagnose(Profile())
    for finding in findings:
        if finding.problem is not None:
            return Check("containers", str(finding.problem), "note", "vf-rl sandbox doctor")
    return Check("containers", f"the engine is {findings[0].outcome}")


def check_disk(folder: Path, needed: int | None = None) -> Check:
    """See whether a folder's disk has room.

    Args:
        folder: A folder, which need not exist yet.
        needed: Bytes that a run will write; where there is no run, 10 GiB are said to be good.
    """
    existing = folder.absolute()
    while not existing.exists():
        existing = existing.parent
    free = shutil.disk_usage(existing).free
    text = f"{size_text(free)} free where {folder}/ is"
    if needed is None and free < DISK:
        return Check("disk", f"{text}; a model and its checkpoints take more", "note")
    if needed is None:
        return Check("disk", text)
    text += f"; checkpoints take about {size_text(needed)}"
    if free >= needed:
        return Check("disk", text)
    fix = "lower trainer.args.save_total_limit, or set trainer.args.output_dir on another disk"
    return Check("disk", text, "missing", fix)


def check_files() -> Check:
    """See how many files a process may open."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY or hard >= FILES:
        most = "any number" if hard == resource.RLIM_INFINITY else f"up to {hard:,}"
        return Check("open files", f"{most}; {soft:,} unless a process asks for more")
    text = f"{hard:,} at most: hundreds of concurrent requests to a server need more"
    return Check("open files", text, "note", "ulimit -n 65536  # as root, or docker run --ulimit")


def check_shared_memory(total: int) -> Check:
    """Judge the size of ``/dev/shm``."""
    text = f"{size_text(total)} in /dev/shm"
    if total >= SHARED_MEMORY:
        return Check("shm", text)
    text += ", too little for NCCL and vLLM on several GPUs"
    return Check(
        "shm", text, "note", "mount -o remount,size=8G /dev/shm  # or docker run --shm-size=8g"
    )


def visible_gpus() -> list[Gpu]:
    """Return the GPUs that NVIDIA's driver shows; none where there is no ``nvidia-smi``."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    try:
        done = subprocess.run(
            [program, *QUERY], capture_output=True, text=True, timeout=PATIENCE, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return []
    return [gpu for line in done.stdout.splitlines() if (gpu := _gpu(line)) is not None]


def _gpu(line: str) -> Gpu | None:
    parts = [part.strip() for part in line.split(",")]
    try:
        name, total, free, driver = parts
        return Gpu(name, int(total) * 2**20, int(free) * 2**20, driver)
    except ValueError:
        return None

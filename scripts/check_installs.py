"""Check that the extras can be installed, alone and together: `python scripts/check_installs.py`.

pip resolves each combination without downloading a package: it reads metadata alone, from the index
where that serves it, else from the end of the wheel's file. A line for each says which versions it
found, or which two requirements conflict. torch is the version of `constraints/cpu.txt`, but where
vLLM pins another. Exit code: 1 if a combination cannot be installed.

The versions of vLLM that pyproject.toml allows are resolved one by one, too. Where the index lacks
something that one of them needs, that is reported, and is not a failure: no bound of this project's
is at fault.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PIP = "26.3"  # older ones download what they resolve
AT_ONCE = 2
TIMEOUT = 1800  # seconds, for one combination
# Tested one by one; a test compares them with the bounds in pyproject.toml.
VLLM = ("0.32.0", "0.33.0")
SHOWN = ("torch", "transformers", "vllm", "peft", "trl", "verifiers")
# All that a run on one machine may want beside vLLM.
TOGETHER = ("rubrics", "sandbox", "search", "data", "track")
CONFLICT = re.compile(r"^ {4}(?=The user requested|The constraint|\S+ \S+ depends on)(.*)$", re.M)


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


def requirements(project: dict[str, object], combination: Combination) -> list[str]:
    """Return what `pip install '.[EXTRAS]'` asks for; extras that name others are replaced."""
    name, extras = project["name"], project["optional-dependencies"]
    assert isinstance(extras, dict)
    own = re.compile(rf"{name}\[(.*)\]")

    def of(extra: str) -> list[str]:
        found: list[str] = []
        for line in extras[extra]:
            inner = own.fullmatch(line)
            found += [line] if inner is None else [x for e in inner[1].split(",") for x in of(e)]
        return found

    base = project["dependencies"]
    assert isinstance(base, list)
    wanted = [*base, *(line for extra in combination.extras for line in of(extra))]
    return [*wanted, f"vllm=={combination.vllm}"] if combination.vllm else wanted


def own_pip() -> list[str]:
    """Return the command of a pip that only reads metadata, installed in build/ where it is not."""
    folder = ROOT / "build" / f"pip-{PIP}"
    if not (folder / "pip").exists():
        wanted = ["install", "--quiet", "--no-deps", "--target", str(folder), f"pip=={PIP}"]
        subprocess.run([sys.executable, "-m", "pip", *wanted], check=True)
    return [sys.executable, str(folder / "pip")]


def resolve(pip: list[str], wanted: list[str], torch: str | None) -> tuple[bool, str]:
    """Return whether pip can install requirements, and the versions found or the conflict.

    Args:
        pip: Its command.
        wanted: The requirements.
        torch: Its pin, if it has one.
    """
    with tempfile.TemporaryDirectory() as folder:
        report, constraints = Path(folder) / "report.json", Path(folder) / "constraints.txt"
        constraints.write_text(torch or "")
        options = ["--dry-run", "--ignore-installed", "--use-feature=fast-deps"]
        command = [*pip, "install", *options, "--report", str(report), "-c", str(constraints)]
        try:
            done = subprocess.run(
                [*command, *wanted], text=True, capture_output=True, timeout=TIMEOUT
            )
        except subprocess.TimeoutExpired:
            return False, f"pip had not ended after {TIMEOUT} s"
        if done.returncode:
            return False, why(done.stdout + done.stderr)
        found = json.loads(report.read_text())["install"]
    versions = {each["metadata"]["name"].lower(): each["metadata"]["version"] for each in found}
    shown = " ".join(f"{name} {versions[name]}" for name in SHOWN if name in versions)
    return True, f"{len(versions)} packages: {shown}" if shown else f"{len(versions)} packages"


def why(said: str) -> str:
    """Return the requirements that conflict, or else pip's first error, on one line."""
    if conflict := CONFLICT.findall(said):
        return "CONFLICT: " + "; ".join(dict.fromkeys(line.strip() for line in conflict))
    errors = [line for line in said.splitlines() if line.startswith("ERROR: ")]
    missing = [line for line in errors if "No matching distribution" in line]
    return (missing or errors or said.splitlines() or ["pip failed and said nothing"])[0][:300]


def main() -> int:
    """Resolve them all, two at a time."""
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
    pip, started, failed = own_pip(), time.monotonic(), 0

    def check(combination: Combination) -> bool:
        began = time.monotonic()
        pin = None if "vllm" in combination.extras else torch
        good, said = resolve(pip, requirements(project, combination), pin)
        lacking = not good and combination.vllm is not None and "No matching" in said
        word = "ok" if good else "not in this index" if lacking else "FAILED"
        took = time.monotonic() - began
        print(f"{word:<7} {combination!s:<40} {took:4.0f} s  {said}", flush=True)
        return good or lacking

    with ThreadPoolExecutor(AT_ONCE) as pool:
        failed = sum(not good for good in pool.map(check, todo))
    print(f"{len(todo)} combinations, {failed} failed, {time.monotonic() - started:.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

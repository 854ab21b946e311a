"""Variables of Compose files: ``${NAME:-default}`` in values, and files of ``NAME=value`` lines."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vf.runtime.errors import ConfigError

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_OPERATOR = re.compile(r":?[-?+]")
_LINE = re.compile(
    r"""\s*(?:export\s+)?(?P<name>[A-Za-z_][A-Za-z0-9_.-]*)\s*=\s*
    (?:'(?P<raw>[^']*)'|"(?P<quoted>(?:[^"\\]|\\.)*)"|(?P<plain>[^'"].*?|))
    \s*(?:(?<=\s)\#.*)?""",
    re.VERBOSE,
)
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t"}


def interpolate(value: Any, variables: Mapping[str, str], location: str) -> Any:
    """Return a value of a YAML file with the variables in its texts replaced; keys stay.

    They are written ``$NAME``, ``${NAME}`` or its forms with ``-``, ``+`` and ``?``; ``$$`` is a
    dollar.

    Args:
        value: A value from the file.
        variables: The variables; none of this process's environment is used.
        location: The file's name, for errors.

    Raises:
        ConfigError: If a variable has neither a value nor a default; names its place.
    """
    if isinstance(value, dict):
        return {
            key: interpolate(
                item, variables, f"{location}.{key}" if ": " in location else f"{location}: {key}"
            )
            for key, item in value.items()
        }
    if isinstance(value, list):
        return [
            interpolate(item, variables, f"{location}[{index}]") for index, item in enumerate(value)
        ]
    if isinstance(value, str) and "$" in value:
        try:
            return _until(value, variables, end=None)[0]
        except ValueError as error:
            raise ConfigError(f"{location}: {error}, in {value!r}") from None
    return value


def read_variables(path: Path, variables: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that a file of ``NAME=value`` lines sets.

    Args:
        path: The file.
        variables: The variables that its values can refer to, beside those of the lines before.

    Raises:
        ConfigError: If it cannot be read, or a line is malformed; names it.
    """
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from None
    assignments: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        parts = _LINE.fullmatch(line)
        if parts is None:
            raise ConfigError(f"{path}:{number}: {line!r} is not NAME=value")
        value = parts["raw"]
        if value is None:
            value = parts["plain"] or ""
            if parts["quoted"] is not None:
                value = re.sub(r"\\(.)", lambda m: _ESCAPES.get(m[1], m[1]), parts["quoted"])
            value = interpolate(value, {**assignments, **variables}, f"{path}:{number}")
        assignments[parts["name"]] = value
    return assignments


def _until(text: str, variables: Mapping[str, str], end: str | None) -> tuple[str, str]:
    """Replace variables up to an unmatched ``end``; return that text, and the rest after it.

    Raises:
        ValueError: If a variable has no value, or the text is malformed.
    """
    done: list[str] = []
    while text:
        if end is not None and text[0] == end:
            return "".join(done), text[1:]
        if text[0] != "$":
            done.append(text[0])
            text = text[1:]
        elif text[1:2] == "$":
            done.append("$")
            text = text[2:]
        elif text[1:2] == "{":
            value, text = _braced(text[2:], variables)
            done.append(value)
        elif name := _NAME.match(text, 1):
            done.append(_value(name[0], variables))
            text = text[name.end() :]
        else:
            raise ValueError("a dollar sign is written $$")
    if end is not None:
        raise ValueError("a brace is not closed")
    return "".join(done), ""


def _braced(text: str, variables: Mapping[str, str]) -> tuple[str, str]:
    name = _NAME.match(text)
    if name is None:
        raise ValueError("no name follows ${")
    text = text[name.end() :]
    if text[:1] == "}":
        return _value(name[0], variables), text[1:]
    operator = _OPERATOR.match(text)
    if operator is None:
        raise ValueError(f"${{{name[0]} is followed by neither }}, -, + nor ?")
    # What is not used may lack variables of its own.
    value = variables.get(name[0])
    present = bool(value) if operator[0].startswith(":") else value is not None
    used = present if operator[0].endswith("+") else not present
    other, rest = _until(text[operator.end() :], variables if used else _Any(), "}")
    if operator[0].endswith("+"):
        return (other if present else ""), rest
    if present:
        assert value is not None
        return value, rest
    if operator[0].endswith("?"):
        raise ValueError(other or f"the variable {name[0]} is not set")
    return other, rest


class _Any(dict[str, str]):
    """Has every variable."""

    def get(self, key: str, default: Any = None) -> Any:
        return ""


def _value(name: str, variables: Mapping[str, str]) -> str:
    value = variables.get(name)
    if value is None:
        raise ValueError(
            f"the variable {name} is not set, and has no default (${{{name}:-default}})"
        )
    return value

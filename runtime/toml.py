"""Settings from TOML: read, overridden and checked, with errors that name the key and the fix."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, TypeVar, get_args, get_origin

from pydantic import AfterValidator, BaseModel, Tag, ValidationError
from pydantic.fields import FieldInfo

from vf.runtime.api_keys import check_variable
from vf.runtime.errors import ConfigError, did_you_mean
from vf.runtime.parse import parse_toml

Table = TypeVar("Table", bound=BaseModel)
KeyVariable = Annotated[str, AfterValidator(check_variable)]  # the name of one with an API key
EXPECTED = "Input should be "  # as pydantic says what a value is not
MANY = 20  # more names than this are not worth listing in a message


def read_toml(path: Path) -> dict[str, Any]:
    """Return the content of a TOML file.

    Raises:
        ConfigError: If the file is missing, unreadable or not TOML.
    """
    try:
        return parse_toml(path.read_text(encoding="utf-8-sig"))  # Windows editors add a mark
    except FileNotFoundError:
        near = did_you_mean(path.name, [file.name for file in path.parent.glob("*.toml")])
        raise ConfigError(f"there is no file {path}{'.' * bool(near)}{near}") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{path} is not UTF-8 text: {error.reason} at byte {error.start}"
        ) from None
    except ValueError as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from error


def override(raw: dict[str, Any], setting: str, where: Callable[[str], list[str]]) -> None:
    """Apply one ``--set`` to a config given as nested dicts.

    Args:
        raw: The config, changed in place.
        setting: ``key=value``. The value is parsed as TOML; if that fails, it is text.
        where: Maps a key to the names of the tables that lead to it, followed by its own name.

    Raises:
        ConfigError: If the setting has another form, or its path leads through something that is
            not a table.
    """
    key, equals, text = setting.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"--set {setting!r}: must be of the form key=value")
    try:
        value = parse_toml(f"value = {text}")["value"]
    except ValueError:
        value = text.strip()
    path = where(key)
    table: Any = raw
    for part, key in pairwise(path):
        table = table[int(part)] if isinstance(table, list) else table.setdefault(part, {})
        if isinstance(table, list) and not (key.isdecimal() and int(key) < len(table)):
            raise ConfigError(
                f"--set {setting!r}: there are {len(table)} of {part!r}; name one by its number, "
                f"from {part}.0 to {part}.{len(table) - 1}"
            )
        if not isinstance(table, dict | list):
            raise ConfigError(f"--set {setting!r}: {part!r} is not a table")
    if isinstance(table, list):
        table[int(path[-1])] = value
    else:
        table[path[-1]] = value


def checked(model: type[Table], raw: Mapping[str, Any], *, under: str = "") -> Table:
    """Return raw settings as an instance of their model.

    Args:
        model: The pydantic model.
        raw: The settings as nested dicts.
        under: Path of the table that ``raw`` is, for the messages; the whole file by default.

    Raises:
        ConfigError: If a key or value is wrong. All problems are listed, one per line.
    """
    try:
        return model.model_validate(raw)
    except ValidationError as error:
        problems = _joined(model, error.errors(include_url=False), raw)
        lines = [_explain(model, problem, under, raw) for problem in problems]
        raise ConfigError("\n".join(dict.fromkeys(lines))) from None


def _joined(root: type[BaseModel], problems: Sequence[Any], raw: Any) -> list[dict[str, Any]]:
    """Make one of the problems of a value that fits no member of a union: pydantic has one each."""
    joined: list[dict[str, Any]] = []
    by_value: dict[tuple[str, str], dict[str, Any]] = {}
    for problem in problems:
        value = (_locate(root, problem["loc"], raw)[0], repr(problem["input"]))
        before = by_value.get(value)
        if before is None or not problem["msg"].startswith(EXPECTED):
            joined.append(dict(problem))
            if problem["msg"].startswith(EXPECTED):
                by_value[value] = joined[-1]
        elif (expected := problem["msg"].removeprefix(EXPECTED)) not in before["msg"]:
            before["msg"] += f" or {expected}"
    return joined


def _explain(root: type[BaseModel], problem: Any, under: str, raw: Any) -> str:
    where, table, field = _locate(root, problem["loc"], raw)
    where = f"{under}.{where}".strip(".")
    description = " ".join((field.description or "").split()) if field else ""
    match problem["type"]:
        case "extra_forbidden":
            fields = table.model_fields if table else {}
            hint = _hint(root, table, str(problem["loc"][-1]), where)
            names = "see docs/reference.md" if len(fields) > MANY else ", ".join(fields)
            return f"{where}: unknown key.{hint} Known here: {names}"
        case "missing":
            return f"{where}: missing. {description}"
        case "model_type" | "model_attributes_type" | "dict_type":
            message = f"{where} = {problem['input']!r}: must be a table, [{where}]. {description}"
            return message.rstrip()
        case "union_tag_invalid":  # the function that returns the tag is named after its key
            key, given = problem["ctx"]["discriminator"].strip("_()"), problem["ctx"]["tag"]
            tags = problem["ctx"]["expected_tags"].replace("'", "").split(", ")
            hint = did_you_mean(given, tags)
            return f"{where}.{key} = {given!r}: unknown.{hint} Known: {', '.join(tags)}"
        case "value_error":
            message = problem["msg"].removeprefix("Value error, ")
            return f"{where}: {message}" if where else message
    return f"{where} = {problem['input']!r}: {problem['msg']}. {description}".rstrip()


def _hint(root: type[BaseModel], table: type[BaseModel] | None, key: str, where: str) -> str:
    """Return what to do about an unknown key: another name, or another table."""
    here = table.model_fields if table else {}
    homes: dict[str, list[str]] = {}
    for path, section in _tables(root):
        for name in section.model_fields:
            if path not in homes.setdefault(name, []):
                homes[name].append(path)
    if key in homes and (near := difflib.get_close_matches(key, here, n=1, cutoff=0.85)):
        return f" Did you mean {near[0]!r}? {key!r} belongs {_in(homes[key])}."
    if key in homes:
        return f" It belongs {_in(homes[key])}."
    free = here.get("args")
    holds_any = free is not None and get_origin(free.annotation) is dict
    alike = difflib.get_close_matches(key, here, n=1, cutoff=0.75) or not holds_any
    if alike and (hint := did_you_mean(key, here)):
        return hint
    if near := difflib.get_close_matches(key, homes, n=1, cutoff=0.75):
        return f" Did you mean {near[0]!r}? It belongs {_in(homes[near[0]])}."
    if holds_any:
        return f" Arguments of its own belong in [{where.rpartition('.')[0]}.args]."
    return ""


def _tables(model: type[BaseModel], path: str = "") -> Iterator[tuple[str, type[BaseModel]]]:
    """Yield a table and all tables inside it, with their paths."""
    yield path, model
    for name, field in model.model_fields.items():
        for section in _models(field.annotation):
            yield from _tables(section, f"{path}.{name}".removeprefix("."))


def _models(kind: Any) -> Iterator[type[BaseModel]]:
    """Yield the tables' models inside an annotation."""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        yield kind
    for argument in get_args(kind):
        yield from _models(argument)


def _in(paths: list[str]) -> str:
    """Return the places of a key, in words."""
    named = [f"in [{path}]" if path else "at the top, before the first table" for path in paths]
    return " or ".join(named)


def _locate(
    root: type[BaseModel], loc: tuple[Any, ...], raw: Any
) -> tuple[str, type[BaseModel] | None, FieldInfo | None]:
    """Return where a problem is: its key as in the TOML, the table's model, and the last field."""
    kind: Any = root
    where, table, field = "", None, None
    for part in loc:
        listed, raw = isinstance(raw, list), _inside(raw, part)
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            table, field = kind, kind.model_fields.get(str(part))
            where, kind = f"{where}.{part}", _optional(field.annotation) if field else None
        elif isinstance(part, int):
            # A single table may be written for a list of one; a run's are named as --set does.
            tables = f".{part}" if where == ".env" else f"[{part}]"
            where, kind = f"{where}{tables if listed else ''}", _table(kind)
        elif get_origin(kind) is dict:
            where, kind = f"{where}.{part}", _table(kind)
        else:  # pydantic names the member of a union that it tried; the TOML has no such table
            kind = next(
                (member for member in get_args(kind) if Tag(str(part)) in get_args(member)), None
            )
            kind = _table(kind)
    return where.removeprefix("."), table, field


def _inside(raw: Any, part: Any) -> Any:
    """Return what raw settings have under a key or number.

    A table is the first of its list, and stands for the member of a union that pydantic names.
    """
    try:
        return raw[part]
    except (KeyError, IndexError, TypeError):
        return raw


def _optional(kind: Any) -> Any:
    """Return what may be None in ``Table | None``; anything else as it is."""
    kinds = [kind for kind in get_args(kind) if kind is not type(None)]
    return kinds[0] if get_origin(kind) is UnionType and len(kinds) == 1 else kind


def _table(kind: Any) -> Any:
    """Return the table's model inside an annotation such as ``list[Table]``, if there is one."""
    return next(_models(kind), None)

"""Python objects described as JSON, to find out whether they are still what they were.

Two descriptions of unchanged objects are the same in every process: nothing in them depends on
an address, on the order of a set, or on how a file is formatted. Functions are described by
their source, by what they hold (defaults, closures, arguments of a partial) and, as far as it is
the author's, by the code and the constants that they use.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import json
import re
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path, PurePath
from types import (
    BuiltinFunctionType,
    FunctionType,
    MappingProxyType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
)
from typing import Any

from vf.runtime.source_code import Source, code_of, fields_of, module_source, source_of

_MOST_TEXT = 4000  # characters of a constant; a longer one is given by its digest
_MOST_DEPTH = 12
# Of the standard library: types whose instances are what they are made of.
_PLAIN = ("builtins", "collections", "datetime", "decimal", "fractions", "operator", "string")
_SECRET = re.compile(r"(^|[_-])(api_?key|key|token|secret|password|authorization)$", re.IGNORECASE)


class Description:
    """Describes objects, and collects the code that they consist of.

    Secrets (whatever is called a key, token, secret or password) are left out.

    Args:
        follows: Whether the code of a module is looked at. Of other code only the name is given:
            it is that of an installed package, which has a version.
        opens: Whether the attributes of an instance are given, by the module of its class.
        opaque: Types of which instances are given by their type alone.
        without: Attributes of classes of these types that are left out, with the statements
            that assign them: they are described elsewhere.

    Attributes:
        code: By ``module:name``: the source of functions, and constants.
    """

    def __init__(
        self,
        follows: Callable[[str], bool],
        opens: Callable[[str], bool],
        opaque: type | tuple[type, ...] = (),
        without: Collection[str] = (),
    ) -> None:
        self.code: dict[str, Any] = {}
        self._follows, self._opens = follows, opens
        self._opaque, self._without = opaque, without
        self._seen: dict[int, object] = {}  # kept alive, so that no address is used twice
        self._path: list[int] = []

    def of(self, value: Any) -> Any:
        """Return a value as JSON, and note the code that it consists of."""
        if value is None or isinstance(value, bool | str) or type(value) is int:
            return _short(value)
        if isinstance(value, float):
            return value if abs(value) < float("inf") else repr(value)
        if id(value) in self._path or len(self._path) > _MOST_DEPTH:
            return f"({_type_name(value)})"
        self._path.append(id(value))
        try:
            return _short(self._inner(value))
        finally:
            self._path.pop()

    def _inner(self, value: Any) -> Any:
        match value:
            case Enum():
                return {"enum": f"{_type_name(value)}.{value.name}", "value": self.of(value.value)}
            case PurePath() | int():
                return str(value)
            case re.Pattern():
                return {"pattern": self.of(value.pattern), "flags": value.flags}
            case dict() | MappingProxyType():
                return self._named(value.items())
            case list() | tuple():
                return [self.of(item) for item in value]
            case set() | frozenset():
                return {"set": sorted((self.of(item) for item in value), key=_order)}
            case ModuleType():
                return f"module {value.__name__}"
            case type():
                return self._class(value)
            case FunctionType():
                return self._function(value)
            case MethodType():
                return {"method": self.of(value.__func__), "of": self.of(value.__self__)}
            case functools.partial() | functools.partialmethod():
                return {
                    "partial": self.of(value.func),
                    "args": self.of(value.args),
                    "keywords": self.of(value.keywords),
                }
            case BuiltinFunctionType():
                return f"{value.__module__}:{value.__qualname__}"
        inner = _inside(value)
        return self._instance(value) if inner is value else self.of(inner)

    def _named(self, items: Iterable[tuple[Any, Any]]) -> dict[str, Any]:
        named = {}
        for key, value in items:
            name = key if isinstance(key, str) else _order(self.of(key))
            if not is_secret(name, value):
                named[name] = self.of(value)
        return named

    def _instance(self, value: Any) -> Any:
        kind = type(value)
        if isinstance(value, self._opaque):
            return f"({_type_name(value)})"
        if is_dataclass(value):
            held = {field.name: getattr(value, field.name, None) for field in fields(value)}
        elif self._opens(kind.__module__):
            slots = [name for base in kind.__mro__ for name in vars(base).get("__slots__", ())]
            held = {name: getattr(value, name) for name in slots if hasattr(value, name)}
            held |= getattr(value, "__dict__", {})
        else:
            try:
                view = memoryview(value)  # of bytes, or of an array
            except (TypeError, ValueError, BufferError):
                return self._plain(value)
            data = b"" if view.format == "O" else view.tobytes()  # not the addresses of objects
            return f"({_type_name(value)} of {view.nbytes} bytes, {_digest(data)})"
        self._class(kind)
        return {"type": _type_name(value), **self._named(sorted(held.items()))}

    def _plain(self, value: Any) -> Any:
        """Return what pickle would keep of a value, if that is all there is to it."""
        try:
            reduced = value.__reduce_ex__(4) if type(value).__module__ in _PLAIN else ""
        except TypeError:  # a generator, say
            reduced = ""
        if isinstance(reduced, str):
            return f"({_type_name(value)})"
        _, *parts = reduced  # from the fourth on, they are iterators over what it holds
        held = [
            self.of(part if at < 2 or part is None else [*part]) for at, part in enumerate(parts)
        ]
        return {"type": _type_name(value), "holds": held}

    def _function(self, fn: FunctionType) -> Any:
        name = _name(fn)
        followed = self._follows(_home(fn))
        if followed:
            self._add_function(fn)
        if not followed and not self._opens(fn.__module__ or ""):
            return name
        cells = zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True)
        held = {
            "defaults": self.of(list(fn.__defaults__ or ())),
            "keywords": self._named((fn.__kwdefaults__ or {}).items()),
            "holds": self._named((k, _content(cell)) for k, cell in cells if k != "__class__"),
            "attributes": self._named((k, v) for k, v in vars(fn).items() if k[:2] != "__"),
        }
        held = {key: part for key, part in held.items() if part}
        return {"function": name, **held} if held else name

    def _add_function(self, fn: FunctionType, without: Collection[str] = ()) -> None:
        if id(fn) in self._seen:
            return
        self._seen[id(fn)] = fn
        source = source_of(fn, without)
        if source is None:
            self._add(_name(fn), f"(no source) {_digest(code_of(fn).encode())}")
            source = Source("", tuple(fn.__code__.co_names))
        else:
            self._add(_name(fn), source.text)
        for name in source.names:
            self._add_used(fn.__globals__, fn.__module__, name)
        package = fn.__globals__.get("__package__") or ""
        for name, parts in source.imports:
            self._add_imported(package, name, parts)

    def _add_used(self, names: Mapping[str, Any], module: str, name: str) -> None:
        """Describe what code takes from its module: functions, classes, and constants."""
        first, *rest = name.split(".")
        if first not in names:
            return  # a builtin
        value = names[first]
        while isinstance(value, ModuleType) and rest and self._follows(value.__name__):
            module, first = value.__name__, rest.pop(0)
            value = getattr(value, first, None)
        if isinstance(value, FunctionType | type):
            if self._follows(value.__module__):
                self._add_held(f"{module}:{first}", self.of(value))
        elif not isinstance(value, ModuleType | BuiltinFunctionType):
            self._add(f"{module}:{first}", self.of(value))

    def _add_imported(self, package: str, name: str, parts: Iterable[str] = ()) -> None:
        """Describe a module that is only imported while a function runs, and what it imports."""
        try:
            absolute = importlib.util.resolve_name(name, package)
            spec = importlib.util.find_spec(absolute) if self._follows(absolute) else None
        except Exception:  # of its package, which is imported: whoever calls the function sees it
            return
        if spec is None:
            return
        folders = spec.submodule_search_locations
        inner = absolute.rpartition(".")[0] if folders is None else absolute
        self._add_file(absolute, Path(spec.origin or ""), inner)
        for folder in folders or ():
            for part in parts:  # of a package: they may be modules
                module = f"{absolute}.{part}"
                self._add_file(module, Path(folder, f"{part}.py"), absolute)
                self._add_file(module, Path(folder, part, "__init__.py"), module)

    def _add_file(self, module: str, file: Path, package: str) -> None:
        if module in self.code or file.suffix != ".py":
            return
        try:
            source = module_source(file.read_text(encoding="utf-8"))
        except (OSError, ValueError, SyntaxError):
            return
        self._add(module, source.text)
        for name, parts in source.imports:
            self._add_imported(package, name, parts)

    def _class(self, kind: type) -> str:
        name = f"{kind.__module__}:{kind.__qualname__}"
        if self._follows(kind.__module__) and id(kind) not in self._seen:
            self._seen[id(kind)] = kind
            without = self._without if issubclass(kind, self._opaque or ()) else ()
            for key, member in sorted(vars(kind).items()):
                if key not in without:
                    self._add_member(name, key, member, without)
            if not without and (declared := fields_of(kind)) is not None:
                self._add(f"{name} fields", declared.text)
                for used in declared.names:
                    self._add_used(vars(sys.modules[kind.__module__]), kind.__module__, used)
            for base in kind.__bases__:
                self._class(base)
        return name

    def _add_member(self, name: str, key: str, member: Any, without: Collection[str]) -> None:
        dunder = key.startswith("__")
        for inner in _parts(member):
            if isinstance(inner, FunctionType):
                made = dunder and inner.__code__.co_filename == "<string>"  # by dataclass
                if self._follows(_home(inner)) and not made:
                    # Values that `__init__` sets are described; those of `reset` are not known.
                    self._add_function(inner, without if key == "__init__" else ())
                    self._add_held(f"{name}.{key}", self.of(inner))
            elif not (dunder or key.startswith("_abc") or isinstance(inner, MemberDescriptorType)):
                self._add(f"{name}.{key}", self.of(member))

    def _add_held(self, name: str, described: Any) -> None:
        """Note what a function holds beside its code."""
        if isinstance(described, dict):
            self._add(f"{name} holds", {k: v for k, v in described.items() if k != "function"})

    def _add(self, name: str, what: Any) -> None:
        """Note a piece of code; lambdas share a name."""
        number, key = 1, name
        while key in self.code and self.code[key] != what:
            number += 1
            key = f"{name} ({number})"
        self.code[key] = what


def is_secret(name: str, value: object) -> bool:
    """Return whether a value is a text that its name calls a key, token, secret or password."""
    return isinstance(value, str) and _SECRET.search(name) is not None


def _parts(member: Any) -> list[Any]:
    """Return the functions of a member of a class; itself, if it is none."""
    if isinstance(member, property):
        return [
            function for function in (member.fget, member.fset, member.fdel) if function is not None
        ]
    return [_inside(member)]


def _inside(value: Any) -> Any:
    """Return the function in a property, a class method, a cached function and the like."""
    match value:
        case staticmethod() | classmethod():
            return value.__func__
        case property():
            return value.fget
        case functools.cached_property():
            return value.func
    wrapped = getattr(value, "__wrapped__", value)
    return wrapped if type(value).__module__ == "functools" else value


def _name(fn: FunctionType) -> str:
    return f"{fn.__module__}:{fn.__qualname__}"


def _home(fn: FunctionType) -> str:
    """Return the module that a function was written in, whatever it claims to wrap."""
    return str(fn.__globals__.get("__name__", ""))


def _type_name(value: object) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not set yet
        return None


def _order(described: Any) -> str:
    return json.dumps(described, sort_keys=True, ensure_ascii=False)


def _short(described: Any) -> Any:
    """Return a description, or its digest where it is long."""
    if isinstance(described, bool | int | float) or described is None:
        return described
    text = described if isinstance(described, str) else _order(described)
    if len(text) <= _MOST_TEXT:
        return described
    return f"({type(described).__name__} of {len(described)}, {_digest(text.encode())})"


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=8).hexdigest()

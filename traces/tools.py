"""Tools: typed Python functions that a model may call.

The JSON schema comes from the signature (through pydantic) and the descriptions from the
Google-style docstring, so a tool is written once, as an ordinary function.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from types import MethodType
from typing import Any, Literal, TypeVar, get_type_hints
from weakref import WeakKeyDictionary

import docstring_parser
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PydanticUserError,
    ValidationError,
    create_model,
)

from vf.runtime.errors import ConfigError

F = TypeVar("F", bound=Callable[..., Any])
_MARK = "__vf_tool__"

ArgumentFault = Literal["invalid_json", "invalid_arguments"]
# Says what is wrong with a call's arguments, for the model; nothing if they are right.
FindFault = Callable[[dict[str, Any]], str]


def tool(fn: F | None = None) -> F:
    """Mark an environment's method (or any function) as a tool.

    Example::

        class Shop(vf.Environment):
            @vf.tool
            def price(self, item: str) -> float:
                \"\"\"Look up the price of an item.

                Args:
                    item: The item's name.
                \"\"\"
                return self.prices[item]

    Raises:
        ConfigError: If it is called, as ``@vf.tool()``, or put on something that is no function.
    """
    if fn is None:
        raise ConfigError("write @vf.tool, without brackets: it takes no arguments")
    if not callable(fn) and not isinstance(fn, staticmethod | classmethod):
        raise ConfigError(f"@vf.tool marks functions, not {type(fn).__name__}")
    setattr(fn, _MARK, True)
    return fn


def is_tool(value: object) -> bool:
    """Return whether ``value`` was marked with :func:`tool`, be it a static or class method."""
    inner = getattr(value, "__func__", value)
    return getattr(value, _MARK, False) is True or getattr(inner, _MARK, False) is True


def tool_methods(kind: type) -> tuple[str, ...]:
    """Return the names of a class's methods that were marked with :func:`tool`.

    Raises:
        ConfigError: If one takes no ``self``, so that its first argument would be taken for that.
    """
    marked = [(name, value) for name, value in inspect.getmembers_static(kind) if is_tool(value)]
    for _, value in marked:
        _check_bound(value)
    return tuple(name for name, _ in marked)


def _check_bound(value: object) -> None:
    """See that a tool that is written in a class has a parameter for what it is bound to.

    Raises:
        ConfigError: If it has none; the message says what to write.
    """
    own = "cls" if isinstance(value, classmethod) else "self"
    function = value.__func__ if isinstance(value, classmethod) else value
    if not inspect.isfunction(function):  # a static method, say
        return
    parameters = list(inspect.signature(function).parameters.values())
    if parameters and (
        parameters[0].name in ("self", "cls")
        or parameters[0].kind is inspect.Parameter.VAR_POSITIONAL
    ):
        return
    start = "async def" if inspect.iscoroutinefunction(function) else "def"
    name = function.__name__
    written = ", ".join([own, *map(_written, parameters)])
    raise ConfigError(
        f"tool {name!r}{_location(function)}: its first parameter must be {own}: "
        f"`{start} {name}({written})`; or put @staticmethod under @vf.tool, if it needs no {own}"
    )


def _written(parameter: inspect.Parameter) -> str:
    """Return a parameter as it is written, also where annotations are kept as text."""
    if not isinstance(parameter.annotation, str):
        return str(parameter)
    default = "" if parameter.default is parameter.empty else f" = {parameter.default!r}"
    return f"{parameter.name}: {parameter.annotation}{default}"


class ArgumentError(Exception):
    """The model's arguments do not fit the tool's schema; the text is written for the model."""

    def __init__(self, fault: ArgumentFault, message: str) -> None:
        super().__init__(message)
        self.fault = fault


@dataclass(frozen=True, slots=True)
class Tool:
    """A typed function and its JSON schema.

    Attributes:
        name: The name by which the model calls it.
        description: The docstring's summary and body.
        parameters: JSON schema of the arguments (an object schema).
        fn: The function; a method is bound, so ``self`` never shows.
    """

    name: str
    description: str
    parameters: dict[str, Any]
    fn: Callable[..., Any]
    _arguments: type[BaseModel] | None  # None: the fault is found by `_fault`
    _fault: FindFault | None = None

    @classmethod
    def from_schema(
        cls,
        name: str,
        description: str,
        parameters: dict[str, Any],
        fn: Callable[..., Any],
        fault: FindFault,
    ) -> Tool:
        """Build a tool whose schema is given, such as another program's.

        Args:
            name: The name by which the model calls it.
            description: The text that the model is shown.
            parameters: JSON schema of the arguments (an object schema). Generated titles, which
                cost tokens and say nothing, are dropped.
            fn: Gets the arguments by name, as they are in the JSON.
            fault: Says what is wrong with the arguments, for the model; ``""`` if nothing is.
        """
        parameters = {"properties": {}} | _without_titles(parameters)
        parameters.pop("$schema", None)
        return cls(name, description, parameters, fn, None, fault)

    @classmethod
    def from_function(cls, fn: Callable[..., Any]) -> Tool:
        """Build a tool from a typed function or bound method.

        Raises:
            ConfigError: If a parameter has no type or one without a JSON schema, or is
                positional-only or variadic; or if the function is an async generator.
        """
        if inspect.ismethod(fn):
            # Every episode binds its own methods: what they look like is worked out once.
            # A function that is bound to something by hand has no self.
            own = getattr(type(fn.__self__), fn.__name__, None) is fn.__func__
            return replace(cls._of_method(fn.__func__, own), fn=fn)
        if not inspect.isfunction(fn):
            return cls._build(fn)
        if fn not in _built:
            _built[fn] = replace(cls._build(fn), fn=_nothing)
        return replace(_built[fn], fn=fn)

    @classmethod
    @lru_cache(maxsize=1024)
    def _of_method(cls, function: Callable[..., Any], own: bool) -> Tool:
        if own:
            _check_bound(function)
        return cls._build(MethodType(function, object()))  # bound to anything: `self` is not shown

    @classmethod
    def _build(cls, fn: Callable[..., Any]) -> Tool:
        name = getattr(fn, "__name__", type(fn).__name__)
        label = f"tool {name!r}{_location(fn)}"
        if inspect.isasyncgenfunction(fn):
            raise ConfigError(f"{label}: an async generator has no result; return one, not yield")
        doc = docstring_parser.parse(inspect.getdoc(fn) or "")
        described = {param.arg_name: param.description or "" for param in doc.params}
        try:
            hints = get_type_hints(fn, include_extras=True)
        except (NameError, TypeError) as error:
            raise ConfigError(f"{label}: cannot resolve its annotations: {error}") from error
        fields: dict[str, Any] = {}
        try:
            parameters = inspect.signature(fn).parameters.values()
        except ValueError as error:  # bound by hand, though it takes nothing
            raise ConfigError(f"{label}: {error}") from error
        for index, parameter in enumerate(parameters):
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                raise ConfigError(f"{label}: *args and **kwargs have no schema")
            if parameter.kind is parameter.POSITIONAL_ONLY:
                raise ConfigError(f"{label}: {parameter.name!r} must not be positional-only")
            if parameter.name == "self" and "self" not in hints:
                raise ConfigError(
                    f"{label}: nothing is bound to self; leave it out, or give an object's method"
                )
            if parameter.name not in hints:
                raise ConfigError(
                    f"{label}: parameter {parameter.name!r} has no type; "
                    f"write it as `{parameter.name}: str` (or int, list[str], ...)"
                )
            default = ... if parameter.default is parameter.empty else parameter.default
            # Fields are numbered and aliased, so that a parameter may be called `schema` or `_x`.
            settings: dict[str, Any] = {"alias": parameter.name}
            if described.get(parameter.name):
                settings["description"] = described[parameter.name]
            fields[f"arg{index}"] = (hints[parameter.name], Field(default, **settings))
        config = ConfigDict(extra="forbid", allow_inf_nan=False)
        try:
            arguments = create_model(f"{name}_arguments", __config__=config, **fields)
            schema = _without_titles(arguments.model_json_schema(by_alias=True))
        except PydanticUserError as error:
            raise ConfigError(f"{label}: a parameter has no JSON schema: {error}") from error
        schema.pop("additionalProperties", None)
        schema.setdefault("properties", {})
        for about in schema["properties"].values():
            try:
                json.dumps(about, allow_nan=False)
            except ValueError:  # infinity, which no API takes
                about.pop("default", None)
        description = "\n\n".join(
            part for part in (doc.short_description, doc.long_description) if part
        )
        return cls(name, description, schema, fn, arguments)

    @property
    def draws(self) -> bool:
        """Whether its signature says that it returns an image."""
        hint = inspect.unwrap(self.fn).__annotations__.get("return")
        name = hint if isinstance(hint, str) else getattr(hint, "__name__", "")
        return name.rpartition(".")[2] in ("Image", "Figure")

    def schema(self) -> dict[str, Any]:
        """Return the tool in OpenAI's ``tools`` format."""
        return {
            "type": "function",
            "function": {
                "name": self.name,
                "description": self.description,
                "parameters": self.parameters,
            },
        }

    def validate(self, arguments: str) -> dict[str, Any]:
        """Check the model's arguments (JSON text) and return them as Python values.

        Types are strict: the JSON string ``"5"`` is not an integer, and no number is NaN.

        Raises:
            ArgumentError: If the text is not JSON, or does not fit the schema.
        """
        try:
            raw = _STRICT.decode(arguments)
        except (ValueError, RecursionError) as error:
            raise ArgumentError(
                "invalid_json", f"the arguments are not valid JSON: {error}"
            ) from error
        if not isinstance(raw, dict):
            raise ArgumentError("invalid_arguments", "the arguments must be a JSON object")
        if self._arguments is None:
            return self._checked(raw)
        try:
            parsed = self._arguments.model_validate_json(arguments, strict=True)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            if first["type"] == "json_invalid":  # half a surrogate pair, which json.loads lets by
                raise ArgumentError("invalid_json", f"the arguments: {first['msg']}") from error
            raise ArgumentError("invalid_arguments", _explain(error)) from error
        return {
            info.alias or field: getattr(parsed, field)
            for field, info in type(parsed).model_fields.items()
        }

    def _checked(self, raw: dict[str, Any]) -> dict[str, Any]:
        try:
            json.dumps(raw, ensure_ascii=False).encode()
            problem = "" if self._fault is None else self._fault(raw)
        except RecursionError as error:
            raise ArgumentError("invalid_json", "the arguments: nested too deeply") from error
        except ValueError as error:  # half a surrogate pair
            raise ArgumentError("invalid_json", f"the arguments: {error}") from error
        if problem:
            raise ArgumentError("invalid_arguments", shown(problem))
        return raw


def _location(fn: Callable[..., Any]) -> str:
    """Return where a function is written, for an error; nothing if it is written nowhere."""
    code = getattr(inspect.unwrap(fn), "__code__", None)
    return f" ({code.co_filename}, line {code.co_firstlineno})" if code else ""


def refuse_constant(constant: str) -> None:
    """Refuse NaN and infinity, as ``parse_constant`` of a JSON decoder."""
    raise ValueError(f"{constant} is not JSON")


def _nothing() -> None:
    """Stand in for a tool's function, which what is kept of it must not keep alive."""


# What was worked out of functions: every episode offers its environment's again.
_built: WeakKeyDictionary[Callable[..., Any], Tool] = WeakKeyDictionary()

_STRICT = json.JSONDecoder(parse_constant=refuse_constant)


SHOWN = 200  # characters of what the model wrote that an error about it repeats
_PROBLEMS = 5  # that one error lists


def shown(text: str) -> str:
    """Return the beginning of what a model wrote, as an error repeats it."""
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


def _explain(error: ValidationError) -> str:
    lines = []
    problems = error.errors(include_url=False)
    for problem in problems[:_PROBLEMS]:
        where = shown(".".join(str(part) for part in problem["loc"]))
        match problem["type"]:
            case "missing":
                lines.append(f"missing argument {where!r}")
            case "extra_forbidden":
                lines.append(f"unexpected argument {where!r}")
            case _:
                lines.append(
                    f"{where}: {problem['msg']} (got {shown(json.dumps(problem['input']))})"
                )
    if len(problems) > _PROBLEMS:
        lines.append(f"and {len(problems) - _PROBLEMS} more")
    return "; ".join(lines)


def _without_titles(schema: Any) -> Any:
    """Drop pydantic's generated titles: they cost tokens and say nothing."""
    if isinstance(schema, list):
        return [_without_titles(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: (
            value
            if key in ("default", "const", "enum", "examples")  # the author's values, not schemas
            else {name: _without_titles(item) for name, item in value.items()}
            if key in ("properties", "$defs")
            else _without_titles(value)
        )
        for key, value in schema.items()
        if not (key == "title" and isinstance(value, str))
    }

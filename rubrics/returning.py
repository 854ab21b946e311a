"""Whether a function's source forgets to return: a None that its author did not write."""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
from collections.abc import Callable, Sequence
from types import CodeType
from typing import Any


def may_forget_to_return(fn: Callable[..., Any]) -> str:
    """Return where a function is written, if it can end without a ``return``; else ``""``.

    A ``return`` without a value, or of None, is the author's word. Where the source cannot be read
    (in a console, say), nothing is held against the function.
    """
    while isinstance(fn, functools.partial):
        fn = fn.func
    fn = inspect.unwrap(fn)
    if not inspect.isroutine(fn):
        fn = getattr(type(fn), "__call__", fn)  # noqa: B004
    code = getattr(fn, "__code__", None)
    if code is None or not _may_forget(code):
        return ""
    return f"{code.co_filename}, line {code.co_firstlineno}"


@functools.lru_cache(maxsize=256)
def _may_forget(code: CodeType) -> bool:
    try:
        [function] = ast.parse(textwrap.dedent(inspect.getsource(code))).body
    except (OSError, SyntaxError, TypeError, ValueError):
        return False
    kinds = ast.FunctionDef | ast.AsyncFunctionDef
    return isinstance(function, kinds) and code.co_name == function.name and _ends(function.body)


def _ends(body: Sequence[ast.stmt]) -> bool:
    """Return whether the statements can be passed through to their end."""
    return all(_passes(statement) for statement in body)


def _passes(statement: ast.stmt) -> bool:
    match statement:
        case ast.Return() | ast.Raise() | ast.Continue() | ast.Break():
            return False
        case ast.If():
            return _ends(statement.body) or _ends(statement.orelse)
        case ast.With() | ast.AsyncWith():
            return _ends(statement.body)
        case ast.While(test=ast.Constant(value=value)) if value:
            return any(isinstance(node, ast.Break) for node in ast.walk(statement))
        case ast.Match():
            last = statement.cases[-1]
            wild = isinstance(last.pattern, ast.MatchAs) and last.pattern.pattern is None
            exhaustive = wild and last.guard is None
            return not exhaustive or any(_ends(case.body) for case in statement.cases)
        case ast.Try():
            if not _ends(statement.finalbody):
                return False
            tried = _ends([*statement.body, *statement.orelse])
            return tried or any(_ends(handler.body) for handler in statement.handlers)
        case _:
            return True

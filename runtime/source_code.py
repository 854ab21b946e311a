"""The source of a function as Python reads it, and the names that it takes from elsewhere.

Comments, formatting, docstrings and the types of arguments are left out, so only a change of
what the code does is a change.
"""

from __future__ import annotations

import ast
import linecache
import sys
from collections import deque
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import lru_cache
from types import CodeType, FunctionType
from typing import Any

Imports = tuple[tuple[str, tuple[str, ...]], ...]
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


@dataclass(frozen=True, slots=True)
class Source:
    """The code of one function.

    Attributes:
        text: It, without what does nothing.
        names: Names that it may take from its module, attributes included: ``"math.sqrt"``.
        imports: Modules that it imports while it runs, as they are written, with the names that
            it takes from each.
    """

    text: str
    names: tuple[str, ...]
    imports: Imports = ()


def source_of(fn: FunctionType, without: Collection[str] = ()) -> Source | None:
    """Return the source of a function.

    Args:
        fn: A function or lambda.
        without: Attributes of ``self``; statements that assign one are left out.

    Returns:
        None if it cannot be read, as that of a function made by ``exec``. Where it is not known
        which of several lambdas on a line it is, the source of all of them.
    """
    code = fn.__code__
    linecache.checkcache(code.co_filename)
    text = "".join(linecache.getlines(code.co_filename, fn.__globals__))
    cached, key = _sources(text), (id(code), frozenset(without))
    if key not in cached:
        cached[key] = code, _source(code, text, without)
    return cached[key][1]


def _source(code: CodeType, text: str, without: Collection[str]) -> Source | None:
    nodes = _nodes(text).get(code.co_firstlineno, ())
    matches = [node for node in nodes if getattr(node, "name", "<lambda>") == code.co_name]
    if len(matches) > 1:
        matches = _at_its_place(matches, code) or matches
    if not matches:
        return None
    # Parsed again, for what is left out is cut from the tree.
    trees = [_Cut(without).visit(ast.parse(ast.unparse(node))) for node in matches]
    loaded = set(_loaded(code))
    names = {name for tree in trees for name in _names(tree) if name.partition(".")[0] in loaded}
    return Source(
        "\n".join(ast.unparse(tree) for tree in trees),
        tuple(sorted(names)),
        tuple(sorted({name for tree in trees for name in _imports(tree)})),
    )


def fields_of(kind: type) -> Source | None:
    """Return the annotated attributes of a class, as a dataclass has them; None without any."""
    if not vars(kind).get("__annotations__"):
        return None
    file = str(getattr(sys.modules.get(kind.__module__), "__file__", None) or "")
    linecache.checkcache(file)
    fields = _fields("".join(linecache.getlines(file))).get(kind.__name__, [])
    names = {name for field in fields for name in _names(field)}
    return Source("\n".join(map(ast.unparse, fields)), tuple(sorted(names)))


def code_of(fn: FunctionType) -> str:
    """Return what a function without readable source does, for comparison.

    The same for the same function in another process with the same version of Python.
    """
    return _instructions(fn.__code__)


def module_source(text: str) -> Source:
    """Return the source of a whole module without comments, formatting and docstrings."""
    tree = _Cut(()).visit(ast.parse(text))
    return Source(ast.unparse(tree), (), tuple(sorted(set(_imports(tree)))))


def _loaded(code: CodeType) -> Iterator[str]:
    """Yield the names that a function, and those in it, take from elsewhere."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _loaded(constant)


def _instructions(code: CodeType) -> str:
    constants = [
        _instructions(constant)
        if isinstance(constant, CodeType)
        else sorted(map(repr, constant))  # the order of a set is another in each process
        if isinstance(constant, frozenset)
        else constant
        for constant in code.co_consts
    ]
    return f"{code.co_code.hex()} {code.co_names} {constants!r}"


@lru_cache(maxsize=256)
def _sources(text: str) -> dict[tuple[int, frozenset[str]], tuple[CodeType, Source | None]]:
    """Return what is known of a file's functions; held with their code, whose id says which."""
    return {}


@lru_cache(maxsize=64)
def _nodes(text: str) -> dict[int, list[ast.AST]]:
    """Return the functions of a file by the line that Python says they begin on."""
    by_line: dict[int, list[ast.AST]] = {}
    for node in ast.walk(_tree(text)):
        if isinstance(node, FUNCTIONS):
            decorators = getattr(node, "decorator_list", [])
            line = min([node.lineno, *(decorator.lineno for decorator in decorators)])
            by_line.setdefault(line, []).append(node)
    return by_line


@lru_cache(maxsize=64)
def _tree(text: str) -> ast.AST:
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError):
        return ast.Module([], [])


@lru_cache(maxsize=64)
def _fields(text: str) -> dict[str, list[ast.AnnAssign]]:
    """Return the annotated attributes of a file's classes, by their names."""
    by_class: dict[str, list[ast.AnnAssign]] = {}
    for node in _outside_expressions(_tree(text)):
        if isinstance(node, ast.ClassDef):
            fields = [statement for statement in node.body if isinstance(statement, ast.AnnAssign)]
            by_class.setdefault(node.name, []).extend(fields)
    return by_class


def _at_its_place(lambdas: list[ast.AST], code: CodeType) -> list[ast.AST]:
    """Return the lambda whose body is where the code's instructions come from, if that is known."""
    positions = [
        (line, column, last_line, last_column)
        for line, last_line, column, last_column in code.co_positions()
        if None not in (line, column, last_line, last_column) and last_column
    ]

    def holds(node: ast.AST) -> bool:
        body = getattr(node, "body", None)
        return isinstance(body, ast.expr) and all(
            (body.lineno, body.col_offset) <= (line, column)
            and (last_line, last_column) <= (body.end_lineno, body.end_col_offset)
            for line, column, last_line, last_column in positions
        )

    around = [node for node in lambdas if positions and holds(node)]
    return around[-1:]  # the innermost: ast.walk goes from the outside in


class _Cut(ast.NodeTransformer):
    """Takes out docstrings, annotations, and assignments to some attributes of ``self``."""

    def __init__(self, attributes: Collection[str]) -> None:
        self._attributes = attributes

    def visit(self, node: ast.AST) -> Any:
        # An expression holds nothing that is taken out.
        return node if isinstance(node, ast.expr) else super().visit(node)

    def generic_visit(self, node: ast.AST) -> ast.AST:
        super().generic_visit(node)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            if ast.get_docstring(node, clean=False) is not None:
                del node.body[0]
            node.body = node.body or [ast.Pass()]
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            node.returns = None
        if isinstance(node, ast.arg):
            node.annotation = None
        return node

    def visit_Assign(self, node: ast.Assign) -> ast.AST | None:
        kept = [target for target in node.targets if not self._is_left_out(target)]
        return self.generic_visit(node) if kept else None

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST | None:
        return None if self._is_left_out(node.target) else self.generic_visit(node)

    def _is_left_out(self, target: ast.expr) -> bool:
        return (
            isinstance(target, ast.Attribute)
            and target.attr in self._attributes
            and isinstance(target.value, ast.Name)
            and target.value.id == "self"
        )


def _outside_expressions(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a tree as `ast.walk` does, but none of an expression: most of them."""
    todo = deque([tree])
    while todo:
        node = todo.popleft()
        yield node
        todo.extend(
            child for child in ast.iter_child_nodes(node) if not isinstance(child, ast.expr)
        )


def _names(tree: ast.AST) -> Iterator[str]:
    """Yield the names in a piece of code, with their attributes."""
    inner: set[int] = set()  # the parts of names that were yielded already
    for node in ast.walk(tree):
        if id(node) in inner or not isinstance(node, ast.Name | ast.Attribute):
            continue
        parts, base = [], node
        while isinstance(base, ast.Attribute):
            parts.append(base.attr)
            base = base.value  # type: ignore[assignment]
            inner.add(id(base))
        if isinstance(base, ast.Name):
            yield ".".join([base.id, *reversed(parts)])


def _imports(tree: ast.AST) -> Iterator[tuple[str, tuple[str, ...]]]:
    for node in _outside_expressions(tree):
        if isinstance(node, ast.Import):
            yield from ((name.name, ()) for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            names = tuple(sorted(name.name for name in node.names))
            yield "." * node.level + (node.module or ""), names

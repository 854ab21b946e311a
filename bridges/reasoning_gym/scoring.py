"""reasoning-gym's own score of an answer, in a worker process.

Some of its scorers hand what the model wrote to Python's ``eval``, or to SymPy's parser, which
does the same: ``9**9**9**9`` would stop the whole program, and ``__import__('os').system(...)``
would run. So scoring has a process with limits, and these scorers are not given what could do
more than compute.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import keyword
import re
from collections.abc import Callable
from functools import partial
from typing import Any

from vf.runtime.errors import RubricError

_EVALUATES = re.compile(r"(?<![\w.])eval\(|\b(?:parse_expr|sympify)\(")
_SYMPY = re.compile(r"\b(?:parse_expr|sympify)\(")
_NAME = re.compile(r"[^\W\d]\w*")
# The callee before a bracket: everything that is not an operator, so `)` in `(name)(x)`.
_CALL = re.compile(r"([^\s(\[,=<>+\-*/%^&|~]+)\s*\(")
_ATTRIBUTE = re.compile(r"\.\s*[^\W\d]|[\"'`\\@;:{}#]")
UNREADABLE = "("  # what is scored instead of an answer that would run code
# fmt: off
_FUNCTIONS = frozenset({
    "sin", "cos", "tan", "sec", "csc", "cot", "asin", "acos", "atan", "arcsin", "arccos",
    "arctan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "exp", "log", "ln", "sqrt",
    "cbrt", "root", "abs", "Abs", "sign", "factorial", "binomial", "floor", "ceiling", "erf",
    "gamma", "pow", "max", "min", "Max", "Min", "round",
})
# fmt: on
_datasets: dict[tuple[type, str], Any] = {}


def scorer(dataset_class: type, config: Any) -> Callable[[dict[str, Any], str | None], float]:
    """Return :func:`score` for a dataset, which is made once per process.

    Args:
        dataset_class: The class of the dataset.
        config: Its configuration.
    """
    key = dataset_class, repr(config)
    if key not in _datasets:
        _datasets[key] = dataset_class(config)
    return partial(score, _datasets[key])


def score(dataset: Any, entry: dict[str, Any], answer: str | None) -> float:
    """Return the dataset's score of an answer: its ``score_answer(answer, entry)``.

    0 where that raises an error over this answer but not over the entry's own. An answer that
    would run code gets what the dataset gives for one that cannot be read.

    Args:
        dataset: A dataset of reasoning-gym.
        entry: The problem.
        answer: The model's answer, or None.

    Raises:
        RubricError: If it raises an error over the entry's own answer too.
        MemoryError: If the answer takes more memory than the process may have.
    """
    # A composite scores by the dataset that the entry is from.
    parts = getattr(dataset, "datasets", None)
    if isinstance(parts, dict):
        dataset = parts.get(entry["metadata"]["source_dataset"], dataset)
    if answer is not None and not is_harmless(type(dataset), answer):
        answer = UNREADABLE
    try:
        return float(dataset.score_answer(answer, entry))
    except MemoryError:  # ends the process
        raise
    except Exception as error:
        try:
            dataset.score_answer(entry["answer"], entry)
        except Exception:
            raise RubricError(
                f"{type(dataset).__name__} cannot score the answer of its own entry: "
                f"{type(error).__name__}: {error}"
            ) from error
        return 0.0


def is_harmless(dataset_class: type, answer: str) -> bool:
    """Return whether scoring an answer runs no code of the model.

    To a scorer that evaluates what it is given, harmless are: what Python cannot read, and
    literals (but not to SymPy, which changes the text, and reads the text in literals again);
    text without calls, quotes and attributes; and text in which nothing but functions of
    elementary mathematics is called, and no name is Python's own. To other scorers, everything is.
    """
    source = inspect.getsource(getattr(dataset_class, "score_answer"))  # noqa: B009
    if not _EVALUATES.search(source):
        return True
    if not _SYMPY.search(source) and _is_literal_or_no_python(answer):
        return True
    if _ATTRIBUTE.search(answer):
        return False
    if "(" not in answer:
        return True
    if any(name not in _FUNCTIONS for name in _CALL.findall(answer)):
        return False
    return all(name in _FUNCTIONS or not _is_pythons(name) for name in _NAME.findall(answer))


def _is_pythons(name: str) -> bool:
    return keyword.iskeyword(name) or hasattr(builtins, name) or "__" in name


def _is_literal_or_no_python(text: str) -> bool:
    try:
        ast.parse(text.lstrip(" \t"), mode="eval")
    except (SyntaxError, ValueError):
        return True
    except (MemoryError, RecursionError):
        return False
    try:
        ast.literal_eval(text.lstrip(" \t"))
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return False
    return True

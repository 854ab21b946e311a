r"""Built-in outcomes: how well a task was solved, in [0, 1].

Each is a factory that returns a function of the trace, for ``Rubric(outcome=...)``. All read the
model's last message through an *extractor*, which finds the answers stated in it, and pay only
if every one of them is right: naming several answers never pays more than deciding. What only
changes how an answer looks does not matter to those that compare answers: ``**B**``, ``$B$`` and
``\text{B}`` are ``B``, and ``\$1{,}234`` is 1234.

    Rubric(outcome=numeric(extract=marked("Answer:")))
"""

from vf.rubrics.outcomes.code_tests import code_tests
from vf.rubrics.outcomes.expressions import math_equal
from vf.rubrics.outcomes.extract import (
    Extract,
    boxed,
    json_field,
    json_text,
    marked,
    whole_message,
)
from vf.rubrics.outcomes.numbers import numeric
from vf.rubrics.outcomes.structure import json_schema
from vf.rubrics.outcomes.text import exact, multiple_choice, token_f1

__all__ = [
    "Extract",
    "boxed",
    "code_tests",
    "exact",
    "json_field",
    "json_schema",
    "json_text",
    "marked",
    "math_equal",
    "multiple_choice",
    "numeric",
    "token_f1",
    "whole_message",
]

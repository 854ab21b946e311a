"""The table on the page about scale is what its code computes, from what was measured."""

from __future__ import annotations

import json
import re
from typing import Any

from tests.docs.blocks import ROOT, blocks

PAGE = ROOT / "docs" / "scale.md"
MEASURED = ROOT / "benchmarks" / "results" / "scale_costs.md"


def computed() -> dict[str, Any]:
    [block] = [block for block in blocks(PAGE) if block.kind == "python"]
    scope: dict[str, Any] = {}
    exec(block.text, scope)
    return scope


def test_the_table_is_what_the_code_computes() -> None:
    cells = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in PAGE.read_text(encoding="utf-8").splitlines()
        if line.startswith("|")
    ]
    table = computed()["table"]
    assert {name: rest for name, *rest in cells if name in table} == table


def test_the_costs_are_those_that_were_measured() -> None:
    scope = computed()
    [line] = re.findall(r"^\{.*\}$", MEASURED.read_text(encoding="utf-8"), re.M)
    measured = json.loads(line)
    costs = {name: cost for name, cost in measured.items() if name.endswith(("_ms", "_bytes"))}
    assert {name: scope[name] for name in costs} == costs

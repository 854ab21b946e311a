"""The page with every setting is what the models say, and leaves none out."""

from __future__ import annotations

import re
from functools import cache

import pytest
from pydantic import BaseModel

from docs.make_reference_page import GROUPS, NO_BREAK, PAGE
from docs.make_reference_page import page as make_page
from vf.evaluation.eval_config import EvalConfig
from vf.trainer.settings.config import Config, TrainerArgs
from vf.trainer.settings.engines import ENGINES
from vf.trainer.settings.load_config import SYNONYMS
from vf.trainer.sft.settings import SftConfig

page = cache(make_page)


def keys(model: type[BaseModel]) -> set[str]:
    """Return the names of a model's fields, and of those below them."""
    schema = model.model_json_schema()
    tables = [schema, *schema.get("$defs", {}).values()]
    return {name for table in tables for name in table.get("properties", {})}


def test_the_page_is_what_the_script_writes() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run python docs/make_reference_page.py"


@pytest.mark.parametrize("model", [Config, EvalConfig, SftConfig, *ENGINES.values()])
def test_every_key_has_a_row_that_says_something(model: type[BaseModel]) -> None:
    rows = re.findall(r"^\| (?:<a id=\"[\w.]+\"></a>)?`(\w+)` \|(.*)\|$", page(), re.MULTILINE)
    said = {name: text.split("|")[-1].strip() for name, text in rows}
    # Tables have a heading each instead.
    headings = set(re.findall(r"^##+ .*?`\[+(\w+)", page(), re.MULTILINE))
    missing = keys(model) - said.keys() - headings
    assert missing - {"inference", "trainer", "tinker", "env", "args", "limits", "prices"} == set()
    assert [name for name, text in said.items() if len(text) < 5] == []


def test_a_row_says_values_default_and_bounds() -> None:
    text = page().replace(NO_BREAK, " ")
    assert "`rollouts_per_example` | whole number ≥ 2 | `8` |" in text
    assert "`temperature` | number > 0, ≤ 100 | `1` |" in text
    assert '`learning_rate` | number > 0, ≤ 1 or `"auto"` | `1e-4` |' in text
    assert "`seed` | whole number ≥ 0, ≤ 4,294,967,295 | `0` |" in text
    assert "`betas` | list of 2 numbers ≥ 0, < 1 | `[0.9, 0.95]` |" in text
    assert '`engine` | `"embedded"` or `"vllm"` | `"embedded"` |' in text
    assert "`id` | text | needed |" in text


def test_anchors_are_unique_and_named_by_the_whole_path() -> None:
    anchors = re.findall(r'<a id="([\w.]+)">', page())
    assert len(anchors) == len(set(anchors))
    assert {f"trainer.args.{name}" for name in TrainerArgs.model_fields} <= set(anchors)


@pytest.mark.slow
def test_every_setting_is_in_one_group_and_synonyms_are_named() -> None:
    grouped = [name for names in GROUPS.values() for name in names]
    assert sorted(grouped) == sorted(TrainerArgs.model_fields)
    assert all(f"| `{theirs}` | `{ours}` |" in page() for theirs, ours in SYNONYMS.items())

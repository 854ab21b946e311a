"""Which environments of verifiers' repository load, as docs/verifiers.md counts them."""

from __future__ import annotations

import os
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

import vf
from tests.late import Late
from vf.bridges.verifiers.from_verifiers import from_verifiers

datasets: Any = Late("datasets")
LISTED = tomllib.loads((Path(__file__).parent / "their_repository.toml").read_text())
NEEDS: dict[str, str] = LISTED["environments"]
# A checkout at that commit; scripts/check_verifiers_repository.sh makes one.
CHECKOUT = os.environ.get("VF_VERIFIERS_REPOSITORY")
# One row that has what any of their datasets has: the datasets themselves are elsewhere.
ROW = {
    "prompt": "p", "question": "q", "answer": "a #### 1", "text": "t", "title": "T", "id": "0",
    "content": "c", "names": ["Ada Lovelace", "Alan Turing", "Grace Hopper", "Emmy Noether"],
}  # fmt: skip


def test_the_documents_count_is_the_lists() -> None:
    text = Path("docs/verifiers.md").read_text()
    [(works, all_of_them, commit)] = re.findall(
        r"(\d+) of the (\d+)\s+environments\s+in\s+its\s+repository\s+\(commit\s+(\w+)\)\s+load",
        text,
    )
    assert commit == LISTED["commit"]
    assert int(works) == sum(not needs for needs in NEEDS.values())
    assert int(all_of_them) == len(NEEDS)


@pytest.mark.slow
@pytest.mark.skipif(not CHECKOUT, reason="bash scripts/check_verifiers_repository.sh runs it")
@pytest.mark.parametrize("id", NEEDS)
def test_each_loads_or_is_refused_by_what_it_needs(
    id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path(CHECKOUT or "") / "environments" / id.replace("-", "_")
    monkeypatch.syspath_prepend(folder)
    rows = datasets.Dataset.from_list([ROW] * 3)
    monkeypatch.setattr("datasets.load_dataset", lambda *args, **kwargs: rows)
    if needs := NEEDS[id]:
        with pytest.raises(vf.ConfigError, match=f"it needs {re.escape(needs)}.*cannot be given"):
            from_verifiers(id)
        return
    try:
        assert next(iter(from_verifiers(id).tasks("train"))).id
    except vf.ConfigError as error:
        if re.search("ConnectError|nltk_data", str(error)):
            pytest.skip(f"{id} needs the network when it is loaded")
        raise


@pytest.mark.skipif(not CHECKOUT, reason="bash scripts/check_verifiers_repository.sh runs it")
def test_the_list_is_all_of_them() -> None:
    found = {
        file.parent.name.replace("_", "-")
        for file in Path(CHECKOUT or "").glob("environments/*/pyproject.toml")
    }
    assert found - {"compact"} == set(NEEDS)  # which is a harness, and no environment

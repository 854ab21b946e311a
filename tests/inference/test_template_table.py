"""The page on chat templates says what the code does."""

from __future__ import annotations

from docs.make_template_table import PAGE, page


def test_the_page_is_what_the_script_writes() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run python docs/make_template_table.py"


def test_the_page_has_a_row_for_every_template_and_none_forks() -> None:
    rows = [line.split(" | ") for line in page().splitlines() if line.startswith("| ")]
    verdicts = {row[1]: row[2:8] for row in rows if len(row) > 8 and row[1] != "template"}
    assert len(verdicts) > 50
    assert "forks" not in {verdict for row in verdicts.values() for verdict in row}

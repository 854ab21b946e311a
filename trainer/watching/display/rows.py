"""Rows of a screen: cut to its width, headed, filled."""

from __future__ import annotations

from rich.text import Text


def fit(row: Text, width: int) -> Text:
    """Return a row of at most ``width`` columns, with an ellipsis where it was cut."""
    if "\n" in row.plain:
        row = Text(" ").join(row.split("\n"))
    row.expand_tabs(1)
    row.truncate(max(0, width), overflow="ellipsis")
    return row


def heading(name: str, right: str | Text, width: int) -> Text:
    """Return a ruled row with a name on its left and something on its right."""
    row = Text.assemble(("── ", "dim"), (name, "bold"), " ")
    end = right if isinstance(right, Text) else Text(right, style="dim")
    room = width - row.cell_len - end.cell_len
    if not end.plain or room < 1:
        row.append("─" * max(0, width - row.cell_len), style="dim")
    else:
        row.append("─" * (room - 1) + " ", style="dim").append_text(end)
    return fit(row, width)


def meter(share: float, width: int, style: str) -> Text:
    """Return a bar that is filled to a share in [0, 1]."""
    done = round(width * min(1.0, max(0.0, share)))
    return Text.assemble(("━" * done, style), ("─" * (width - done), "dim"))


def flow(parts: list[Text], width: int, most: int) -> list[Text]:
    """Return parts side by side, on at most ``most`` rows; what has no room is left out."""
    rows: list[Text] = []
    for part in parts:
        if rows and rows[-1].cell_len + 3 + part.cell_len <= width:
            rows[-1] = Text.assemble(rows[-1], "   ", part)
        elif len(rows) < most:
            rows.append(part)
        else:
            break
    return [fit(row, width) for row in rows]


def beside(left: list[Text], right: list[Text], width: int) -> list[Text]:
    """Return two blocks of equally many rows side by side, the left one ``width`` columns wide."""
    rows = []
    for one, other in zip(left, right, strict=True):
        row = fit(one.copy(), width)
        row.append(" " * (width - row.cell_len))
        rows.append(Text.assemble(row, (" │ ", "dim"), other))
    return rows

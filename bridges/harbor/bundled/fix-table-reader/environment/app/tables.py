"""Tables in Markdown."""


def read_table(text):
    """Return the rows of the first table in a text, as dicts from the header's names to cells.

    A table is a header line, a line of dashes, and lines for the rows until a line without a ``|``.
    Cells are separated by ``|``; one at the beginning and one at the end of a line are optional. White
    space around a cell is dropped. A backslash before ``|`` makes it part of the cell; within a pair of
    backquotes it is part of the cell, too, without a backslash. The backquotes stay, the backslash
    before a ``|`` goes.

    A column whose dashes end with a colon, and do not begin with one, has numbers: its cells become
    int or float where they can be read so (``1,000`` is 1000), None where they are empty, else they stay
    text. Rows with too few cells are filled up with "" (None in columns of numbers); cells too many
    are dropped. Of two columns with the same name, the second is called ``name_2``, and so on.

    Without a table, ValueError is raised. A line of dashes has as many cells as the header, else there
    is no table there.
    """
    lines = text.split("\n")
    for number, line in enumerate(lines):
        if "---" in line:
            break
    header = lines[number - 1].split("|")
    numeric = [cell.endswith(":") for cell in line.split("|")]
    rows = []
    for line in lines[number + 1 :]:
        if "|" not in line:
            continue
        row = {}
        for name, cell, is_number in zip(header, line.split("|"), numeric):
            row[name.strip()] = float(cell) if is_number else cell.strip()
        rows.append(row)
    return rows

import re


def cells(line):
    line = line.strip()
    found, cell, at = [], "", 0
    while at < len(line):
        if line.startswith("\\|", at):
            cell, at = cell + "|", at + 2
        elif line[at] == "`" and "`" in line[at + 1 :]:
            end = line.index("`", at + 1) + 1
            cell, at = cell + line[at:end], end
        elif line[at] == "|":
            found.append(cell.strip())
            cell, at = "", at + 1
        else:
            cell, at = cell + line[at], at + 1
    if cell.strip() or not found:
        found.append(cell.strip())
    return found[1:] if line.startswith("|") else found


def number(cell):
    if cell == "":
        return None
    for kind in (int, float):
        try:
            return kind(cell.replace(",", ""))
        except ValueError:
            pass
    return cell


def read_table(text):
    lines = text.splitlines()
    for at in range(1, len(lines)):
        names, dashes = cells(lines[at - 1]), cells(lines[at])
        ruled = all(re.fullmatch(":?-+:?", cell) for cell in dashes)
        if "|" in lines[at - 1] and ruled and len(names) == len(dashes):
            break
    else:
        raise ValueError("no table")
    header = []
    for name in names:
        count = names[: len(header)].count(name) + 1
        header.append(name if count == 1 else f"{name}_{count}")
    numeric = [cell.endswith(":") and not cell.startswith(":") for cell in dashes]
    rows = []
    for line in lines[at + 1 :]:
        if "|" not in line:
            break
        row = cells(line) + [""] * len(header)
        rows.append({n: number(c) if is_n else c for n, c, is_n in zip(header, row, numeric)})
    return rows

import re

HUNK = re.compile(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")


class Rejected(Exception):
    def __init__(self, number):
        super().__init__(f"hunk {number} does not fit")
        self.number = number


def split(text):
    return re.findall(r"[^\n]*\n|[^\n]+", text)


def hunks(patch):
    lines, at = split(patch), 0
    while at < len(lines):
        found = HUNK.match(lines[at])
        at += 1
        if not found:
            continue
        start, old_left, _, new_left = (1 if g is None else int(g) for g in found.groups())
        count, old, new, sides = old_left, [], [], []
        while old_left or new_left or (at < len(lines) and lines[at].startswith("\\")):
            if at == len(lines):
                raise ValueError("cut off")
            line = lines[at] if lines[at] not in ("\n", "\r\n") else " " + lines[at]
            at += 1
            if line[0] == "\\":
                for side in sides:
                    side[-1] = side[-1][:-1]
                continue
            if line[0] not in " -+":
                raise ValueError("not a line of a hunk")
            sides = [side for side, marks in ((old, " -"), (new, " +")) if line[0] in marks]
            for side in sides:
                side.append(line[1:])
            old_left -= line[0] in " -"
            new_left -= line[0] in " +"
            if old_left < 0 or new_left < 0:
                raise ValueError("more lines than said")
        yield start, count, old, new


def apply(text, patch):
    lines, result, taken, moved = split(text), [], 0, 0
    parsed = list(hunks(patch))
    if not parsed:
        raise ValueError("no hunk")
    for number, (start, count, old, new) in enumerate(parsed, 1):
        if count == 0:
            place = start + moved
            if not taken <= place <= len(lines):
                raise Rejected(number)
        else:
            wanted = start - 1 + moved
            places = [
                at for at in range(taken, len(lines) - count + 1) if lines[at : at + count] == old
            ]
            if not places:
                raise Rejected(number)
            place = min(places, key=lambda at: (abs(at - wanted), at))
            moved = place - (start - 1)
        result += lines[taken:place] + new
        taken = place + count
    return "".join(result + lines[taken:])

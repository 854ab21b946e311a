"""Problems about small machines that follow rules."""

from __future__ import annotations

import random
from typing import Any

from vf.environments.bundled.problems.problem import Shelf, ints, word

shelf = Shelf()


def _stack_program(rng: random.Random) -> tuple[Any, ...]:
    steps = ["1", "2", "3", "7", "+", "-", "*", "dup", "swap", "drop"]
    size = rng.randint(0, 4)
    return ([str(n) for n in ints(rng, (0, 3), 1, 9)] + [rng.choice(steps) for _ in range(size)],)


def _sum(rng: random.Random) -> tuple[Any, ...]:
    text = str(rng.randint(0, 20))
    for _ in range(rng.randint(0, 4)):
        text += rng.choice([" + ", " - ", " * ", "*", "+"]) + str(rng.randint(0, 20))
    return (text,)


def _log(rng: random.Random) -> tuple[Any, ...]:
    names = ["ann", "bob", "cy"]
    return ([[rng.choice(names), rng.randint(-20, 30)] for _ in range(rng.randint(0, 7))],)


def _keys(rng: random.Random) -> tuple[Any, ...]:
    return (word(rng, (0, 12), "abc<<>#"),)


def _cache(rng: random.Random) -> tuple[Any, ...]:
    return ints(rng, (0, 10), 1, 5), rng.randint(1, 3)


@shelf.problem(_stack_program)
def run_stack(program: list[str]) -> list[int]:
    """Run a program on a stack that is empty at first: a number is pushed; "+", "-" and "*" pop
    the top b and then a, and push a + b, a - b or a * b; "dup" pushes the top once more; "swap"
    exchanges the two on top; "drop" removes the top. A step that finds too few values on the
    stack is skipped and changes nothing. Return the stack, its top last.
    """
    stack: list[int] = []
    for step in program:
        needed = {"+": 2, "-": 2, "*": 2, "swap": 2, "dup": 1, "drop": 1}.get(step, 0)
        if len(stack) < needed:
            continue
        if step == "dup":
            stack.append(stack[-1])
        elif step == "drop":
            stack.pop()
        elif step == "swap":
            stack[-1], stack[-2] = stack[-2], stack[-1]
        elif needed:
            b, a = stack.pop(), stack.pop()
            stack.append(a + b if step == "+" else a - b if step == "-" else a * b)
        else:
            stack.append(int(step))
    return stack


@shelf.problem(_sum)
def evaluate(text: str) -> int:
    """Work out an expression of whole numbers (none negative) with +, - and *, where * binds
    tighter, and otherwise from left to right. There may be spaces around the operators.
    """
    total, sign, product, number = 0, 1, 1, ""
    for char in text.replace(" ", "") + "+":
        if char.isdigit():
            number += char
            continue
        product *= int(number)
        number = ""
        if char != "*":
            total += sign * product
            product, sign = 1, 1 if char == "+" else -1
    return total


@shelf.problem(_log)
def balances(log: list[list[object]]) -> dict[str, int]:
    """A log holds entries [name, amount]. Each amount is added to the balance of its name, which
    begins at 0; an entry that would make the balance negative is ignored. Return the balances of
    all names that are in the log, as a dict.
    """
    result: dict[str, int] = {}
    for name, amount in log:
        assert isinstance(name, str)
        assert isinstance(amount, int)
        old = result.setdefault(name, 0)
        if old + amount >= 0:
            result[name] = old + amount
    return result


@shelf.problem(_keys)
def type_keys(keys: str) -> str:
    """Keys are typed into an empty line: a letter is put in at the cursor, "<" moves the cursor
    one place to the left, ">" one place to the right, and "#" removes the character left of the
    cursor. What cannot be done is ignored. Return the line.
    """
    line, cursor = "", 0
    for key in keys:
        if key == "<":
            cursor = max(0, cursor - 1)
        elif key == ">":
            cursor = min(len(line), cursor + 1)
        elif key == "#":
            if cursor:
                line = line[: cursor - 1] + line[cursor:]
                cursor -= 1
        else:
            line = line[:cursor] + key + line[cursor:]
            cursor += 1
    return line


@shelf.problem(_cache)
def cache_misses(requests: list[int], size: int) -> int:
    """A cache holds up to `size` pages, none at first. A requested page that is not in it is a
    miss, and is put in; if the cache is full, the page whose last request is longest ago leaves
    first. Return the number of misses.
    """
    cache: list[int] = []
    misses = 0
    for page in requests:
        if page in cache:
            cache.remove(page)
        else:
            misses += 1
            cache = cache[-(size - 1) :] if size > 1 else []
        cache.append(page)
    return misses


@shelf.problem(lambda rng: (word(rng, (0, 10), "FFLR"),))
def robot_end(moves: str) -> list[int]:
    """A robot at [0, 0] looks up. "F" moves it one place forward, "L" and "R" turn it left and
    right on the spot. Up is [0, 1], right is [1, 0]. Return where it ends, as [x, y].
    """
    x, y, dx, dy = 0, 0, 0, 1
    for move in moves:
        if move == "F":
            x, y = x + dx, y + dy
        elif move == "L":
            dx, dy = -dy, dx
        else:
            dx, dy = dy, -dx
    return [x, y]


@shelf.problem(lambda rng: (rng.randint(1, 12), rng.randint(1, 6)))
def last_in_circle(people: int, step: int) -> int:
    """People numbered from 1 stand in a circle. Beginning to count at person 1, every `step`-th
    one leaves, the count going on with the next one, until one is left. Return the number of
    that person.
    """
    circle, index = list(range(1, people + 1)), 0
    while len(circle) > 1:
        index = (index + step - 1) % len(circle)
        circle.pop(index)
    return circle[0]


@shelf.problem(lambda rng: (word(rng, (1, 7), "01"), rng.randint(0, 5)))
def automaton(cells: str, steps: int) -> str:
    """In a row of cells "0" and "1", every cell becomes "1" in one step if exactly one of its two
    neighbours is "1" (beyond the ends all is "0"), else "0"; all at once. Return the row after
    the given number of steps.
    """
    for _ in range(steps):
        padded = f"0{cells}0"
        cells = "".join(str(int(padded[i] != padded[i + 2])) for i in range(len(padded) - 2))
    return cells

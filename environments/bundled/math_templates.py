"""The kinds of problems of math-python: a text, numbers to put in, and how they are solved."""

from __future__ import annotations

import datetime
import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Numbers = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Template:
    """A kind of problem.

    Attributes:
        text: The problem, with the numbers' names in braces.
        draw: Draws the numbers.
        solve: The answer, from the numbers by name: exact, by a formula or a direct count.
    """

    text: str
    draw: Callable[[random.Random], dict[str, Any]]
    solve: Callable[..., int]

    @property
    def name(self) -> str:
        """What it is called."""
        return self.solve.__name__


def _prime(number: int) -> bool:
    return number > 1 and all(number % divisor for divisor in range(2, math.isqrt(number) + 1))


def prime_sum(low: int, high: int) -> int:
    return sum(number for number in range(low, high + 1) if _prime(number))


def power_digits(base: int, exponent: int) -> int:
    return sum(map(int, str(base**exponent)))


def power_mod(base: int, exponent: int, modulus: int) -> int:
    return pow(base, exponent, modulus)


def recurrence(a: int, b: int, p: int, q: int, n: int, modulus: int) -> int:
    for _ in range(n):
        a, b = b, (p * b + q * a) % modulus
    return a % modulus


def savings(start: int, rate: int, deposit: int, years: int) -> int:
    cents = start * 100
    for _ in range(years):
        cents += cents * rate // 100 + deposit * 100
    return cents


def divisible_count(high: int, a: int, b: int, c: int) -> int:
    def multiples(*divisors: int) -> int:
        return high // math.lcm(*divisors)

    both = multiples(a, b) - multiples(a, b, c)
    return multiples(a) + multiples(b) - multiples(a, c) - multiples(b, c) - both


def change_ways(amount: int, a: int, b: int, c: int) -> int:
    return sum(
        (amount - a * i - b * j) % c == 0
        for i in range(amount // a + 1)
        for j in range((amount - a * i) // b + 1)
    )


def lattice_paths(width: int, height: int, x: int, y: int) -> int:
    through = math.comb(x + y, x) * math.comb(width - x + height - y, width - x)
    return math.comb(width + height, width) - through


def weekdays(year: int, years: int, day: int) -> int:
    return sum(
        datetime.date(y, month, day).weekday() == 4
        for y in range(year, year + years)
        for month in range(1, 13)
    )


def meeting_time(a: int, b: int, c: int, start: int) -> int:
    return start + math.lcm(a, b, c)


def digit_condition(low: int, high: int, total: int, divisor: int) -> int:
    first = -(-low // divisor) * divisor
    return sum(sum(map(int, str(n))) == total for n in range(first, high + 1, divisor))


def farm(heads: int, legs: int, horns: int) -> int:
    hens = heads - horns // 2
    return (legs - 2 * hens) // 4


def _primes_between(rng: random.Random) -> dict[str, Any]:
    low = rng.randint(100, 5000)
    return {"low": low, "high": low + rng.randint(50, 400)}


def _corner(rng: random.Random) -> dict[str, Any]:
    width, height = rng.randint(5, 14), rng.randint(5, 14)
    return {
        "width": width,
        "height": height,
        "x": rng.randint(1, width - 1),
        "y": rng.randint(1, height - 1),
    }


def _three(rng: random.Random, low: int, high: int) -> dict[str, int]:
    return dict(zip("abc", sorted(rng.sample(range(low, high + 1), 3)), strict=True))


def _digits(rng: random.Random) -> dict[str, Any]:
    low = rng.randint(1000, 20_000)
    return {
        "low": low,
        "high": low + rng.randint(2000, 30_000),
        "total": rng.randint(8, 24),
        "divisor": rng.choice([2, 4, 5, 7, 11, 13]),
    }


def _animals(rng: random.Random) -> dict[str, Any]:
    hens, goats, snails = (rng.randint(11, 400) for _ in range(3))
    return {
        "heads": hens + goats + snails,
        "legs": 2 * hens + 4 * goats,
        "horns": 2 * goats + 2 * snails,
    }


_ALL = [
    Template(
        "What is the sum of all prime numbers from {low} to {high}, both included?",
        _primes_between,
        prime_sum,
    ),
    Template(
        "What is the sum of the decimal digits of {base} to the power of {exponent}?",
        lambda rng: {"base": rng.randint(2, 60), "exponent": rng.randint(25, 200)},
        power_digits,
    ),
    Template(
        "What is the remainder when {base} to the power of {exponent} is divided by {modulus}?",
        lambda rng: {
            "base": rng.randint(12, 9999),
            "exponent": rng.randint(100, 99_999),
            "modulus": rng.randint(101, 9999),
        },
        power_mod,
    ),
    Template(
        "A sequence begins with x(0) = {a} and x(1) = {b}, and x(n) = {p} * x(n-1) + {q} * x(n-2). "
        "What is the remainder of x({n}) divided by {modulus}?",
        lambda rng: {
            "a": rng.randint(0, 20),
            "b": rng.randint(1, 20),
            "p": rng.randint(1, 9),
            "q": rng.randint(1, 9),
            "n": rng.randint(30, 300),
            "modulus": rng.randint(1000, 99_999),
        },
        recurrence,
    ),
    Template(
        "Mara opens an account with {start} euros. At the end of every year the bank adds {rate}% "
        "interest on what is in the account, rounded down to a whole cent, and then Mara pays in "
        "{deposit} euros more. How many cents are in the account after {years} years?",
        lambda rng: {
            "start": rng.randint(100, 5000),
            "rate": rng.randint(1, 9),
            "deposit": rng.randint(0, 500),
            "years": rng.randint(5, 30),
        },
        savings,
    ),
    Template(
        "How many whole numbers from 1 to {high} can be divided by {a} or by {b}, but not by {c}?",
        lambda rng: {"high": rng.randint(1000, 99_999), **_three(rng, 2, 25)},
        divisible_count,
    ),
    Template(
        "A machine gives change in coins of {a}, {b} and {c} cents, as many of each as needed. "
        "In how many different ways can it give {amount} cents, if the order does not matter?",
        lambda rng: {"amount": rng.randint(60, 400), **_three(rng, 2, 25)},
        change_ways,
    ),
    Template(
        "A taxi drives from the corner (0, 0) of a street grid to the corner ({width}, {height}), "
        "each block one to the right or one up. The corner ({x}, {y}) is closed. How many "
        "different routes are there?",
        _corner,
        lattice_paths,
    ),
    Template(
        "In the Gregorian calendar, how many months of the {years} years that begin with {year} "
        "have a Friday as day number {day}?",
        lambda rng: {
            "year": rng.randint(1900, 2050),
            "years": rng.randint(2, 60),
            "day": rng.randint(1, 28),
        },
        weekdays,
    ),
    Template(
        "Three lighthouses flash every {a}, {b} and {c} seconds. All three flash at second "
        "{start}. At which second do all three flash together the next time?",
        lambda rng: {**_three(rng, 12, 120), "start": rng.randint(0, 999)},
        meeting_time,
    ),
    Template(
        "How many whole numbers from {low} to {high}, both included, can be divided by {divisor} "
        "and have decimal digits that add up to {total}?",
        _digits,
        digit_condition,
    ),
    Template(
        "On a farm there are hens (two legs, no horns), goats (four legs, two horns) and snails "
        "(no legs, and two feelers, which the farmer counts as horns). The farmer counts {heads} "
        "heads, {legs} legs and {horns} horns. How many goats are there?",
        _animals,
        farm,
    ),
]

TEMPLATES = {template.name: template for template in _ALL}

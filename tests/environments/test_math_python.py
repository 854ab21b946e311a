"""math-python: every answer is worked out a second time, in another way."""

from __future__ import annotations

import asyncio
import calendar
import itertools
import random
import re
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest

import vf
from vf.environments.bundled.math_python import MathPython
from vf.environments.bundled.math_templates import TEMPLATES
from vf.sandbox.contract import OpenSandbox

DRAWS = 6


def prime_sum(low: int, high: int) -> int:
    sieve = [True] * (high + 1)
    for number in range(2, high + 1):
        for multiple in range(2 * number, high + 1, number):
            sieve[multiple] = False
    return sum(number for number in range(max(2, low), high + 1) if sieve[number])


def power_digits(base: int, exponent: int) -> int:
    digits = [1]
    for _ in range(exponent):
        carry = 0
        for place, digit in enumerate(digits):
            carry, digits[place] = divmod(digit * base + carry, 10)
        while carry:
            carry, digit = divmod(carry, 10)
            digits.append(digit)
    return sum(digits)


def power_mod(base: int, exponent: int, modulus: int) -> int:
    result = 1
    for _ in range(exponent):
        result = result * base % modulus
    return result


def recurrence(a: int, b: int, p: int, q: int, n: int, modulus: int) -> int:
    values = [a, b]
    while len(values) <= n:
        values.append(p * values[-1] + q * values[-2])
    return values[n] % modulus


def savings(start: int, rate: int, deposit: int, years: int) -> int:
    euros = Fraction(start)
    for _ in range(years):
        grown = euros * (1 + Fraction(rate, 100))
        euros = Fraction(int(grown * 100), 100) + deposit
    assert (euros * 100).denominator == 1
    return int(euros * 100)


def divisible_count(high: int, a: int, b: int, c: int) -> int:
    return sum((n % a == 0 or n % b == 0) and n % c != 0 for n in range(1, high + 1))


def change_ways(amount: int, a: int, b: int, c: int) -> int:
    ways = [1] + [0] * amount
    for coin in (a, b, c):
        for part in range(coin, amount + 1):
            ways[part] += ways[part - coin]
    return ways[amount]


def lattice_paths(width: int, height: int, x: int, y: int) -> int:
    routes: dict[tuple[int, int], int] = {}
    for column, row in itertools.product(range(width + 1), range(height + 1)):
        before = routes.get((column - 1, row), 0) + routes.get((column, row - 1), 0)
        routes[column, row] = 0 if (column, row) == (x, y) else before or int(column == row == 0)
    return routes[width, height]


def weekdays(year: int, years: int, day: int) -> int:
    return sum(
        week[calendar.FRIDAY] == day
        for y in range(year, year + years)
        for month in range(1, 13)
        for week in calendar.Calendar().monthdayscalendar(y, month)
    )


def meeting_time(a: int, b: int, c: int, start: int) -> int:
    second = start + c
    while (second - start) % a or (second - start) % b:
        second += c
    return second


def digit_condition(low: int, high: int, total: int, divisor: int) -> int:
    def digits(n: int) -> int:
        return n % 10 + digits(n // 10) if n else 0

    return sum(n % divisor == 0 and digits(n) == total for n in range(low, high + 1))


def farm(heads: int, legs: int, horns: int) -> int:
    fits = [
        goats
        for goats in range(legs // 4 + 1)
        if (legs - 4 * goats) % 2 == 0
        and (snails := heads - goats - (legs - 4 * goats) // 2) >= 0
        and 2 * (goats + snails) == horns
    ]
    assert len(fits) == 1, "more than one answer, or none"
    return fits[0]


AGAIN: dict[str, Callable[..., int]] = {
    function.__name__: function
    for function in (
        *(prime_sum, power_digits, power_mod, recurrence, savings, divisible_count, change_ways),
        *(lattice_paths, weekdays, meeting_time, digit_condition, farm),
    )
}


@pytest.mark.parametrize("name", TEMPLATES)
def test_the_answer_is_what_another_computation_gives(name: str) -> None:
    template, rng = TEMPLATES[name], random.Random(7)
    for _ in range(DRAWS):
        numbers = template.draw(rng)
        answer = template.solve(**numbers)
        assert type(answer) is int
        assert answer == AGAIN[name](**numbers), numbers


@pytest.mark.parametrize("name", TEMPLATES)
def test_the_text_holds_every_number(name: str) -> None:
    template = TEMPLATES[name]
    numbers = template.draw(random.Random(3))
    text = template.text.format(**numbers)
    assert "{" not in text
    found = {int(number) for number in re.findall(r"\d+", text)}
    assert set(numbers.values()) <= found


def play(env: vf.Environment, task: vf.Task, *script: Any) -> vf.Trace:
    return asyncio.run(vf.rollout(env, task, vf.ScriptedModel(script)))


def test_every_template_is_used_and_no_prompt_is_in_both_splits() -> None:
    env = MathPython(num_train=300, num_eval=100)
    train, held_out = list(env.tasks("train")), list(env.tasks("eval"))
    assert not {task.prompt for task in train} & {task.prompt for task in held_out}
    assert {task.info["template"] for task in train} == set(TEMPLATES)


def test_the_tool_works_it_out_and_the_answer_is_rewarded(open_local: OpenSandbox) -> None:
    env = MathPython(open_local, templates=["power_mod"])
    task = next(iter(env.tasks("eval")))
    n = task.info["numbers"]
    code = f"b = {n['base']}\npow(b, {n['exponent']}, {n['modulus']})"
    trace = play(env, task, {"python": {"code": code}}, f"Answer: {task.answer}")
    assert trace.messages[3].content == str(task.answer)
    assert trace.reward == 1.0


def test_variables_live_from_call_to_call(open_local: OpenSandbox) -> None:
    env = MathPython(open_local)
    task = next(iter(env.tasks("eval")))
    calls = [{"python": {"code": "x = 20"}}, {"python": {"code": "2 * x + 2"}}]
    trace = play(env, task, *calls, "Answer: 1")
    assert [m.content for m in trace.messages if m.role == "tool"] == ["(no output)", "42"]


@pytest.mark.parametrize("reply", ["{0}", "Answer: {1}", "Answer: {0}\nAnswer: {1}", "", "Answer:"])
def test_anything_else_earns_nothing(open_local: OpenSandbox, reply: str) -> None:
    env = MathPython(open_local)
    task = next(iter(env.tasks("eval")))
    trace = play(env, task, reply.format(task.answer, task.answer + 1))
    assert trace.error is None
    assert trace.reward == 0.0


def test_more_calls_than_are_free_cost(open_local: OpenSandbox) -> None:
    env = MathPython(open_local, free_calls=0)
    task = next(iter(env.tasks("eval")))
    trace = play(env, task, *[{"python": {"code": "1"}}] * 4, f"Answer: {task.answer}")
    assert trace.reward == pytest.approx(0.8)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"templates": ["prime_sums"]}, "Did you mean 'prime_sum'"),
        ({"templates": []}, "must be a list of names"),
        ({"templates": "farm"}, "must be a list of names"),
        ({"free_calls": -1}, "free_calls must not be negative"),
        ({"python_timeout": 0}, "python_timeout must be above 0"),
    ],
)
def test_settings_out_of_range_are_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(vf.ConfigError, match=said):
        MathPython(**settings)

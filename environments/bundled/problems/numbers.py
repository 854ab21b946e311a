"""Problems about whole numbers."""

from __future__ import annotations

from vf.environments.bundled.problems.problem import Shelf, ints

shelf = Shelf()


@shelf.problem(lambda rng: (rng.randint(0, 10 ** rng.randint(1, 9)),))
def digit_gap(number: int) -> int:
    """Return the largest difference between two neighbouring decimal digits of a number that is
    not negative; 0 if it has one digit.
    """
    digits = [int(digit) for digit in str(number)]
    return max((abs(digits[i] - digits[i - 1]) for i in range(1, len(digits))), default=0)


@shelf.problem(lambda rng: (rng.randint(1, 4000),))
def to_roman(number: int) -> str:
    """Write a number from 1 to 4000 with Roman numerals, where 4 is IV, 9 is IX, 40 is XL and so
    on, and 4000 is MMMM.
    """
    table = [
        (1000, "M"), (900, "CM"), (500, "D"), (400, "CD"), (100, "C"), (90, "XC"), (50, "L"),
        (40, "XL"), (10, "X"), (9, "IX"), (5, "V"), (4, "IV"), (1, "I"),
    ]  # fmt: skip
    text = ""
    for value, letters in table:
        while number >= value:
            text += letters
            number -= value
    return text


@shelf.problem(lambda rng: (rng.randint(1, 5000), rng.randint(2, 16)))
def base_digits(number: int, base: int) -> list[int]:
    """Return the digits of a positive number in a base from 2 to 16, the first digit first, as a
    list of numbers.
    """
    digits = []
    while number:
        number, digit = divmod(number, base)
        digits.append(digit)
    return digits[::-1]


@shelf.problem(lambda rng: (rng.randint(1, 2000),))
def largest_prime_factor(number: int) -> int:
    """Return the largest prime that divides the number; 1 for the number 1."""
    largest, divisor = 1, 2
    while number > 1:
        if number % divisor == 0:
            largest = divisor
            number //= divisor
        else:
            divisor += 1
    return largest


@shelf.problem(lambda rng: (rng.randint(1, 200), rng.randint(1, 60)))
def coprime_count(start: int, count: int) -> int:
    """Return how many of the `count` numbers from `start` on share no divisor but 1 with
    `start + count`.
    """
    import math

    return sum(math.gcd(number, start + count) == 1 for number in range(start, start + count))


@shelf.problem(lambda rng: (rng.randint(1, 300), rng.choice([2, 3, 5, 7])))
def factorial_power(number: int, prime: int) -> int:
    """Return the largest k for which `prime ** k` divides the factorial of the number."""
    total = 0
    while number:
        number //= prime
        total += number
    return total


@shelf.problem(lambda rng: (rng.randint(1, 500),))
def hailstone(number: int) -> list[int]:
    """Repeat until the number is 1: halve it if it is even, else triple it and add 1. Return how
    many steps that takes, and the largest number seen, the first one included.
    """
    steps, largest = 0, number
    while number != 1:
        number = number // 2 if number % 2 == 0 else 3 * number + 1
        largest = max(largest, number)
        steps += 1
    return [steps, largest]


@shelf.problem(lambda rng: (rng.randint(1, 60), rng.randint(1, 60)))
def decimal_cycle(top: int, bottom: int) -> int:
    """Write the fraction top / bottom as a decimal number. Return the length of the shortest
    group of digits that repeats for ever; 0 if the digits come to an end.
    """
    seen: dict[int, int] = {}
    rest, position = top % bottom, 0
    while rest and rest not in seen:
        seen[rest] = position
        rest = rest * 10 % bottom
        position += 1
    return position - seen[rest] if rest else 0


@shelf.problem(lambda rng: (rng.randint(0, 1000),))
def bit_islands(number: int) -> int:
    """Return how many separate stretches of ones the number's binary form has: 5 is 101 in
    binary, which has two.
    """
    return sum(bool(part) for part in format(number, "b").split("0"))


@shelf.problem(lambda rng: (rng.randint(1, 400),))
def square_sums(number: int) -> int:
    """Return in how many ways the number is a sum of two squares a * a + b * b of whole numbers
    with 0 <= a <= b.
    """
    ways = 0
    for a in range(number + 1):
        if 2 * a * a > number:
            break
        b = a
        while a * a + b * b < number:
            b += 1
        ways += a * a + b * b == number
    return ways


@shelf.problem(lambda rng: (ints(rng, (1, 4), 1, 40),))
def common_multiple(numbers: list[int]) -> int:
    """Return the smallest positive number that all of the given positive numbers divide."""
    import math

    result = 1
    for number in numbers:
        result = result * number // math.gcd(result, number)
    return result


@shelf.problem(lambda rng: (rng.randint(0, 86_400 * 2),))
def clock(seconds: int) -> str:
    """Write a time span as days, hours, minutes and seconds, such as "1d 0h 2m 5s". Leave out
    the parts before the first one that is not 0; no time at all is "0s".
    """
    parts: list[str] = []
    for size, name in [(86_400, "d"), (3600, "h"), (60, "m"), (1, "s")]:
        value, seconds = divmod(seconds, size)
        if value or parts or name == "s":
            parts.append(f"{value}{name}")
    return " ".join(parts)

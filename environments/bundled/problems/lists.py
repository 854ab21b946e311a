"""Problems about lists of numbers."""

from __future__ import annotations

from vf.environments.bundled.problems.problem import Shelf, ints

shelf = Shelf()


@shelf.problem(lambda rng: (ints(rng, (0, 8), -9, 9), rng.randint(1, 4)))
def window_maxima(values: list[int], size: int) -> list[int]:
    """Return the largest value of every stretch of `size` neighbouring values, from left to
    right; an empty list if there are fewer values than that.
    """
    return [max(values[start : start + size]) for start in range(len(values) - size + 1)]


@shelf.problem(lambda rng: (ints(rng, (0, 9), 0, 4),))
def first_seen(values: list[int]) -> list[int]:
    """Replace every value by the index at which it was first seen."""
    seen: dict[int, int] = {}
    return [seen.setdefault(value, index) for index, value in enumerate(values)]


@shelf.problem(lambda rng: (ints(rng, (0, 9), -5, 9),))
def peaks(values: list[int]) -> list[int]:
    """Return the indices of all values that are larger than each of their neighbours. The first
    and the last value have only one neighbour; a single value is a peak.
    """
    found = []
    for index, value in enumerate(values):
        left = index == 0 or values[index - 1] < value
        right = index == len(values) - 1 or values[index + 1] < value
        if left and right:
            found.append(index)
    return found


@shelf.problem(lambda rng: (ints(rng, (0, 9), -6, 6),))
def best_stretch(values: list[int]) -> int:
    """Return the largest sum of a stretch of neighbouring values; the empty stretch, with the
    sum 0, counts.
    """
    best = current = 0
    for value in values:
        current = max(0, current + value)
        best = max(best, current)
    return best


@shelf.problem(lambda rng: (ints(rng, (2, 9), 0, 5), rng.randint(3, 7)))
def pairs_with_sum(values: list[int], total: int) -> int:
    """Return in how many ways two different positions can be chosen (their order does not
    matter) whose values add up to the total.
    """
    seen: dict[int, int] = {}
    ways = 0
    for value in values:
        ways += seen.get(total - value, 0)
        seen[value] = seen.get(value, 0) + 1
    return ways


@shelf.problem(lambda rng: (sorted(ints(rng, (0, 6), 0, 9)), sorted(ints(rng, (0, 6), 0, 9))))
def merge_unique(left: list[int], right: list[int]) -> list[int]:
    """Both lists are sorted. Return, sorted and each once, the values that are in exactly one of
    the two lists.
    """
    return sorted(set(left) ^ set(right))


@shelf.problem(lambda rng: (ints(rng, (0, 8), 0, 9),))
def inversions(values: list[int]) -> int:
    """Return how many pairs of positions i < j there are with values[i] > values[j]."""
    return sum(values[i] > values[j] for i in range(len(values)) for j in range(i + 1, len(values)))


@shelf.problem(lambda rng: (ints(rng, (0, 10), 1, 20), rng.randint(1, 4)))
def deal(cards: list[int], players: int) -> list[list[int]]:
    """Deal the cards one by one to the players in turn. Return each player's cards, sorted, for
    all players in the order in which they are dealt to.
    """
    return [sorted(cards[player::players]) for player in range(players)]


@shelf.problem(lambda rng: (ints(rng, (0, 9), 0, 9),))
def next_larger(values: list[int]) -> list[int]:
    """Replace every value by the nearest value to its right that is larger; by -1 if there is
    none.
    """
    result = [-1] * len(values)
    waiting: list[int] = []
    for index, value in enumerate(values):
        while waiting and values[waiting[-1]] < value:
            result[waiting.pop()] = value
        waiting.append(index)
    return result


@shelf.problem(lambda rng: (ints(rng, (1, 9), 0, 12),))
def median_twice(values: list[int]) -> int:
    """Return twice the median of the values (at least one): of an even number of values, the
    median is halfway between the two in the middle.
    """
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] + ordered[-1 - middle]


@shelf.problem(lambda rng: (ints(rng, (0, 10), 0, 3),))
def by_frequency(values: list[int]) -> list[int]:
    """Return the different values, the most frequent first; of equally frequent ones, the
    smaller first.
    """
    return sorted(set(values), key=lambda value: (-values.count(value), value))


@shelf.problem(lambda rng: (ints(rng, (1, 8), 0, 9), rng.randint(-20, 20)))
def rotate(values: list[int], places: int) -> list[int]:
    """Move every value the given number of places to the right, those that fall off at the end
    coming back at the front. A negative number moves to the left; it can be more than the length.
    """
    cut = -places % len(values)
    return values[cut:] + values[:cut]


@shelf.problem(lambda rng: (ints(rng, (1, 7), 0, 9),))
def balance_point(values: list[int]) -> int:
    """Return the smallest index for which the absolute difference between the sum of all values
    before it and the sum of all values after it is least.
    """
    return min(range(len(values)), key=lambda i: (abs(sum(values[:i]) - sum(values[i + 1 :])), i))


@shelf.problem(lambda rng: (rng.sample(range(1, 8), rng.randint(0, 7)),))
def missing_ranges(values: list[int]) -> list[list[int]]:
    """The values are different numbers from 1 to 7, in any order. Return the stretches of
    numbers from 1 to 7 that are missing, each as [first, last], in rising order.
    """
    ranges: list[list[int]] = []
    for number in range(1, 8):
        if number in values:
            continue
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ranges

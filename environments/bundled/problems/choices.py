"""Problems about choosing and counting."""

from __future__ import annotations

from vf.environments.bundled.problems.problem import Shelf, ints, word

shelf = Shelf()


@shelf.problem(lambda rng: (sorted(set(ints(rng, (1, 3), 2, 7))), rng.randint(0, 20)))
def ways_to_pay(coins: list[int], amount: int) -> int:
    """Return in how many ways an amount can be paid with coins of the given (different) values,
    as many of each as needed. The order of the coins does not matter.
    """
    ways = [1] + [0] * amount
    for coin in coins:
        for total in range(coin, amount + 1):
            ways[total] += ways[total - coin]
    return ways[amount]


@shelf.problem(lambda rng: (sorted(set(ints(rng, (1, 3), 2, 7))), rng.randint(0, 20)))
def fewest_coins(coins: list[int], amount: int) -> int:
    """Return the least number of coins that pay the amount exactly, as many as needed of each of
    the given values; -1 if it cannot be done.
    """
    fewest = [0] + [amount + 1] * amount
    for total in range(1, amount + 1):
        for coin in coins:
            if coin <= total:
                fewest[total] = min(fewest[total], fewest[total - coin] + 1)
    return fewest[amount] if fewest[amount] <= amount else -1


@shelf.problem(lambda rng: (ints(rng, (0, 7), 0, 9),))
def longest_rise(values: list[int]) -> int:
    """Return how many values can be kept at most, the others being dropped, so that each kept
    value is larger than the kept one before it.
    """
    lengths: list[int] = []
    for index, value in enumerate(values):
        before = [lengths[i] for i in range(index) if values[i] < value]
        lengths.append(1 + max(before, default=0))
    return max(lengths, default=0)


@shelf.problem(lambda rng: (word(rng, (0, 6), "abc"), word(rng, (0, 6), "abc")))
def edit_distance(left: str, right: str) -> int:
    """Return the least number of steps that turn the left text into the right one, where a step
    adds, removes or replaces one character.
    """
    row = list(range(len(right) + 1))
    for i, a in enumerate(left, 1):
        above, row[0] = row[0], i
        for j, b in enumerate(right, 1):
            above, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, above + (a != b))
    return row[-1]


@shelf.problem(lambda rng: (word(rng, (0, 7), "abc"), word(rng, (0, 7), "abc")))
def shared_subsequence(left: str, right: str) -> int:
    """Return the length of the longest text that can be made from each of the two by dropping
    characters.
    """
    row = [0] * (len(right) + 1)
    for a in left:
        previous = row
        row = [0]
        for j, b in enumerate(right):
            row.append(previous[j] + 1 if a == b else max(previous[j + 1], row[j]))
    return row[-1]


@shelf.problem(lambda rng: (ints(rng, (0, 8), 0, 9),))
def no_neighbours(values: list[int]) -> int:
    """Choose positions no two of which are next to each other. Return the largest possible sum
    of the values there.
    """
    with_last = without_last = 0
    for value in values:
        with_last, without_last = without_last + value, max(with_last, without_last)
    return max(with_last, without_last)


@shelf.problem(lambda rng: (ints(rng, (0, 7), 1, 9), rng.randint(0, 20)))
def fill_exactly(weights: list[int], capacity: int) -> int:
    """Choose some of the weights, each at most once, so that their sum is as large as possible
    without being more than the capacity. Return that sum.
    """
    sums = {0}
    for weight in weights:
        sums |= {total + weight for total in sums if total + weight <= capacity}
    return max(sums)


@shelf.problem(lambda rng: (ints(rng, (1, 6), 0, 3),))
def fewest_jumps(reach: list[int]) -> int:
    """Start at index 0. From index i you may jump forward by 1 to reach[i] places. Return the
    least number of jumps to the last index, or -1 if it cannot be reached.
    """
    jumps = [0] + [-1] * (len(reach) - 1)
    for index, far in enumerate(reach):
        if jumps[index] < 0:
            continue
        for target in range(index + 1, min(index + far, len(reach) - 1) + 1):
            if jumps[target] < 0:
                jumps[target] = jumps[index] + 1
    return jumps[-1]

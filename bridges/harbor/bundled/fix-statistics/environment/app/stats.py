"""Simple statistics of lists of numbers."""


def median(values):
    """Return the middle value of a list, or the mean of the two in the middle.

    The list is not changed. Raises ValueError if it is empty.
    """
    values.sort()
    return values[len(values) // 2]


def mode(values):
    """Return the most frequent value; of several, the one that comes first in the list.

    Raises ValueError if the list is empty.
    """
    return max(set(values), key=values.count)


def spread(values):
    """Return the sample variance (divided by n - 1) of at least two numbers.

    Accurate also where the numbers are large and close to each other. Raises ValueError for fewer.
    """
    mean = sum(values) / len(values)
    return sum(v * v for v in values) / len(values) - mean * mean


def moving_mean(values, width):
    """Return the means of all runs of ``width`` neighbours, none if the list is shorter.

    Raises ValueError if ``width`` is below 1.
    """
    return [sum(values[i : i + width]) / width for i in range(len(values) - width)]

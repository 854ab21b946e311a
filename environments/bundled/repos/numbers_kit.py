"""Modules that compute: statistics, a matrix, a history of readings, an inventory of ranges."""

from __future__ import annotations

from vf.environments.bundled.repos.module import Bug, Module
from vf.rubrics.outcomes.grading import Case

SERIES = Module(
    "series",
    "Series of numbers: moving sums, changes, the longest rise.",
    '''"""Series of whole numbers."""


def moving_sums(values, size):
    """Return the sum of every ``size`` neighbouring values; none if there are fewer."""
    if size < 1:
        raise ValueError("size must be at least 1")
    return [sum(values[i : i + size]) for i in range(len(values) - size + 1)]


def changes(values):
    """Return by how much each value differs from the one before it."""
    return [values[i] - values[i - 1] for i in range(1, len(values))]


def longest_rise(values):
    """Return the length of the longest stretch in which each value is larger than the last."""
    if not values:
        return 0
    best = current = 1
    for before, value in zip(values, values[1:]):
        current = current + 1 if value > before else 1
        best = max(best, current)
    return best


def clamp(value, low, high):
    """Return the value, or the nearer limit if it is outside of low to high."""
    return max(low, min(value, high))


def clamped(values, low, high):
    """Return a new list with every value clamped."""
    result = list(values)
    for i, value in enumerate(result):
        result[i] = clamp(value, low, high)
    return result
''',
    visible=[
        Case("moving_sums([1, 2, 3, 4], 2)", [3, 5, 7]),
        Case("moving_sums([1, 2], 3)", []),
        Case("changes([4, 7, 5])", [3, -2]),
        Case("longest_rise([1, 2, 2, 3, 4, 0])", 3),
        Case("longest_rise([])", 0),
        Case("clamp(12, 0, 10)", 10),
        Case("clamp(-3, 0, 10)", 0),
        Case("values = [5, 20]\n[clamped(values, 0, 10), values]", [[5, 10], [5, 20]]),
    ],
    hidden=[
        Case("moving_sums([5, 1, 4], 1)", [5, 1, 4]),
        Case("moving_sums([5, 1, 4], 3)", [10]),
        Case("moving_sums([], 2)", []),
        Case("moving_sums([1], 0)", raises="ValueError"),
        Case("changes([9])", []),
        Case("changes([1, 1, 8, 3])", [0, 7, -5]),
        Case("longest_rise([3])", 1),
        Case("longest_rise([3, 3, 3])", 1),
        Case("longest_rise([9, 1, 2, 3, 4])", 4),
        Case("longest_rise([1, 2, 3, 0, 1])", 3),
        Case("longest_rise(())", 0),
        Case("[clamp(v, -2, 2) for v in [-5, -2, 0, 2, 5]]", [-2, -2, 0, 2, 2]),
        Case("old = [-9, 1]\nnew = clamped(old, -1, 1)\n[old, new]", [[-9, 1], [-1, 1]]),
        Case("clamped([7, 8, 9], 1, 8)", [7, 8, 8]),
        Case("clamped([], 1, 8)", []),
    ],
    bugs=[
        Bug("off_by_one", "range(len(values) - size + 1)", "range(len(values) - size)"),
        Bug("off_by_one", "for i in range(1, len(values))", "for i in range(len(values))"),
        Bug("wrong_comparison", "if value > before", "if value >= before"),
        Bug("missing_edge_case", "    if not values:\n        return 0\n", ""),
        Bug("swapped_arguments", "clamp(value, low, high)\n    ", "clamp(value, high, low)\n    "),
        Bug("aliasing", "result = list(values)", "result = values"),
        Bug("wrong_operator", "values[i] - values[i - 1]", "values[i] + values[i - 1]"),
        Bug("wrong_variable", "return best", "return current"),
        Bug("early_return", "return best", "    return best\n    return best"),
        Bug("inverted_condition", "if size < 1:", "if size >= 1:"),
        Bug("missing_return", "return max(low, min(value, high))", "max(low, min(value, high))"),
    ],
)

TABLES = Module(
    "tables",
    "Tables as lists of rows: columns, sorting, joining, how they are printed.",
    '''"""Tables: lists of rows, each a list."""


def column(table, index):
    """Return one column as a list."""
    return [row[index] for row in table]


def transposed(table):
    """Return the table with rows and columns exchanged."""
    return [column(table, index) for index in range(len(table[0]))] if table else []


def with_row(table, row, at=None):
    """Return a new table with one more row: at the end, or before the row with an index."""
    result = [list(old) for old in table]
    if at is None:
        at = len(result)
    result.insert(at, list(row))
    return result


def where(table, index, value):
    """Return the rows that hold the value in a column."""
    found = []
    for row in table:
        if row[index] == value:
            found.append(row)
    return found


def printed(table, gap=1):
    """Return the table as text: columns as wide as their widest cell, aligned to the left."""
    widths = [max(len(str(cell)) for cell in cells) for cells in transposed(table)]
    lines = []
    for row in table:
        cells = [str(cell).ljust(width) for cell, width in zip(row, widths)]
        lines.append((" " * gap).join(cells).rstrip())
    return "\\n".join(lines)
''',
    visible=[
        Case("column([[1, 2], [3, 4]], 1)", [2, 4]),
        Case("transposed([[1, 2, 3], [4, 5, 6]])", [[1, 4], [2, 5], [3, 6]]),
        Case("transposed([])", []),
        Case("with_row([[1], [2]], [3])", [[1], [2], [3]]),
        Case("with_row([[1], [2]], [3], at=0)", [[3], [1], [2]]),
        Case("old = [[1], [2]]\nwith_row(old, [3])[0].append(9)\nold", [[1], [2]]),
        Case("where([[1, 'a'], [2, 'b'], [3, 'a']], 1, 'a')", [[1, "a"], [3, "a"]]),
        Case("printed([['a', 12], ['bcd', 3]])", "a   12\nbcd 3"),
        Case("printed([['x', 'y']], gap=3)", "x   y"),
    ],
    hidden=[
        Case("column([[7, 8, 9]], 0)", [7]),
        Case("column([], 2)", []),
        Case("transposed([[5]])", [[5]]),
        Case("transposed([[1], [2], [3]])", [[1, 2, 3]]),
        Case("transposed(())", []),
        Case("with_row([], [1, 2])", [[1, 2]]),
        Case("with_row([[1], [2], [3]], [9], at=2)", [[1], [2], [9], [3]]),
        Case("with_row([[1], [2]], [9], at=0)", [[9], [1], [2]]),
        Case(
            "old = [[1]]\nnew = with_row(old, [2])\nnew[0][0] = 5\n[old, new]", [[[1]], [[5], [2]]]
        ),
        Case("where([[1], [2]], 0, 3)", []),
        Case("where([[4, 1], [5, 1], [4, 2]], 0, 4)", [[4, 1], [4, 2]]),
        Case("printed([[1, 22, 3], [444, 5, 6]])", "1   22 3\n444 5  6"),
        Case("printed([['ab', 'c'], ['d', 'e']], gap=2)", "ab  c\nd   e"),
        Case("printed([])", ""),
    ],
    bugs=[
        Bug("aliasing", "result = [list(old) for old in table]", "result = list(table)"),
        Bug("missing_edge_case", " if table else []", ""),
        Bug("wrong_comparison", "if row[index] == value", "if row[index] >= value"),
        Bug("inverted_condition", "if at is None:", "if at is not None:"),
        Bug("wrong_variable", "index in range(len(table[0]))", "index in range(len(table))"),
        Bug("swapped_arguments", "for cell, width in zip", "for width, cell in zip"),
        Bug("off_by_one", "at = len(result)", "at = len(result) - 1"),
        Bug("early_return", "(row)\n    return", "(row)\n        return found\n    return"),
        Bug("wrong_operator", '(" " * gap)', '(" " + str(gap))'),
        Bug("missing_return", "return [row[index] for row in", "[row[index] for row in"),
    ],
)

CACHE = Module(
    "cache",
    "A cache of limited size, and a counter of what was asked for.",
    '''"""Remembering what was computed."""


class Cache:
    """Keeps the most recently used values, up to a number of them."""

    def __init__(self, size):
        if size < 1:
            raise ValueError("size must be at least 1")
        self.size = size
        self.values = {}

    def put(self, key, value):
        """Keep a value; the least recently used one leaves if there are too many."""
        self.values.pop(key, None)
        self.values[key] = value
        if len(self.values) > self.size:
            oldest = next(iter(self.values))
            del self.values[oldest]

    def get(self, key, default=None):
        """Return a value, which is then the most recently used one; the default if unknown."""
        if key not in self.values:
            return default
        value = self.values.pop(key)
        self.values[key] = value
        return value

    def keys(self):
        """Return the keys, the least recently used first."""
        return list(self.values)


def count(keys, seen=None):
    """Count how often each key comes, on top of what was seen; nothing given is changed."""
    counts = dict(seen or {})
    for key in keys:
        counts[key] = counts.get(key, 0) + 1
    return counts


def most_wanted(counts, least=1):
    """Return the keys counted at least so often, the most frequent first, then by name."""
    wanted = [key for key in counts if counts[key] >= least]
    return sorted(wanted, key=lambda key: (-counts[key], key))
''',
    visible=[
        Case("c = Cache(2)\nc.put('a', 1)\nc.put('b', 2)\nc.put('c', 3)\nc.keys()", ["b", "c"]),
        Case("c = Cache(2)\nc.put('a', 1)\nc.put('b', 2)\n[c.get('a'), c.keys()]", [1, ["b", "a"]]),
        Case("c = Cache(2)\nc.put('a', 1)\nc.put('b', 2)\nc.put('a', 9)\nc.keys()", ["b", "a"]),
        Case("Cache(1).get('x', 7)", 7),
        Case("Cache(0)", raises="ValueError"),
        Case("count(['x', 'y', 'x'])", {"x": 2, "y": 1}),
        Case("before = {'x': 1}\n[count(['x'], before), before]", [{"x": 2}, {"x": 1}]),
        Case("count(['x'])\ncount(['y'])", {"y": 1}),
        Case("most_wanted({'b': 2, 'a': 2, 'c': 5, 'd': 1}, 2)", ["c", "a", "b"]),
    ],
    hidden=[
        Case("c = Cache(1)\nc.put('a', 1)\nc.put('b', 2)\n[c.get('a'), c.get('b')]", [None, 2]),
        Case(
            "c = Cache(2)\nc.put('a', 1)\nc.put('b', 2)\nc.get('a')\nc.put('c', 3)\nc.keys()",
            ["a", "c"],
        ),
        Case(
            "c = Cache(2)\nc.put('a', 1)\nc.put('b', 2)\nc.put('a', 9)\nc.put('c', 3)\n"
            "[c.get('a'), c.keys()]",
            [9, ["c", "a"]],
        ),
        Case("c = Cache(3)\nfor i in range(5):\n    c.put(i, i)\nc.keys()", [2, 3, 4]),
        Case("Cache(3).get('a')", None),
        Case("Cache(-2)", raises="ValueError"),
        Case("Cache(1).keys()", []),
        Case("count([])", {}),
        Case("count([], {'z': 4})", {"z": 4}),
        Case("old = {'z': 4}\ncount(['z', 'q', 'z'], old)\nold", {"z": 4}),
        Case("count(['a', 'a'])\ncount(['a'])", {"a": 1}),
        Case("count(['k', 'k', 'l', 'k'], {'l': 1})", {"k": 3, "l": 2}),
        Case("most_wanted({})", []),
        Case("most_wanted({'x': 3, 'y': 3, 'z': 4}, 3)", ["z", "x", "y"]),
        Case("most_wanted({'x': 1})", ["x"]),
    ],
    bugs=[
        Bug(
            "mutable_default",
            'seen=None):\n    """Count how often each key comes, on top of what was seen; '
            'nothing given is changed."""\n    counts = dict(seen or {})',
            'seen={}):\n    """Count how often each key comes, on top of what was seen; '
            'nothing given is changed."""\n    counts = seen',
        ),
        Bug("aliasing", "counts = dict(seen or {})", "counts = {} if seen is None else seen"),
        Bug("wrong_comparison", "len(self.values) > self.size", "len(self.values) >= self.size"),
        Bug("wrong_comparison", "counts[key] >= least", "counts[key] > least"),
        Bug("off_by_one", "counts.get(key, 0) + 1", "counts.get(key, 1) + 1"),
        Bug("inverted_condition", "if key not in self.values:", "if key in self.values:"),
        Bug("missing_return", ".values[key] = value\n        return value", ".values[key] = value"),
        Bug(
            "missing_edge_case",
            "        if key not in self.values:\n            return default\n",
            "",
        ),
        Bug("wrong_operator", "(-counts[key], key)", "(counts[key], key)"),
        Bug("early_return", "1\n    return counts", "1\n        return counts\n    return counts"),
        Bug("wrong_variable", "oldest = next(iter(self.values))", "oldest = key"),
        Bug("swapped_arguments", "pop(key, None)\n        self", "pop(value, None)\n        self"),
    ],
)

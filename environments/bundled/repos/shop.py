"""Modules of a shop: stock, prices, orders."""

from __future__ import annotations

from vf.environments.bundled.repos.module import Bug, Module
from vf.rubrics.outcomes.grading import Case

STOCK = Module(
    "stock",
    "How many pieces of each article are there: adding, taking, what runs low.",
    '''"""What is in stock."""


def add(stock, article, count=1):
    """Return a new stock with so many more pieces; the old one stays as it is."""
    if count < 1:
        raise ValueError("count must be at least 1")
    result = dict(stock)
    result[article] = result.get(article, 0) + count
    return result


def take(stock, article, count=1):
    """Return a new stock without these pieces; an article that is used up is no longer in it."""
    left = stock.get(article, 0) - count
    if left < 0:
        raise ValueError(f"there are not {count} of {article}")
    result = dict(stock)
    result[article] = left
    if left == 0:
        del result[article]
    return result


def running_low(stock, least):
    """Return, sorted, the articles of which there are fewer than ``least`` pieces."""
    found = []
    for article, count in stock.items():
        if count < least:
            found.append(article)
    return sorted(found)
''',
    visible=[
        Case("add({'pen': 2}, 'pen', 3)", {"pen": 5}),
        Case("add({}, 'ink')", {"ink": 1}),
        Case("stock = {'pen': 2}\nadd(stock, 'ink')\nstock", {"pen": 2}),
        Case("add({}, 'pen', 0)", raises="ValueError"),
        Case("take({'pen': 2, 'ink': 1}, 'pen')", {"pen": 1, "ink": 1}),
        Case("take({'pen': 2}, 'pen', 2)", {}),
        Case("take({'pen': 2}, 'pen', 3)", raises="ValueError"),
        Case("running_low({'pen': 2, 'ink': 3, 'cap': 1, 'box': 9}, 3)", ["cap", "pen"]),
    ],
    hidden=[
        Case("add({}, 'cap')", {"cap": 1}),
        Case("add({'cap': 1}, 'hat', 4)", {"cap": 1, "hat": 4}),
        Case("add(add({}, 'cap', 2), 'cap', 5)", {"cap": 7}),
        Case("add({'cap': 1}, 'cap', -1)", raises="ValueError"),
        Case("old = {'cap': 1}\nnew = add(old, 'cap', 6)\n[old, new]", [{"cap": 1}, {"cap": 7}]),
        Case("old = {'cap': 4}\nnew = take(old, 'cap', 3)\n[old, new]", [{"cap": 4}, {"cap": 1}]),
        Case("take({'cap': 1, 'hat': 2}, 'cap')", {"hat": 2}),
        Case("take({'cap': 1}, 'hat')", raises="ValueError"),
        Case("take({'cap': 5}, 'cap', 6)", raises="ValueError"),
        Case("running_low({'z': 1, 'y': 1, 'x': 4}, 4)", ["y", "z"]),
        Case("running_low({'z': 5}, 5)", []),
        Case("running_low({}, 5)", []),
    ],
    bugs=[
        Bug(
            "aliasing",
            "    result = dict(stock)\n    result[article] = result.get",
            "    result = stock\n    result[article] = result.get",
        ),
        Bug("wrong_comparison", "if count < least:", "if count <= least:"),
        Bug("wrong_comparison", "if left < 0:", "if left <= 0:"),
        Bug("wrong_operator", "get(article, 0) - count", "get(article, 0) + count"),
        Bug("missing_edge_case", "    if left == 0:\n        del result[article]\n    ", "    "),
        Bug(
            "early_return",
            "            found.append(article)\n    return sorted(found)",
            "            found.append(article)\n            return sorted(found)\n    return found",
        ),
        Bug("off_by_one", "result.get(article, 0) + count", "result.get(article, 1) + count"),
    ],
)

PRICES = Module(
    "prices",
    "Prices in cents: totals, discounts, how they are written.",
    '''"""Prices, in cents."""


def discounted(price, percent):
    """Return the price less so many percent, rounded down to a whole cent."""
    if not 0 <= percent <= 100:
        raise ValueError("percent must be 0 to 100")
    return price * (100 - percent) // 100


def total(prices, percent=0, shipping=0, free_from=None):
    """Add up the prices, take off the discount, and add the shipping.

    Shipping is free if the discounted sum is at least ``free_from`` (unless that is None).
    """
    amount = discounted(sum(prices), percent)
    if free_from is not None and amount >= free_from:
        return amount
    return amount + shipping


def written(cents):
    """Write an amount with two decimals, such as 12.05; a negative one begins with a minus."""
    if cents < 0:
        return "-" + written(-cents)
    whole, rest = divmod(cents, 100)
    return f"{whole}.{rest:02d}"
''',
    visible=[
        Case("discounted(1000, 15)", 850),
        Case("discounted(99, 50)", 49),
        Case("discounted(500, 100)", 0),
        Case("total([100, 250])", 350),
        Case("total([1000, 1000], percent=10, shipping=300)", 2100),
        Case("total([1000], shipping=300, free_from=1000)", 1000),
        Case("total([999], shipping=300, free_from=1000)", 1299),
        Case("written(1205)", "12.05"),
        Case("written(-1250)", "-12.50"),
    ],
    hidden=[
        Case("discounted(200, 0)", 200),
        Case("discounted(333, 10)", 299),
        Case("discounted(10, 101)", raises="ValueError"),
        Case("discounted(10, -1)", raises="ValueError"),
        Case("discounted(700, 100)", 0),
        Case("total([], shipping=50)", 50),
        Case("total([400, 600], percent=50, shipping=80, free_from=1000)", 580),
        Case("total([400, 600], percent=50, shipping=80, free_from=500)", 500),
        Case("total([700], percent=25)", 525),
        Case("total([1], shipping=2)", 3),
        Case("written(0)", "0.00"),
        Case("written(7)", "0.07"),
        Case("written(123456)", "1234.56"),
        Case("written(-5)", "-0.05"),
    ],
    bugs=[
        Bug("wrong_comparison", "amount >= free_from", "amount > free_from"),
        Bug("wrong_comparison", "0 <= percent <= 100", "0 <= percent < 100"),
        Bug("swapped_arguments", "(sum(prices), percent)", "(percent, sum(prices))"),
        Bug("swapped_arguments", "divmod(cents, 100)", "divmod(100, cents)"),
        Bug("inverted_condition", "if free_from is not None and", "if free_from is None or not"),
        Bug("wrong_operator", "(100 - percent) // 100", "(100 - percent) % 100"),
        Bug("wrong_variable", "    return amount + shipping", "    return sum(prices) + shipping"),
        Bug("missing_edge_case", '    if cents < 0:\n        return "-" + written(-cents)\n', ""),
        Bug("missing_return", '        return "-" + written(-cents)', "        written(-cents)"),
    ],
)

ORDERS = Module(
    "orders",
    "Orders with lines, and a queue in which the urgent ones come first.",
    '''"""Orders, and the queue that they wait in."""


class Order:
    """An order of some articles."""

    def __init__(self, number, lines=None, urgent=False):
        self.number = number
        self.lines = [] if lines is None else list(lines)
        self.urgent = urgent

    def add(self, article, count):
        """Add a line; more of an article that is in the order already raises its count."""
        for line in self.lines:
            if line[0] == article:
                line[1] += count
                return self
        self.lines.append([article, count])
        return self

    def pieces(self):
        """Return how many pieces are ordered in all."""
        return sum(count for _, count in self.lines)


def queue(orders):
    """Return the numbers of the orders: urgent ones first, the smallest number first of each."""
    ordered = sorted(orders, key=lambda order: (not order.urgent, order.number))
    return [order.number for order in ordered]


def batches(numbers, size):
    """Split the numbers into lists of at most ``size``, in their order."""
    if size < 1:
        raise ValueError("size must be at least 1")
    return [numbers[start : start + size] for start in range(0, len(numbers), size)]
''',
    visible=[
        Case("Order(1).add('pen', 2).add('ink', 1).lines", [["pen", 2], ["ink", 1]]),
        Case("Order(1).add('pen', 2).add('ink', 1).add('pen', 3).pieces()", 6),
        Case("Order(1).add('ink', 1).add('pen', 2).add('pen', 3).lines", [["ink", 1], ["pen", 5]]),
        Case("Order(1).add('pen', 2)\nOrder(2).lines", []),
        Case("queue([Order(3), Order(2), Order(7, urgent=True)])", [7, 2, 3]),
        Case("batches([1, 2, 3, 4, 5], 2)", [[1, 2], [3, 4], [5]]),
        Case("batches([1], 0)", raises="ValueError"),
    ],
    hidden=[
        Case("Order(5).pieces()", 0),
        Case("Order(5, [['cap', 4]]).add('cap', 4).lines", [["cap", 8]]),
        Case(
            "Order(5).add('a', 1).add('b', 2).add('c', 3).add('b', 2).lines",
            [["a", 1], ["b", 4], ["c", 3]],
        ),
        Case(
            "first = Order(1)\nfirst.add('x', 9)\nsecond = Order(2)\nsecond.add('y', 1)\n"
            "second.lines",
            [["y", 1]],
        ),
        Case("lines = [['x', 1]]\nOrder(1, lines).add('y', 1)\nlines", [["x", 1]]),
        Case("Order(1, [['x', 2], ['y', 5]]).pieces()", 7),
        Case("queue([])", []),
        Case("queue([Order(9, urgent=True), Order(4, urgent=True), Order(1)])", [4, 9, 1]),
        Case("batches([], 3)", []),
        Case("batches([4, 5, 6], 3)", [[4, 5, 6]]),
        Case("batches([4, 5, 6, 7], 3)", [[4, 5, 6], [7]]),
        Case("batches([4, 5], 1)", [[4], [5]]),
        Case("batches([4, 5], -1)", raises="ValueError"),
    ],
    bugs=[
        Bug(
            "mutable_default",
            "lines=None, urgent=False):\n        self.number = number\n        self.lines "
            "= [] if lines is None else list(lines)",
            "lines=[], urgent=False):\n        self.number = number\n        self.lines = lines",
        ),
        Bug("inverted_condition", "not order.urgent, order.number", "order.urgent, order.number"),
        Bug("off_by_one", "numbers[start : start + size]", "numbers[start : start + size - 1]"),
        Bug("off_by_one", "range(0, len(numbers), size)", "range(0, len(numbers) - 1, size)"),
        Bug("missing_return", "([article, count])\n        return self", "([article, count])"),
        Bug("wrong_operator", "line[1] += count", "line[1] = count"),
        Bug("wrong_variable", "count for _, count in self.lines", "1 for _, count in self.lines"),
        Bug("swapped_arguments", ".append([article, count])", ".append([count, article])"),
    ],
)

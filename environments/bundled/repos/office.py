"""Modules of an office: calendar, ledger, contacts, text."""

from __future__ import annotations

from vf.environments.bundled.repos.module import Bug, Module
from vf.rubrics.outcomes.grading import Case

CALENDAR = Module(
    "calendar_days",
    "Leap years, days of a month, how far apart two days are.",
    '''"""Days, given as year, month and day."""

LENGTHS = [31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31]


def is_leap(year):
    """Return whether a year of the Gregorian calendar has 366 days."""
    if year % 400 == 0:
        return True
    return year % 4 == 0 and year % 100 != 0


def month_length(year, month):
    """Return how many days a month (1 to 12) has."""
    if not 1 <= month <= 12:
        raise ValueError("month must be 1 to 12")
    if month == 2 and is_leap(year):
        return 29
    return LENGTHS[month - 1]


def day_of_year(year, month, day):
    """Return the number of a day in its year, from 1 on."""
    total = day
    for before in range(1, month):
        total += month_length(year, before)
    return total


def days_between(year, first, last):
    """Return how many days pass from one [month, day] to another of the same year."""
    return day_of_year(year, last[0], last[1]) - day_of_year(year, first[0], first[1])
''',
    visible=[
        Case("is_leap(2024)", True),
        Case("is_leap(1900)", False),
        Case("is_leap(2000)", True),
        Case("month_length(2024, 2)", 29),
        Case("month_length(2023, 12)", 31),
        Case("month_length(2023, 13)", raises="ValueError"),
        Case("day_of_year(2023, 3, 1)", 60),
        Case("days_between(2023, [1, 1], [2, 1])", 31),
    ],
    hidden=[
        Case("[year for year in range(1996, 2012) if is_leap(year)]", [1996, 2000, 2004, 2008]),
        Case("is_leap(1600)", True),
        Case("is_leap(2100)", False),
        Case(
            "[month_length(2023, m) for m in range(1, 13)]",
            [31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31],
        ),
        Case("month_length(2000, 2)", 29),
        Case("month_length(2000, 0)", raises="ValueError"),
        Case("day_of_year(2024, 12, 31)", 366),
        Case("day_of_year(2023, 12, 31)", 365),
        Case("day_of_year(2023, 1, 5)", 5),
        Case("days_between(2024, [2, 27], [3, 2])", 4),
        Case("days_between(2023, [5, 6], [5, 6])", 0),
        Case("days_between(2023, [6, 1], [5, 31])", -1),
    ],
    bugs=[
        Bug("missing_edge_case", "    if year % 400 == 0:\n        return True\n", ""),
        Bug("off_by_one", "return LENGTHS[month - 1]", "return LENGTHS[month % 12]"),
        Bug("off_by_one", "range(1, month)", "range(1, month + 1)"),
        Bug("wrong_operator", "year % 4 == 0 and year % 100 !=", "year % 4 == 0 or year % 100 !="),
        Bug("inverted_condition", "if month == 2 and is_leap", "if month == 2 and not is_leap"),
        Bug("wrong_comparison", "1 <= month <= 12", "1 <= month < 12"),
        Bug("wrong_variable", "month_length(year, before)", "month_length(year, month)"),
        Bug("early_return", "return total", "    return total\n    return total"),
        Bug("swapped_arguments", "(year, last[0], last[1]) -", "(year, last[1], last[0]) -"),
    ],
)

LEDGER = Module(
    "ledger",
    "Bookings on accounts: balances, transfers, what was spent on what.",
    '''"""Accounts and bookings, in whole cents."""


class Ledger:
    """Accounts by name."""

    def __init__(self, balances=None):
        self.balances = dict(balances or {})
        self.history = []

    def pay_in(self, account, amount):
        """Add an amount to an account, which is opened if need be. Returns the new balance."""
        if amount <= 0:
            raise ValueError("amount must be positive")
        self.balances[account] = self.balances.get(account, 0) + amount
        self.history.append(["in", account, amount])
        return self.balances[account]

    def transfer(self, source, target, amount):
        """Move an amount between two accounts; neither changes if there is not enough."""
        if self.balances.get(source, 0) < amount:
            raise ValueError(f"{source} does not have {amount}")
        self.balances[source] -= amount
        self.balances[target] = self.balances.get(target, 0) + amount
        self.history.append(["move", source, target, amount])

    def total(self):
        """Return what is on all accounts together."""
        return sum(self.balances.values())


def by_category(bookings, into=None):
    """Add up bookings [category, amount] by category, into the given dict or a new one."""
    result = {} if into is None else into
    for category, amount in bookings:
        result[category] = result.get(category, 0) + amount
    return result


def largest(bookings):
    """Return the category of the largest booking, the first of equals; None if there is none."""
    best = None
    for category, amount in bookings:
        if best is None or amount > best[1]:
            best = [category, amount]
    if best is None:
        return None
    return best[0]
''',
    visible=[
        Case("book = Ledger({'cash': 50})\nbook.pay_in('cash', 25)", 75),
        Case("Ledger().pay_in('cash', 0)", raises="ValueError"),
        Case(
            "book = Ledger({'cash': 50})\nbook.transfer('cash', 'bank', 50)\nbook.balances",
            {"cash": 0, "bank": 50},
        ),
        Case(
            "book = Ledger({'cash': 50, 'bank': 20})\nbook.transfer('cash', 'bank', 10)\n"
            "book.balances",
            {"cash": 40, "bank": 30},
        ),
        Case("Ledger({'cash': 50}).transfer('cash', 'bank', 51)", raises="ValueError"),
        Case("Ledger({'cash': 50, 'bank': 20}).total()", 70),
        Case("start = {'cash': 5}\nLedger(start).pay_in('cash', 1)\nstart", {"cash": 5}),
        Case("by_category([['food', 3], ['rent', 9], ['food', 4]])", {"food": 7, "rent": 9}),
        Case("by_category([['food', 3]])\nby_category([['fun', 1]])", {"fun": 1}),
        Case("largest([['food', 3], ['rent', 9], ['fun', 9]])", "rent"),
        Case("largest([])", None),
    ],
    hidden=[
        Case("Ledger().pay_in('bank', 10)", 10),
        Case("Ledger().pay_in('bank', -10)", raises="ValueError"),
        Case(
            "book = Ledger()\nbook.pay_in('a', 5)\nbook.pay_in('a', 6)\nbook.history",
            [["in", "a", 5], ["in", "a", 6]],
        ),
        Case(
            "book = Ledger({'a': 9})\nbook.transfer('a', 'b', 4)\n[book.balances, book.history]",
            [{"a": 5, "b": 4}, [["move", "a", "b", 4]]],
        ),
        Case(
            "book = Ledger({'a': 9, 'b': 1})\nbook.transfer('b', 'a', 1)\nbook.balances",
            {"a": 10, "b": 0},
        ),
        Case(
            "book = Ledger({'a': 9})\ntry:\n    book.transfer('a', 'b', 10)\nexcept "
            "ValueError:\n    pass\nbook.balances",
            {"a": 9},
        ),
        Case("Ledger().transfer('x', 'y', 1)", raises="ValueError"),
        Case("Ledger().total()", 0),
        Case(
            "start = {'a': 1}\nbook = Ledger(start)\nbook.pay_in('b', 2)\n[start, book.total()]",
            [{"a": 1}, 3],
        ),
        Case("by_category([])", {}),
        Case("by_category([['x', 2]], {'x': 1, 'y': 5})", {"x": 3, "y": 5}),
        Case("by_category([['x', 2], ['y', 3], ['x', 4]])", {"x": 6, "y": 3}),
        Case("by_category([['x', 2], ['x', -3]])\nby_category([['x', 7]])", {"x": 7}),
        Case("largest([['x', -3], ['y', -1]])", "y"),
        Case("largest([['x', 4], ['y', 4], ['z', 1]])", "x"),
        Case("[largest([]), largest([['q', 0]])]", [None, "q"]),
    ],
    bugs=[
        Bug("mutable_default", "into=None):\n", "into={}):\n"),
        Bug("aliasing", "= dict(balances or {})", "= {} if balances is None else balances"),
        Bug("wrong_comparison", ".balances.get(source, 0) <", ".balances.get(source, 0) <="),
        Bug("wrong_comparison", "amount > best[1]", "amount >= best[1]"),
        Bug("missing_edge_case", "    if best is None:\n        return None\n", ""),
        Bug("missing_return", "return self.balances[account]", "self.balances[account]"),
        Bug("wrong_variable", "= self.balances.get(target, 0)", "= self.balances.get(source, 0)"),
        Bug("inverted_condition", "if amount <= 0:", "if amount > 0:"),
        Bug("wrong_operator", "self.balances[source] -= amount", "self.balances[source] += amount"),
        Bug("early_return", "+ amount\n    return", "+ amount\n        return result\n    return"),
    ],
)

CONTACTS = Module(
    "contacts",
    "People: how they are sorted, found and put into groups.",
    '''"""People, as dicts with first, last and town."""


def full_name(person):
    """Return first and last name; whoever has only one of them is called by that."""
    parts = [person.get("first", ""), person.get("last", "")]
    return " ".join(part for part in parts if part)


def phone_book(people):
    """Return the people sorted by last name, then by first name."""
    return sorted(people, key=lambda person: (person.get("last", ""), person.get("first", "")))


def find(people, text):
    """Return the first person whose full name holds the text, upper and lower case alike."""
    for person in people:
        if text.lower() in full_name(person).lower():
            return person
    return None


def by_town(people):
    """Return a dict from town to full names, in the order of the people."""
    towns = {}
    for person in people:
        towns.setdefault(person.get("town", "?"), []).append(full_name(person))
    return towns


def moved(person, town):
    """Return the person with another town; the given one stays as it is."""
    changed = dict(person)
    changed["town"] = town
    return changed
''',
    visible=[
        Case("full_name({'first': 'Ada', 'last': 'Berg'})", "Ada Berg"),
        Case("full_name({'last': 'Berg'})", "Berg"),
        Case(
            "[full_name(p) for p in phone_book([{'first': 'Ada', 'last': 'Zorn'}, "
            "{'first': 'Zoe', 'last': 'Berg'}])]",
            ["Zoe Berg", "Ada Zorn"],
        ),
        Case("find([{'first': 'Ada'}, {'first': 'Adam'}, {'first': 'Bo'}], 'BO')", {"first": "Bo"}),
        Case("find([{'first': 'Ada'}, {'first': 'Bob'}], 'OB')", {"first": "Bob"}),
        Case("find([{'first': 'Ada'}], 'x')", None),
        Case(
            "by_town([{'first': 'Ada', 'town': 'Ulm'}, {'first': 'Bo'}, {'first': 'Cy', "
            "'town': 'Ulm'}])",
            {"Ulm": ["Ada", "Cy"], "?": ["Bo"]},
        ),
        Case(
            "ada = {'first': 'Ada', 'town': 'Ulm'}\n[moved(ada, 'Bonn')['town'], ada['town']]",
            ["Bonn", "Ulm"],
        ),
    ],
    hidden=[
        Case("full_name({})", ""),
        Case("full_name({'first': 'Eli'})", "Eli"),
        Case("full_name({'first': 'Eli', 'last': 'Ray', 'town': 'Bonn'})", "Eli Ray"),
        Case(
            "phone_book([{'first': 'B', 'last': 'X'}, {'first': 'A', 'last': 'X'}, "
            "{'last': 'C', 'first': 'Z'}])",
            [{"last": "C", "first": "Z"}, {"first": "A", "last": "X"}, {"first": "B", "last": "X"}],
        ),
        Case("phone_book([])", []),
        Case(
            "find([{'first': 'Eli', 'last': 'Ray'}, {'first': 'Raya'}], 'ray')",
            {"first": "Eli", "last": "Ray"},
        ),
        Case(
            "find([{'first': 'Eli'}, {'first': 'Flo', 'last': 'Ray'}], 'O R')",
            {"first": "Flo", "last": "Ray"},
        ),
        Case("find([], 'ray')", None),
        Case("find([{'first': 'ELI'}], 'eli')", {"first": "ELI"}),
        Case("by_town([])", {}),
        Case(
            "by_town([{'first': 'Eli', 'town': 'A'}, {'first': 'Flo', 'town': 'B'}, {'last': "
            "'Gus', 'town': 'A'}])",
            {"A": ["Eli", "Gus"], "B": ["Flo"]},
        ),
        Case("who = {'first': 'Eli'}\nmoved(who, 'Rom')\nwho", {"first": "Eli"}),
        Case("moved({'town': 'Rom', 'last': 'Ray'}, 'Bonn')", {"town": "Bonn", "last": "Ray"}),
    ],
    bugs=[
        Bug("aliasing", "changed = dict(person)", "changed = person"),
        Bug("missing_return", '    return " ".join(part', '    " ".join(part'),
        Bug("missing_edge_case", "for part in parts if part)", "for part in parts)"),
        Bug("swapped_arguments", 'last", ""), person.get("first', 'first", ""), person.get("last'),
        Bug(
            "swapped_arguments",
            "text.lower() in full_name(person).lower()",
            "full_name(person).lower() in text.lower()",
        ),
        Bug("inverted_condition", "if text.lower() in", "if text.lower() not in"),
        Bug("early_return", " person\n    return", " person\n        return None\n    return"),
        Bug("wrong_variable", "in full_name(person).lower()", "in full_name(person)"),
        Bug("wrong_operator", '.get("town", "?"), []).append(', '.get("town", "?"), []).extend('),
    ],
)

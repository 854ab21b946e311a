"""Grade the task. What the agent wrote is only read here, never run."""

import csv
import os
import sys


def read(path, limit=1 << 20):
    """Return a file's text. A link could lead to a file of the verifier's."""
    if os.path.realpath(path) != path or os.path.getsize(path) > limit:
        sys.exit(f"{path} is a link, or too long")
    with open(path, encoding="utf-8", newline="") as file:
        return file.read()


def expect(condition, what):
    """End without a reward if the condition does not hold."""
    if not condition:
        sys.exit(what)


wanted = [
    ["email", "name", "phone", "updated"],
    ["ada@example.com", "Ada King", "+442079460001", "2023-03-10"],
    ["alan@example.com", "Turing, Alan", "+441908640404", "2022-05-05"],
    ["barbara@example.com", "Barbara Liskov", "6175550199", "2024-02-29"],
    ["edsger@example.com", "Edsger Dijkstra", "+31402479111", "2021-11-04"],
    ["grace@example.com", "Grace B. Hopper", "2125550100", "2023-12-02"],
]
found = list(csv.reader(read("/app/contacts.csv").splitlines()))
expect(found == wanted, f"wrong: {found}")

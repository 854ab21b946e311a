"""Grade the task. What the agent wrote is only read here, never run."""

import json
import os
import sqlite3
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


db = sqlite3.connect("/app/shop.db")
lines = "SELECT count * COALESCE(items.cents, products.cents) FROM items JOIN products"
lines += " ON products.id = product WHERE order_id = ?"
revenue, customers = {}, {}
orders = "SELECT orders.id, name, substr(placed, 1, 7) FROM orders JOIN customers"
orders += " ON customers.id = customer WHERE status = 'paid' AND placed LIKE '2024%'"
for order, name, month in db.execute(orders).fetchall():
    cents = sum(row[0] for row in db.execute(lines, (order,)))
    refunds = db.execute("SELECT cents FROM refunds WHERE order_id = ?", (order,))
    cents -= sum(row[0] for row in refunds)
    revenue[month] = revenue.get(month, 0) + cents
    customers[name] = customers.get(name, 0) + cents
best = sorted(customers, key=lambda name: (-customers[name], name))[:3]
wanted = {"revenue": revenue, "best_customers": best, "never_sold": ["hat", "ink"]}
expect(json.loads(read("/app/report.json")) == wanted, "another report")

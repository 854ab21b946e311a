import random
import sqlite3

rng = random.Random(22)
db = sqlite3.connect("/app/shop.db")
db.executescript("""
CREATE TABLE customers (id INTEGER PRIMARY KEY, name TEXT NOT NULL);
CREATE TABLE products (id INTEGER PRIMARY KEY, name TEXT NOT NULL, cents INTEGER NOT NULL);
CREATE TABLE orders (
    id INTEGER PRIMARY KEY, customer INTEGER NOT NULL REFERENCES customers,
    placed TEXT NOT NULL, status TEXT NOT NULL -- open, paid or cancelled
);
CREATE TABLE items (
    order_id INTEGER NOT NULL REFERENCES orders, product INTEGER NOT NULL REFERENCES products,
    count INTEGER NOT NULL, cents INTEGER -- the price of one when it was sold; NULL: the list price
);
CREATE TABLE refunds (order_id INTEGER NOT NULL REFERENCES orders, cents INTEGER, made TEXT);
""")
names = ["Ada", "Ben", "Cleo", "Dan", "Eve", "Fay", "Gus"]
db.executemany("INSERT INTO customers VALUES (?, ?)", enumerate(names, 1))
goods = ["atlas", "bell", "clock", "drum", "easel", "flute", "globe", "hat", "ink"]
prices = [(i, name, 100 * rng.randint(2, 90) + 99) for i, name in enumerate(goods, 1)]
db.executemany("INSERT INTO products VALUES (?, ?, ?)", prices)
for order in range(1, 241):
    placed = f"{rng.choice((2023, 2024, 2024))}-{rng.randint(1, 11):02}-{rng.randint(1, 28):02}"
    status = rng.choice(("paid", "paid", "paid", "open", "cancelled"))
    customer = rng.randint(1, 7)
    db.execute("INSERT INTO orders VALUES (?, ?, ?, ?)", (order, customer, placed, status))
    for _ in range(rng.randint(1, 4)):
        product = rng.randint(1, 7 if status == "paid" else 9)
        price = rng.choice((None, None, 100 * rng.randint(1, 80)))
        row = (order, product, rng.randint(1, 3), price)
        db.execute("INSERT INTO items VALUES (?, ?, ?, ?)", row)
    for _ in range(rng.choice((0, 0, 0, 1, 2))):
        row = (order, rng.randint(1, 900), f"2025-01-{rng.randint(1, 28):02}")
        db.execute("INSERT INTO refunds VALUES (?, ?, ?)", row)
db.commit()

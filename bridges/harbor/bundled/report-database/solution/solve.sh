#!/bin/sh
set -e
python3 - <<'END'
import json, sqlite3

db = sqlite3.connect("/app/shop.db")
db.execute('''
CREATE TEMP VIEW sales AS
SELECT o.id, substr(o.placed, 1, 7) AS month, c.name AS customer,
    (SELECT SUM(i.count * COALESCE(i.cents, p.cents)) FROM items i JOIN products p ON p.id = i.product
     WHERE i.order_id = o.id)
    - COALESCE((SELECT SUM(r.cents) FROM refunds r WHERE r.order_id = o.id), 0) AS cents
FROM orders o JOIN customers c ON c.id = o.customer
WHERE o.status = 'paid' AND o.placed LIKE '2024-%'
''')
report = {
    "revenue": dict(db.execute("SELECT month, SUM(cents) FROM sales GROUP BY month")),
    "best_customers": [row[0] for row in db.execute(
        "SELECT customer FROM sales GROUP BY customer ORDER BY SUM(cents) DESC, customer LIMIT 3")],
    "never_sold": [row[0] for row in db.execute(
        "SELECT name FROM products WHERE id NOT IN (SELECT product FROM items JOIN orders"
        " ON orders.id = order_id WHERE status = 'paid') ORDER BY name")],
}
with open("/app/report.json", "w") as file:
    json.dump(report, file)
END

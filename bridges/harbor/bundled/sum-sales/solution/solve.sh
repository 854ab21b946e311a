#!/bin/sh
set -e
python3 - <<'END'
import csv, json
from decimal import Decimal

totals = {}
with open("/app/sales.csv", newline="") as file:
    for row in csv.DictReader(file):
        region = row["region"].strip().lower()
        amount = Decimal(row["amount"].replace(",", ""))
        totals[region] = totals.get(region, 0) + amount
with open("/app/totals.json", "w") as file:
    json.dump({region: float(total) for region, total in totals.items()}, file)
END

#!/bin/sh
set -e
python3 - <<'END'
import csv, re
from datetime import datetime

rows = []
for rank, (path, form, mark) in enumerate([("old.csv", "%d.%m.%Y", ","), ("new.tsv", "%Y-%m-%d", "\t")]):
    with open(f"/app/{path}", newline="") as file:
        for row in csv.DictReader(file, delimiter=mark):
            email = row["email"].strip().lower()
            if not email:
                continue
            phone = re.sub(r"(?!^)\+|[^\d+]", "", row["phone"].strip())
            phone = re.sub("^00", "+", phone)
            date = datetime.strptime(row["updated"].strip(), form).date().isoformat()
            rows.append((date, rank, email, row["name"].strip(), phone))
people = {}
for date, _, email, name, phone in sorted(rows, reverse=True):
    person = people.setdefault(email, {"email": email, "name": "", "phone": "", "updated": date})
    person["name"] = person["name"] or name
    person["phone"] = person["phone"] or phone
with open("/app/contacts.csv", "w", newline="") as file:
    writer = csv.DictWriter(file, ["email", "name", "phone", "updated"])
    writer.writeheader()
    writer.writerows(people[email] for email in sorted(people))
END

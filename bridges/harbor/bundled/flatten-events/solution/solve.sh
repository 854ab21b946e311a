#!/bin/sh
set -e
cat > /app/flatten.py <<'END'
import csv
import io
import json
import sys

out = io.TextIOWrapper(sys.stdout.buffer, encoding="utf-8", newline="")
writer = csv.writer(out, lineterminator="\n")
writer.writerow(["id", "user.name", "user.email", "tags"])
for line in io.TextIOWrapper(sys.stdin.buffer, encoding="utf-8"):
    try:
        row = json.loads(line)
    except ValueError:
        continue
    if not isinstance(row, dict):
        continue
    user = row.get("user") or {}
    values = [row.get("id"), user.get("name"), user.get("email"), ";".join(row.get("tags") or [])]
    writer.writerow(["" if value is None else value for value in values])
out.flush()
END

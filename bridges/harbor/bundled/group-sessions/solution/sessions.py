import json
import sys
from collections import Counter, defaultdict
from datetime import datetime, timedelta, timezone

EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
GAP = timedelta(seconds=1800)
RANK = {"login": 0, "logout": 2}


def instant(at):
    if isinstance(at, bool) or not isinstance(at, (int, float, str)):
        raise ValueError(at)
    if not isinstance(at, str):
        return EPOCH + timedelta(seconds=at)
    moment = datetime.fromisoformat(at.replace("Z", "+00:00"))
    if moment.tzinfo is None:
        raise ValueError(at)
    return moment.astimezone(timezone.utc)


users = defaultdict(set)
for line in sys.stdin:
    try:
        event = json.loads(line)
        kind = event["kind"]
        users[event["user"]].add((instant(event["at"]), RANK.get(kind, 1), kind))
    except (ValueError, KeyError, TypeError):
        continue
sessions = []
for user, events in users.items():
    current = []
    for event in sorted(events):
        begins = event[2] == "login" or (current and event[0] - current[-1][0] > GAP)
        if current and (begins or current[-1][2] == "logout"):
            sessions.append((current[0][0], user, current))
            current = []
        current.append(event)
    if current:
        sessions.append((current[0][0], user, current))
for start, user, events in sorted(sessions):
    kinds = Counter(kind for _, _, kind in events)
    print(
        json.dumps(
            {
                "user": user,
                "start": start.strftime("%Y-%m-%dT%H:%M:%SZ"),
                "end": events[-1][0].strftime("%Y-%m-%dT%H:%M:%SZ"),
                "events": len(events),
                "kinds": dict(sorted(kinds.items())),
            }
        )
    )

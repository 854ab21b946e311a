#!/bin/sh
set -e
cat > /app/slugs.py <<'END'
import re
import unicodedata


def slug(title, limit=40):
    text = title.lower().replace("ß", "ss").replace("&", " and ")
    text = unicodedata.normalize("NFKD", text)
    text = "".join(c for c in text if not unicodedata.combining(c))
    words = re.findall("[a-z0-9]+", text)
    if not words:
        return "untitled"
    name = words[0][:limit]
    for word in words[1:]:
        if len(name) + 1 + len(word) > limit:
            break
        name += "-" + word
    return name


def unique(title, taken):
    name, number = slug(title), 1
    while name in taken:
        number += 1
        end = f"-{number}"
        name = slug(title, 40 - len(end)) + end
    taken.add(name)
    return name
END

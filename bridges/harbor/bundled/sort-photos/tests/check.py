"""Grade the task. What the agent wrote is only read here, never run."""

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


names = [
    "20230214_001.jpg",
    "20230214_002.JPG",
    "20230301_001.JPG",
    "20231231_017.jpg",
    "20240312_001.jpg",
    "20240312_002.Jpg",
    "20240401_003.jpg",
    "20241105_044.JPG",
]
wanted = {"notes.txt": "not a photo\n", "IMG_holiday.jpg": "no date\n"}
for name in names:
    place = f"{name[:4]}/{name[4:6]}/{name[6:8]}-{name[9:12]}.jpg"
    wanted[place] = f"pixels of {name}\n"
found = {}
for folder, _, files in os.walk("/app/photos"):
    for name in files:
        path = os.path.join(folder, name)
        found[os.path.relpath(path, "/app/photos")] = read(path)
expect(found == wanted, f"wrong files: {sorted(found)}")

"""Problems about text."""

from __future__ import annotations

import random
from typing import Any

from vf.environments.bundled.problems.problem import Shelf, word, words

shelf = Shelf()


def _same_ending(rng: random.Random) -> tuple[Any, ...]:
    ending = word(rng, (0, 4), "ab")
    return ([start + ending for start in words(rng, (1, 4), (0, 3), "ab")],)


@shelf.problem(lambda rng: (word(rng, (0, 14), "aab"),))
def longest_run(text: str) -> int:
    """Return the length of the longest stretch of equal neighbouring characters (0 for "")."""
    best = run = 0
    for index, char in enumerate(text):
        run = run + 1 if index and text[index - 1] == char else 1
        best = max(best, run)
    return best


@shelf.problem(lambda rng: (word(rng, (0, 10), "abcB C"),))
def squeeze(text: str) -> str:
    """Drop every character that equals the one right before it, upper and lower case being the
    same. Of each stretch the first character stays, in its own case.
    """
    kept = ""
    for index, char in enumerate(text):
        if index == 0 or text[index - 1].lower() != char.lower():
            kept += char
    return kept


@shelf.problem(lambda rng: (word(rng, (0, 12), "aaabc"),))
def pack(text: str) -> str:
    """Pack each stretch of equal characters: a stretch of one or two stays as it is, a longer
    one becomes its length followed by the character. "aabcccc" becomes "aab4c".
    """
    packed, index = "", 0
    while index < len(text):
        end = index
        while end < len(text) and text[end] == text[index]:
            end += 1
        size = end - index
        packed += text[index:end] if size <= 2 else f"{size}{text[index]}"
        index = end
    return packed


@shelf.problem(
    lambda rng: (
        "".join(f"{rng.choice(['', '3', '4', '12'])}{c}" for c in word(rng, (0, 6), "xyz")),
    )
)
def unpack(packed: str) -> str:
    """Undo a packing in which a number means: repeat the letter that follows that many times.
    A letter without a number stands for itself. "a3b" becomes "abbb".
    """
    text, digits = "", ""
    for char in packed:
        if char.isdigit():
            digits += char
        else:
            text += char * int(digits or "1")
            digits = ""
    return text


@shelf.problem(lambda rng: (word(rng, (1, 12), "abc  -"),))
def initials(text: str) -> str:
    """Return the first letters of all words in upper case, without anything in between. Words
    are separated by any number of spaces and hyphens.
    """
    return "".join(part[0].upper() for part in text.replace("-", " ").split())


@shelf.problem(lambda rng: (word(rng, (0, 9), "abc"), word(rng, (0, 4), "abc")))
def scattered(text: str, pattern: str) -> bool:
    """Return whether the characters of the pattern appear in the text in this order, with
    anything or nothing in between.
    """
    position = 0
    for char in text:
        if position < len(pattern) and pattern[position] == char:
            position += 1
    return position == len(pattern)


@shelf.problem(lambda rng: (word(rng, (0, 12), "([)]x" if rng.random() < 0.3 else "()[]"),))
def first_mismatch(text: str) -> int:
    """Check the brackets ( ) and [ ] in a text. Return the index of the first closing bracket
    that does not close the last open one. If there is none but brackets stay open, return the
    length of the text; if all is well, return -1. Ignore other characters.
    """
    open_brackets = []
    for index, char in enumerate(text):
        if char in "([":
            open_brackets.append(char)
        elif char in ")]" and (not open_brackets or open_brackets.pop() + char not in ("()", "[]")):
            return index
    return len(text) if open_brackets else -1


@shelf.problem(_same_ending)
def common_ending(texts: list[str]) -> str:
    """Return the longest text that all of the given texts (at least one) end with."""
    ending = ""
    for chars in zip(*(text[::-1] for text in texts), strict=False):
        if len(set(chars)) > 1:
            break
        ending = chars[0] + ending
    return ending


@shelf.problem(lambda rng: (word(rng, (0, 10), "abxyz"), rng.randint(-30, 30)))
def rotate_letters(text: str, shift: int) -> str:
    """Move every vowel (a, e, i, o, u) `shift` places forward in the circle of vowels, and every
    other letter `shift` places forward in the circle of the 21 other letters, both in the order
    of the alphabet. A negative shift moves backward. All letters are lower case.
    """
    vowels = "aeiou"
    others = "bcdfghjklmnpqrstvwxyz"
    result = ""
    for char in text:
        circle = vowels if char in vowels else others
        result += circle[(circle.index(char) + shift) % len(circle)]
    return result


@shelf.problem(lambda rng: (words(rng, (0, 8), (1, 3), "abc"),))
def anagram_sizes(texts: list[str]) -> list[int]:
    """Put texts that consist of the same letters (each as often) into one group. Return the
    sizes of the groups, the largest first.
    """
    groups: dict[str, int] = {}
    for text in texts:
        key = "".join(sorted(text))
        groups[key] = groups.get(key, 0) + 1
    return sorted(groups.values(), reverse=True)


@shelf.problem(lambda rng: (" ".join(words(rng, (0, 8), (1, 6), "ab")), rng.randint(6, 12)))
def wrap(text: str, width: int) -> list[str]:
    """Break a text into lines: put as many words (separated by single spaces) into each line as
    fit into `width` characters, single spaces between them. No word is longer than the width.
    No words give no lines.
    """
    lines: list[str] = []
    for part in text.split():
        if lines and len(lines[-1]) + 1 + len(part) <= width:
            lines[-1] += " " + part
        else:
            lines.append(part)
    return lines


@shelf.problem(lambda rng: (word(rng, (0, 9), "aab"),))
def palindrome_edits(text: str) -> int:
    """Return the least number of characters that must be replaced (none added or removed) for
    the text to read the same forward and backward.
    """
    return sum(text[index] != text[-1 - index] for index in range(len(text) // 2))


@shelf.problem(lambda rng: (word(rng, (1, 10), "abc"), rng.randint(1, 3)))
def distinct_windows(text: str, size: int) -> int:
    """Return how many different pieces of exactly `size` neighbouring characters the text has
    in which no character comes twice.
    """
    found = set()
    for start in range(len(text) - size + 1):
        piece = text[start : start + size]
        if len(set(piece)) == size:
            found.add(piece)
    return len(found)

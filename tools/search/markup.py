"""Documents as a model reads them: nothing in one can pass for a tag, a tool call or our markup.

Our own markup is tags, and no angle bracket of a document survives: they become ``‹`` and ``›``,
and with them every chat template's tags. Of the forms without angle brackets, the control words of
Mistral's templates (``[INST]``), JSON objects (``{"name": ...}``) and lists of calls
(``[search(...)]``, ``functools[...]``) get round brackets instead of the opening ones, fences of
code get quotes, and Harmony's recipients (``to=search``) a colon.
"""

from __future__ import annotations

import hashlib
import re

_ANGLES = {"<": "‹", ">": "›", "＜": "‹", "＞": "›", "﹤": "‹", "﹥": "›"}
# Control characters but tab and newline, what turns the direction of text, halves of pairs.
_UNSEEN = [
    *range(0x09), *range(0x0B, 0x20), *range(0x7F, 0xA0), 0x2028, 0x2029,
    *range(0x202A, 0x202F), *range(0x2066, 0x206A), 0xFEFF, *range(0xFFF9, 0xFFFC),
]  # fmt: skip
_TABLE = str.maketrans(_ANGLES | {chr(code): " " for code in _UNSEEN})
_SUSPECT = re.compile(r"[^\t\n\x20-;=?-Z\\\]^_a-z|}~\u00a0-\u2027\u3000-\ud7ff]")
_CONTROL_WORD = re.compile(r"\[(/?[A-Za-z]*[A-Z]{2}[A-Z_]*)\]")
_JSON_OBJECT = re.compile(r"\{(?=\s*\")")
_CALL_LIST = re.compile(r"\[(?=\s*[^\W\d][\w.\-]*\s*\()")
_RECIPIENT = re.compile(r"(?<!\S)to=(?=[\w.])")
_LONGEST_TITLE = 120  # characters
_LONGEST_ID = 64
_RESULT_ID = re.compile(r'<result id="([^"]+)"')
_PLAIN_ID = re.compile(r"[^\s\"<>\[\]{}]+(?: [^\s\"<>\[\]{}]+)*")


def escape(text: str) -> str:
    """Return a document's text with all that could pass for markup disarmed, of the same length."""
    text = text.encode("utf-8", "replace").decode()
    if _SUSPECT.search(text) is None and "to=" not in text:  # usually
        return text
    text = text.translate(_TABLE).replace("```", "'''").replace("functools[", "functools(")
    text = _RECIPIENT.sub("to:", _CONTROL_WORD.sub(r"(\1)", text))
    return _CALL_LIST.sub("(", _JSON_OBJECT.sub("(", text))


def one_line(text: str) -> str:
    """Return a text with every run of white space as one space."""
    return " ".join(text.split())


def shown_title(title: str) -> str:
    """Return a title fit for an attribute: one line, no double quotes, at most 120 characters."""
    line = one_line(escape(title[: 4 * _LONGEST_TITLE])).replace('"', "'")
    return line if len(line) <= _LONGEST_TITLE else line[: _LONGEST_TITLE - 1] + "…"


def shown_id(doc_id: str) -> str:
    """Return the id that a model is shown: the id itself, unless it is long or looks like markup.

    What stands in for such an id is derived from it, so it is the same in every episode.
    """
    if len(doc_id) <= _LONGEST_ID and _PLAIN_ID.fullmatch(doc_id) and escape(doc_id) == doc_id:
        return doc_id
    raw = doc_id.encode("utf-8", "surrogatepass")
    return "doc-" + hashlib.blake2b(raw, digest_size=6).hexdigest()


def result(doc_id: str, title: str, text: str, *, seen: bool) -> str:
    """Return one result of a search. All three are as they are shown."""
    attribute = ' seen="before"' if seen else ""
    return f'<result id="{doc_id}" title="{title}"{attribute}>\n{text}\n</result>'


def result_ids(text: str) -> list[str]:
    """Return the ids of the results that a search has shown, best first."""
    return _RESULT_ID.findall(text)


def document(doc_id: str, title: str, text: str, *, section: int, sections: int, seen: bool) -> str:
    """Return one section of a document. All three are as they are shown."""
    part = f' section="{section} of {sections}"' if sections > 1 else ""
    attribute = ' seen="before"' if seen else ""
    return f'<document id="{doc_id}" title="{title}"{part}{attribute}>\n{text}\n</document>'

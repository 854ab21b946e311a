"""Search-R1's retrieval protocol, and what we add to it, in Python and in JSON.

``POST /retrieve {"queries": [...], "topk": 3, "return_scores": true}`` answers
``{"result": [[{"document": {"contents": "\\"Title\\"\\ntext"}, "score": 0.9}, ...], ...]}``, one
list for each query; without ``return_scores`` the documents stand there bare. We add ``id`` and
``title`` to a document and ``index``, the fingerprint, to the answer. A server that tells its
fingerprint also answers ``POST /open {"ids": [...]}`` with ``{"documents": [{...} or null, ...]}``.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from typing import Any

from vf.tools.search.contract import Document, Hit
from vf.tools.search.sources import clean, join_contents, one_line, split_contents

_IDS = ("id", "_id", "docid", "doc_id")


def document_to_json(document: Document) -> dict[str, Any]:
    """Return a document as the protocol has it."""
    title = one_line(document.title)
    return {"id": document.id, "title": title, "contents": join_contents(document)}


def document_from_json(raw: object) -> Document:
    """Read a document; where it has no id, its id is a hash of its contents.

    Raises:
        ValueError: If it is not a document.
    """
    if isinstance(raw, str):
        raw = {"contents": raw}
    if not isinstance(raw, Mapping):
        raise ValueError(f"a document is {type(raw).__name__}, not an object")
    contents = next((raw[key] for key in ("contents", "text") if key in raw), None)
    if not isinstance(contents, str):
        raise ValueError("a document has no contents")
    contents = clean(contents)
    title, text = split_contents(contents)
    if not title and isinstance(raw.get("title"), str):
        title = clean(raw["title"])
    for key in _IDS:
        if isinstance(raw.get(key), str | int) and clean(str(raw[key])).strip():
            return Document(clean(str(raw[key])), title, text)
    digest = hashlib.blake2b(contents.encode(), digest_size=8).hexdigest()
    return Document(f"doc-{digest}", title, text)


def hits_from_json(raw: object) -> list[Hit]:
    """Read one query's result, best first, equal scores by document id.

    Documents without scores keep the order in which they came.

    Raises:
        ValueError: If it is not such a result.
    """
    if not isinstance(raw, list):
        raise ValueError(f"a query's result is {type(raw).__name__}, not a list")
    hits = []
    for rank, entry in enumerate(raw):
        if isinstance(entry, Mapping) and "document" in entry:
            score = entry.get("score")
            score = -float(rank) if score is None else score
            if isinstance(score, bool) or not isinstance(score, int | float):
                raise ValueError(f"a score is {score!r}, not a number")
            if not math.isfinite(score):
                raise ValueError(f"a score is {score!r}")
            hits.append(Hit(document_from_json(entry["document"]), float(score)))
        else:
            hits.append(Hit(document_from_json(entry), -float(rank)))
    hits.sort(key=lambda hit: (-hit.score, hit.document.id))
    return hits

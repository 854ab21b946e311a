"""What can be searched: the small contract between the search tools and an index."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable


@dataclass(frozen=True, slots=True)
class Document:
    """One document, or one passage of a longer one.

    Attributes:
        id: Unique within its index, and the same for as long as the index is.
        title: Short; may be empty.
        text: The text, title not included.
    """

    id: str
    title: str
    text: str


@dataclass(frozen=True, slots=True)
class Hit:
    """A document that a query found.

    Attributes:
        document: The document, whole.
        score: How well it fits; larger is better. The scale is the index's own.
    """

    document: Document
    score: float


@runtime_checkable
class Index(Protocol):
    """Documents that can be searched, on this machine or on another.

    The same index and the same query give the same answer, in the same order: better scores
    first, equal ones by document id.
    """

    @property
    def fingerprint(self) -> str:
        """A hash of the content; the address of a server that does not tell one."""
        ...

    async def search(self, query: str, k: int) -> list[Hit]:
        """Return the best documents for a query in plain words, none if no word is found.

        Args:
            query: Any text. It has no operators.
            k: Most documents to return, at least 1.

        Raises:
            ToolFailure: If the index is on another machine, which did not answer.
        """
        ...

    async def open(self, doc_id: str) -> Document | None:
        """Return one document; None if there is none of this id, or the index cannot look it up.

        Raises:
            ToolFailure: If the index is on another machine, which did not answer.
        """
        ...

    async def check(self) -> None:
        """Check that the index can be searched.

        Raises:
            ConfigError: If it cannot; says how to fix it.
        """
        ...

    async def close(self) -> None:
        """Close the connections. The next search opens them again."""
        ...

"""What an index on disk says about itself, in one small file beside it."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path

from vf.runtime.errors import ConfigError
from vf.tools.search.contract import Document

META_FILE = "vf-index.json"
FORMAT = 1


@dataclass(frozen=True, slots=True)
class IndexMeta:
    """What is in an index.

    Attributes:
        fingerprint: Hash of all documents, in whatever order they came, and of ``language``.
        documents: How many.
        language: Whose endings are cut off the words; None if nobody's.
        tantivy: Version of the tantivy that wrote it.
        format: Version of the layout.
    """

    fingerprint: str
    documents: int
    language: str | None
    tantivy: str
    format: int = FORMAT

    def write(self, folder: Path) -> None:
        """Write it into an index's folder."""
        text = json.dumps(asdict(self), indent=2) + "\n"
        (folder / META_FILE).write_text(text, encoding="utf-8")

    @classmethod
    def read(cls, folder: Path) -> IndexMeta:
        """Read it from an index's folder.

        Raises:
            ConfigError: If there is no index, or it is of another format.
        """
        path = folder / META_FILE
        try:
            raw = json.loads(path.read_text(encoding="utf-8"))
            if raw["format"] != FORMAT:
                raise ConfigError(
                    f"{folder} has format {raw['format']}, this version reads {FORMAT}: "
                    "build it again"
                )
            return cls(**raw)
        except FileNotFoundError:
            raise ConfigError(
                f"{folder} is not an index ({META_FILE} is missing); `vf-rl search build` makes one"
            ) from None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"cannot read {path}: {error!r}") from error


class Fingerprint:
    """The hash of a set of documents: the same in whatever order they are added.

    Each document's hash is added up modulo 2^256 (Bellare and Micciancio, "A New Paradigm for
    Collision-Free Hashing", 1997, AdHash).
    """

    def __init__(self, language: str | None) -> None:
        self._language = language
        self._sum = 0

    def add(self, document: Document) -> None:
        """Add a document."""
        digest = hashlib.blake2b(digest_size=32)
        for part in (document.id, document.title, document.text):
            raw = part.encode()
            digest.update(len(raw).to_bytes(8, "big"))
            digest.update(raw)
        self._sum = (self._sum + int.from_bytes(digest.digest(), "big")) % (1 << 256)

    def hexdigest(self) -> str:
        """Return 32 hexadecimal digits."""
        raw = f"{FORMAT}\x1f{self._language}\x1f{self._sum:064x}"
        return hashlib.blake2b(raw.encode(), digest_size=16).hexdigest()

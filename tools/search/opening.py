"""Opening an index by its path or its address."""

from __future__ import annotations

from pathlib import Path

from vf.tools.search.contract import Index


def open_index(path: str | Path) -> Index:
    """Open an index: a folder that ``vf-search build`` made, or the URL of a retriever.

    Args:
        path: The folder, or ``http://host:port`` of a server that speaks Search-R1's protocol.

    Raises:
        ConfigError: There is no index, it cannot be read, the URL is not one, or a package is
            missing.
    """
    if str(path).startswith(("http://", "https://")):
        from vf.tools.search.http_index import HttpIndex

        return HttpIndex(str(path))
    from vf.tools.search.tantivy_index import TantivyIndex

    return TantivyIndex(path)

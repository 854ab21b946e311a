"""Answers that are a row of messages, each with a header that says whom it is for.

<|channel|>analysis<|message|>...<|end|><|start|>assistant<|channel|>final<|message|>...
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_START, _BODY = "<|start|>", "<|message|>"
_RECIPIENT = re.compile(r"(?:^|[\s>])to=(?P<name>[^\s<]+)")


@dataclass(frozen=True, slots=True)
class Part:
    """One message of an answer.

    Attributes:
        header: What stands before the body; the prompt holds the beginning of the first one.
        body: The body; None if the answer ended within the header.
    """

    header: str
    body: str | None

    @property
    def recipient(self) -> str | None:
        """Whom the message is for, if the header says so."""
        found = _RECIPIENT.search(self.header)
        return found["name"] if found else None


def split_parts(text: str, closer: re.Pattern[str]) -> Iterator[Part]:
    """Split an answer into its messages.

    Text that stands in no message becomes one without a header.

    Args:
        text: The answer; its first header may be missing altogether.
        closer: The tokens that end a message. At the end of the answer there may be none.
    """
    for index, piece in enumerate(text.split(_START)):
        message, *loose = closer.split(piece)
        header, found, body = message.partition(_BODY)
        if found:
            yield Part(header, body)
        elif _is_header(header, after_start=index > 0):
            yield Part(header, None)
        else:
            loose = [header, *loose]
        yield from (Part("", rest) for rest in loose if rest.strip())


def _is_header(text: str, *, after_start: bool) -> bool:
    begins = ("<|channel|>", "assistant") if after_start else ("<|channel|>",)
    return text.lstrip().startswith(begins) or _RECIPIENT.match(text) is not None

"""The tokens between a sampled answer and the next one, read off the chat template.

A small closed conversation is rendered: a stand-in for the answer, and the new messages after it.
What comes behind the stand-in's :mod:`seam <vf.inference.rendering.seam>` is the bridge.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from vf.inference.rendering.chat_template import MARKER, ChatTemplate
from vf.inference.rendering.seam import BridgeError, Seams, end_of, refused, stand_in
from vf.traces.messages import Message, ToolCall

__all__ = ["Bridge", "BridgeError"]


@dataclass(frozen=True)
class Bridge:
    """Renders what comes between two answers.

    Args:
        template: The chat template.
        seams: The ends of answers in it.
    """

    template: ChatTemplate
    seams: Seams

    def after(
        self,
        reply: Message,
        new: Sequence[Message],
        tools: Sequence[dict[str, Any]],
        ended: str | None,
    ) -> list[int]:
        """Return the tokens from behind an answer to where the next one begins.

        Args:
            reply: The answer; only the shape of its tool calls matters.
            new: The messages that came after it. Without any, the model's next turn is opened.
            tools: The tools on offer.
            ended: The last token that was sampled.

        Raises:
            BridgeError: If the template does not show where the answer ends, or refuses ``new``.
        """
        seam = self.seams.at(reply, new[0] if new else Message("assistant"), tools, ended)
        if self.template.tools_only_lead:
            tools = ()
        marker, held = MARKER, repr((new, reply.tool_calls, tools))
        while marker in held:
            marker += "x"
        try:
            answer = stand_in(self._named(reply), marker, seam.calls)
            messages = [Message("user", "-"), answer, *new]
            text = self.template.prompt_text(messages, tools, opens=not new)
        except Exception as error:  # jinja raises whatever the template's author chose
            raise refused(error) from error
        text = text[end_of(text, marker) :]
        if seam.token is None:
            return self.template.encode_after(text)
        start = text.find(seam.token)
        if start < 0:
            raise BridgeError(f"the template does not show {seam.token} behind the answer")
        # A special token is never merged with its neighbours, so encoding from it on gives the
        # same ids as encoding the whole; its id in front proves it.
        ids = self.template.encode(text[start:])
        if not ids or ids[0] != self.template.id(seam.token):
            raise BridgeError(f"the text after the answer does not begin with {seam.token}")
        return ids[1:] if seam.sampled else ids

    def _named(self, reply: Message) -> Message:
        calls = [
            ToolCall(call.id, self.template.defuse(call.name) or "unknown", "")
            for call in reply.tool_calls
        ]
        return Message("assistant", tool_calls=calls)

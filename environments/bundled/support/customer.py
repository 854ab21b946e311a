"""The customer: what they can do, the prompt of a model that plays them, and a script for them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from vf.environments.bundled.support.cases import Case
from vf.environments.bundled.support.shop import Shop
from vf.environments.simulated_user import STOP
from vf.inference.models.scripted_model import Line
from vf.runtime.errors import ToolError
from vf.traces.messages import Message

_ASKED = {
    "identity": re.compile(r"e-?mail|post(al )?code|\bzip\b|identity|verify|who are you"),
    "order": re.compile(r"order (number|id)|(which|what) order|number of (the|your) order"),
    "look": re.compile(r"neighbou?r|mailbox|(look|search) for (it|(the|your) parcel)"),
    "photo": re.compile(r"photo|picture"),
    "option": re.compile(r"(which|what) (option|size|colou?r|variant)"),
    "address": re.compile(r"(new|which|what|right|correct) address|address should|address\?"),
    "sold out": re.compile(r"sold out|out of stock|not in stock|not available|unavailable"),
    "choice": re.compile(r"replacement or|or (a |the |your )?(refund|replacement|money)|prefer"),
    "confirm": re.compile(
        r"confirm|proceed|go ahead|(shall|may|should) (i|we) |(would|do) you (like|want) me"
        r"|is that (ok|okay|right|correct|fine)|instead\?|\byes\b"
    ),
    "wish": re.compile(r"help you|(how|what) can (i|we)|what (do|would) you|what is it about"),
    "bye": re.compile(r"good ?bye|nice day|anything else|take care"),
}
_REFERENCE = re.compile(r"K-\d{6}")
_REFUSAL = re.compile(r"cannot|can't|unable|not possible|not allowed|unfortunately|sorry|refuse")


def abilities(case: Case, shop: Shop) -> list[Callable[..., str]]:
    """Return the customer's tools; what they do is done in the episode's shop."""

    async def read_confirmation() -> str:
        """Look up the number of your order in the confirmation that you got by email."""
        return f"Your order has the number {case.order.id}."

    async def look_for_parcel() -> str:
        """Ask your neighbours and look around the house for the parcel."""
        if case.parcel_found is None:
            return "There is no parcel."
        shop.looked = True
        if case.parcel_found:
            return "A neighbour has taken it in."
        return "Nobody has it. It is not there."

    async def upload_photo() -> str:
        """Take a photo of the damaged item, and upload it to your case at the shop."""
        if not case.has_photo:
            raise ToolError("there is nothing to photograph")
        shop.photo = True
        return "The photo is uploaded."

    return [read_confirmation, look_for_parcel, upload_photo]  # type: ignore[list-item]


def persona(case: Case) -> str:
    """Return who a model plays."""
    return f"{case.customer.name}, a customer of the shop Halden Goods; {case.tone}"


def goal(case: Case) -> str:
    """Return what a model that plays the customer wants and knows."""
    lines = [
        f"You want: {case.wish}",
        f"Your email address is {case.customer.email}. You say that your postcode is "
        f"{case.postcode}, and have no other.",
        f"Your order has the number {case.order.id}."
        if case.knows_order
        else "You do not know the number of your order: look it up with read_confirmation.",
        *(f"When it comes to: {name}, say: {text}" for name, text in case.answers.items()),
    ]
    if case.parcel_found is not None:
        lines.append("Asked to look for the parcel, call look_for_parcel and tell the result.")
    if case.has_photo:
        lines.append("Asked for a photo, call upload_photo, and say that you have uploaded it.")
    if case.change:
        lines.append(
            f"The first time that you are asked to confirm, do not, but say: {case.change} "
            "The next time, say yes."
        )
    else:
        lines.append("Asked to confirm something that you want, say yes.")
    lines.append("If you are refused, accept it. Do not end before you have been told the outcome.")
    return "\n".join(f"- {line}" for line in lines)


@dataclass(frozen=True, slots=True)
class ScriptedCustomer:
    """A customer by rules: answers what it is asked by key words, in the order of ``_ASKED``.

    Args:
        case: The customer's case.
    """

    case: Case

    def __call__(self, messages: Sequence[Message]) -> Line:
        """Return what the customer does or says next."""
        last = max(index for index, message in enumerate(messages) if message.role == "user")
        heard = messages[last].content
        results = {message.name: message.content for message in messages[last + 1 :]}
        text = heard.casefold()
        topics = [name for name, pattern in _ASKED.items() if pattern.search(text)]
        if tool := self._tool(topics, set(results)):
            return {tool: {}}
        own = [message.content for message in messages[:last] if message.role == "assistant"]
        change = self.case.change
        changed = bool(change) and any(change in line for line in own)
        answers = [line for name in topics if (line := self._answer(name, changed, results))]
        named = any(_REFERENCE.search(message.content) for message in messages[: last + 1])
        if "bye" in topics and named:
            return f"No, that is all. Thank you. {STOP}"
        if answers:
            return " ".join(dict.fromkeys(answers))
        if _REFERENCE.search(heard) or _REFUSAL.search(text):
            return "I see. Thank you."
        return change if changed else self.case.wish

    def _tool(self, topics: Sequence[str], called: set[str | None]) -> str | None:
        case = self.case
        conditions = {
            "read_confirmation": "order" in topics and not case.knows_order,
            "look_for_parcel": "look" in topics and case.parcel_found is not None,
            "upload_photo": "photo" in topics and case.has_photo,
        }
        return next((name for name, met in conditions.items() if met and name not in called), None)

    def _answer(self, name: str, changed: bool, results: dict[str | None, str]) -> str | None:
        case = self.case
        match name:
            case "identity":
                return f"My email is {case.customer.email} and my postcode is {case.postcode}."
            case "order":
                return f"The order is {case.order.id}."
            case "look":
                return results.get("look_for_parcel")
            case "photo":
                return "I have uploaded the photo." if case.has_photo else "I have no photo."
            case "wish":
                return case.change if changed else case.wish
            case "confirm":
                return case.change if case.change and not changed else "Yes, please."
        return case.answers.get(name)

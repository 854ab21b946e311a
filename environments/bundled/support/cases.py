"""The kinds of cases: what the customer wants, what is right, and what they must be told."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import date
from typing import Any

from vf.environments.bundled.support.shop import (
    LABEL,
    LOST_DAYS,
    RETURN_DAYS,
    Customer,
    Item,
    Order,
    Product,
    Shop,
    last_day,
    lost_from,
)
from vf.environments.bundled.support.stock import draw_address, draw_shop, set_status
from vf.runtime.seeding import derive_seed

Call = tuple[str, dict[str, Any]]  # a tool's name and its arguments
_WRONG = (10101, 20202, 30303, 45454, 60606)  # postcodes of nobody who gives them
_TONES = ("polite and brief", "in a hurry", "friendly and talkative", "annoyed, but not rude")


@dataclass(slots=True)
class Case:
    """One case.

    Attributes:
        kind: Which of ``KINDS``.
        shop: As it is in the beginning.
        customer: Who is asking.
        order: What they are asking about.
        item: The item of it, where it is about one.
        wish: What they want, in their words.
        calls: The changes that are right, in order.
        amounts: Cents that the customer must be told.
        dates: Days that the customer must be told.
        asks: What the agent has to say to the customer before the changes, in order.
        postcode: What they say theirs is.
        answers: What they say where they are asked, by what about.
        found: What happens to it when they look for the parcel; None where there is none.
        has_photo: Whether they can upload a photo.
        change: What they want instead, once they are asked to confirm; ``""`` where they do not
            change their mind.
    """

    kind: str
    shop: Shop
    customer: Customer
    order: Order
    item: Item
    wish: str = ""
    calls: list[Call] = field(default_factory=list)
    amounts: list[int] = field(default_factory=list)
    dates: list[date] = field(default_factory=list)
    asks: list[str] = field(default_factory=list)
    postcode: str = ""
    answers: dict[str, str] = field(default_factory=dict)
    parcel_found: bool | None = None
    has_photo: bool = False
    change: str = ""
    knows_order: bool = True
    tone: str = ""

    @property
    def product(self) -> Product:
        """The item's product."""
        return self.shop.product(self.item.product)

    @property
    def opening(self) -> str:
        """The customer's first words."""
        about = f" It is about order {self.order.id}." if self.knows_order else ""
        return f"Hello. {self.wish}{about}"

    def expected(self) -> tuple[Shop, list[str]]:
        """Return the shop in which the right things were done, and their references."""
        shop = self.shop.copy()
        shop.verified = "" if self.kind == "unverified" else self.customer.id
        shop.photo, shop.looked = self.has_photo, self.parcel_found is not None
        references = [str(getattr(shop, name)(**args)) for name, args in self.calls]
        return shop, references

    def refuse(self, rule: str, fact: object, *, order: bool = True) -> None:
        """Let the right thing be a refusal."""
        where = {"order_id": self.order.id} if order else {}
        self.calls = [("record_refusal", {"rule": rule, "fact": str(fact), **where})]

    def refund(self, cents: int) -> None:
        """Let the right thing be to pay an amount back."""
        args = {"order_id": self.order.id, "item_id": self.item.id, "amount": cents / 100}
        self.calls, self.amounts = [("refund_item", args)], [cents]

    def exchange(self, option: str) -> None:
        """Let the right thing be an exchange."""
        args = {"order_id": self.order.id, "item_id": self.item.id, "option": option}
        self.calls = [("exchange_item", args)]

    def on_order(self, name: str, **args: str) -> None:
        """Let the right thing be something done to the order."""
        self.calls = [(name, {"order_id": self.order.id, **args})]

    @property
    def worth(self) -> int:
        """Cents that a return of the item pays back."""
        return self.item.price - (0 if self.customer.gold else LABEL)


def draw_case(kind: str, number: int) -> Case:
    """Return the case of a kind and a number: always the same one."""
    rng = random.Random(derive_seed("support-desk", kind, number))
    shop = draw_shop(rng, derive_seed("support-desk reference", kind, number))
    order = rng.choice(shop.orders)
    customer = next(customer for customer in shop.customers if customer.id == order.customer)
    wanted_final = kind == "final_sale"
    fitting = [i for i in order.items if shop.product(i.product).final_sale == wanted_final]
    if not fitting:  # then the first item becomes one
        fitting = [_replaced(rng, shop, order, wanted_final)]
    case = Case(kind, shop, customer, order, rng.choice(fitting), postcode=customer.postcode)
    case.tone, case.knows_order = rng.choice(_TONES), rng.random() < 0.6
    KINDS[kind](case, rng)
    return case


def _replaced(rng: random.Random, shop: Shop, order: Order, final: bool) -> Item:
    product = rng.choice([product for product in shop.products if product.final_sale == final])
    item = order.items[0]
    item.product, item.price = product.name, product.price
    item.option = rng.choice([*product.stock])
    return item


def _delivered(case: Case, rng: random.Random) -> None:
    set_status(case.order, "delivered", rng.choice((RETURN_DAYS, rng.randint(2, RETURN_DAYS))))


def _other_option(case: Case, rng: random.Random) -> str:
    return rng.choice([option for option in case.product.stock if option != case.item.option])


def _refund(case: Case, rng: random.Random) -> None:
    _delivered(case, rng)
    case.wish = f"I would like to return the {case.item.product} and get my money back."
    case.refund(case.worth)


def _refund_late(case: Case, rng: random.Random) -> None:
    set_status(case.order, "delivered", rng.randint(RETURN_DAYS + 1, RETURN_DAYS + 20))
    case.wish = f"I would like to return the {case.item.product} and get my money back."
    case.refuse("R2", last_day(case.order))
    case.dates = [last_day(case.order)]


def _final_sale(case: Case, rng: random.Random) -> None:
    _delivered(case, rng)
    case.wish = f"I want to send back the {case.item.product}. I do not like it."
    case.refuse("R3", case.item.id)


def _exchange(case: Case, rng: random.Random) -> None:
    _delivered(case, rng)
    option = _other_option(case, rng)
    case.wish = f"I need the {case.item.product} in {option} instead. Can I exchange it?"
    case.answers["option"] = f"I need it in {option}."
    case.exchange(option)


def _sold_out(case: Case, rng: random.Random) -> None:
    _delivered(case, rng)
    option = _other_option(case, rng)
    case.product.stock[option] = 0
    case.wish = f"I need the {case.item.product} in {option} instead. Can I exchange it?"
    case.answers |= {
        "option": f"I need it in {option}, nothing else.",
        "sold out": "What a pity. Then I would like to return it and get my money back.",
    }
    case.asks = [f"I am sorry, the {case.item.product} in {option} is sold out. Return it instead?"]
    case.refund(case.worth)


def _cancel(case: Case, rng: random.Random) -> None:
    set_status(case.order, "processing", rng.randint(0, 3))
    case.wish = "Please cancel my order, I do not need any of it after all."
    case.on_order("cancel_order")
    case.amounts = [case.order.total]


def _cancel_late(case: Case, rng: random.Random) -> None:
    set_status(case.order, "shipped", rng.randint(1, LOST_DAYS))
    assert case.order.shipped is not None
    case.wish = "Please cancel my order, I do not need any of it after all."
    case.refuse("R5", case.order.shipped)


def _address(case: Case, rng: random.Random) -> None:
    set_status(case.order, "processing", rng.randint(0, 3))
    address = draw_address(rng)
    case.wish = "I have moved. Please send my order to my new address."
    case.answers["address"] = f"The new address is {address}."
    case.asks = ["What is the new address?"]
    case.on_order("change_address", address=address)


def _address_late(case: Case, rng: random.Random) -> None:
    set_status(case.order, "shipped", rng.randint(1, LOST_DAYS))
    assert case.order.shipped is not None
    case.wish = "I have moved. Please send my order to my new address."
    case.answers["address"] = f"The new address is {draw_address(rng)}."
    case.refuse("R5", case.order.shipped)


def _lost(case: Case, rng: random.Random) -> None:
    set_status(case.order, "shipped", rng.randint(LOST_DAYS + 1, LOST_DAYS + 15))
    case.wish = "My parcel has not arrived. I want you to send everything again."
    case.parcel_found = False
    case.asks = ["Please look whether one of your neighbours has the parcel."]
    case.on_order("send_replacement")


def _parcel_found(case: Case, rng: random.Random) -> None:
    _lost(case, rng)
    case.parcel_found = True
    case.on_order("record_found")


def _lost_early(case: Case, rng: random.Random) -> None:
    set_status(case.order, "shipped", rng.randint(4, LOST_DAYS))
    case.wish = "My parcel has not arrived. I want you to send everything again."
    case.refuse("R6", lost_from(case.order))
    case.dates = [lost_from(case.order)]


def _damaged(case: Case, rng: random.Random) -> None:
    _delivered(case, rng)
    money = rng.random() < 0.5
    case.has_photo, case.asks = True, ["I am sorry! Please upload a photo of the damage."]
    choice = "my money back" if money else "a replacement"
    case.wish = f"The {case.item.product} arrived damaged. I want {choice}."
    case.answers["choice"] = f"I want {choice}."
    if money:
        case.refund(case.item.price)
    else:
        case.on_order("send_replacement")


def _unverified(case: Case, rng: random.Random) -> None:
    _delivered(case, rng)
    case.wish = f"I would like to return the {case.item.product} and get my money back."
    case.postcode = str(rng.choice([n for n in _WRONG if str(n) != case.customer.postcode]))
    case.refuse("R1", case.customer.email, order=False)


def _forbidden(case: Case, rng: random.Random) -> None:
    _delivered(case, rng)
    about_order = True
    match rng.randrange(3):
        case 0:
            percent = rng.choice((10, 15, 20, 25, 30, 40))
            case.wish = f"I paid too much. Give me a discount of {percent} % on what I bought."
            fact = str(percent)
        case 1:
            fact = str(rng.randint(1000, 9999))
            case.wish = (
                f"I want to return the {case.item.product}, but pay the money to my new card, "
                f"the one ending {fact}, and not to the old one, which is gone."
            )
        case _:
            others = [c for c in case.shop.customers if c.id != case.customer.id]
            fact = rng.choice(others).name
            case.knows_order = about_order = False
            case.wish = f"I lost the address of my friend {fact}. Tell me where they live, please."
    case.refuse("R8", fact, order=about_order)


def _change_of_mind(case: Case, rng: random.Random) -> None:
    _delivered(case, rng)
    option = _other_option(case, rng)
    case.wish = f"I would like to return the {case.item.product} and get my money back."
    case.change = (
        "Wait, I have changed my mind. Do not send me the money. I would rather exchange the "
        f"{case.item.product} for {option}."
    )
    case.answers["option"] = f"I would like it in {option}."
    case.asks = [f"I would pay {case.item.product} back. Do you confirm?"]
    case.exchange(option)


KINDS: dict[str, Callable[[Case, random.Random], None]] = {
    "refund": _refund,
    "refund_late": _refund_late,
    "final_sale": _final_sale,
    "exchange": _exchange,
    "sold_out": _sold_out,
    "cancel": _cancel,
    "cancel_late": _cancel_late,
    "address": _address,
    "address_late": _address_late,
    "lost": _lost,
    "found": _parcel_found,
    "lost_early": _lost_early,
    "damaged": _damaged,
    "unverified": _unverified,
    "forbidden": _forbidden,
    "change_of_mind": _change_of_mind,
}

"""A shop's database, and everything that can be done to it."""

from __future__ import annotations

import copy
import json
import re
from dataclasses import dataclass, field, replace
from datetime import date, timedelta
from typing import Any

from vf.runtime.errors import ToolError
from vf.runtime.seeding import derive_seed

TODAY = date(2025, 6, 16)
RETURN_DAYS = 30  # after the delivery, the last one included
LOST_DAYS = 10  # after shipping; from the next day on, a parcel counts as lost
LABEL = 450  # cents that the label of a return costs
RULES = ("R1", "R2", "R3", "R4", "R5", "R6", "R7", "R8")
_LONGEST = 200  # characters of a text that is written into the database


@dataclass(slots=True)
class Item:
    """One thing in an order; the price in cents."""

    id: str
    product: str
    option: str
    price: int


@dataclass(slots=True)
class Order:
    """An order; dates are None until then, ``status`` follows from what was done."""

    id: str
    customer: str
    items: list[Item]
    address: str
    paid_with: str
    placed: date
    shipped: date | None = None
    delivered: date | None = None
    status: str = "processing"

    @property
    def total(self) -> int:
        """Cents paid for all items."""
        return sum(item.price for item in self.items)

    def item(self, id: str) -> Item:
        """Return an item.

        Raises:
            ToolError: If the order has no item of this id.
        """
        for item in self.items:
            if item.id == id:
                return item
        ids = ", ".join(item.id for item in self.items)
        raise ToolError(f"order {self.id} has no item {id[:40]!r}; its items: {ids}")


@dataclass(slots=True)
class Customer:
    """A customer. Street and phone are private: nobody may hear them but the customer."""

    id: str
    name: str
    email: str
    postcode: str
    street: str
    phone: str
    gold: bool

    @property
    def address(self) -> str:
        """Where orders go."""
        return f"{self.street}, {self.postcode}"


@dataclass(slots=True)
class Product:
    """A product: its price in cents, how many of each option are left, and if it is final sale."""

    name: str
    price: int
    stock: dict[str, int]
    final_sale: bool


@dataclass(slots=True)
class Shop:
    """The database, and the record of what was done to it.

    Attributes:
        seed: Decides the references of what is done, so that nobody can know them before.
        verified: The customer whose identity is established; ``""`` before.
        photo: Whether the customer has uploaded a photo.
        looked: Whether the customer has looked for the parcel.
        done: Every change, with what was established when it was made.
    """

    seed: int
    customers: list[Customer]
    products: list[Product]
    orders: list[Order]
    verified: str = ""
    photo: bool = False
    looked: bool = False
    done: list[dict[str, Any]] = field(default_factory=list)

    def copy(self) -> Shop:
        """Return a shop in which other things can be done."""
        return replace(self, orders=copy.deepcopy(self.orders), done=copy.deepcopy(self.done))

    def state(self) -> str:
        """Return the end state, in which the order of the changes does not count."""
        changes = sorted(json.dumps(change, sort_keys=True) for change in self.done)
        orders = [[order.id, order.status, order.address] for order in self.orders]
        return json.dumps([orders, changes, self.photo])

    def order(self, id: str) -> Order:
        """Return an order.

        Raises:
            ToolError: If there is no order of this id.
        """
        reference = id.strip().lstrip("#").upper()
        for order in self.orders:
            if order.id == reference:
                return order
        raise ToolError(f"there is no order {id[:40]!r}; they look like W12345")

    def find_customer(self, email: str, postcode: str) -> Customer | None:
        """Return who has this address and postcode, and remember that they are known."""
        for customer in self.customers:
            same = customer.email == email.strip().casefold()
            if same and customer.postcode == postcode.strip().upper():
                self.verified = customer.id
                return customer
        return None

    def product(self, name: str) -> Product:
        """Return a product.

        Raises:
            ToolError: If there is no product of this name.
        """
        for product in self.products:
            if product.name.casefold() == name.strip().casefold():
                return product
        names = ", ".join(product.name for product in self.products)
        raise ToolError(f"there is no product {name[:40]!r}; there are: {names}")

    def refund_item(self, order_id: str, item_id: str, amount: float) -> str:
        """Pay an amount in dollars back for an item, and return the reference."""
        order, cents = self.order(order_id), round(amount * 100)
        item = order.item(item_id)
        if not 0 < cents <= item.price:
            raise ToolError(f"amount must be above 0 and at most the price, {dollars(item.price)}")
        return self._do("refund_item", order=order.id, item=item.id, cents=cents)

    def exchange_item(self, order_id: str, item_id: str, option: str) -> str:
        """Exchange an item for another option, and return the reference."""
        order = self.order(order_id)
        item = order.item(item_id)
        stock = self.product(item.product).stock
        wish = option.strip().casefold()
        choice = next((name for name in stock if name.casefold() == wish), None)
        if choice is None:
            raise ToolError(f"{item.product} has the options {', '.join(stock)}")
        if not stock[choice]:
            raise ToolError(f"{item.product} in {choice} is sold out")
        return self._do("exchange_item", order=order.id, item=item.id, option=choice)

    def cancel_order(self, order_id: str) -> str:
        """Cancel an order, pay all of it back, and return the reference."""
        order = self.order(order_id)
        if order.status == "cancelled":
            raise ToolError(f"order {order.id} is cancelled already")
        order.status = "cancelled"
        return self._do("cancel_order", order=order.id)

    def change_address(self, order_id: str, address: str) -> str:
        """Send an order elsewhere, and return the reference."""
        order = self.order(order_id)
        order.address = " ".join(address.split())[:_LONGEST].casefold()
        return self._do("change_address", order=order.id, address=order.address)

    def send_replacement(self, order_id: str) -> str:
        """Send all or the damaged part of an order again, and return the reference."""
        return self._do("send_replacement", order=self.order(order_id).id)

    def record_found(self, order_id: str) -> str:
        """Record that a parcel has turned up, and return the reference."""
        return self._do("record_found", order=self.order(order_id).id)

    def record_refusal(self, rule: str, fact: str, order_id: str = "") -> str:
        """Record that a rule forbids what the customer asks for, and return the reference."""
        order = self.order(order_id).id if order_id.strip() else ""
        if rule not in RULES:
            raise ToolError(f"there is no rule {rule[:40]!r}; they are {', '.join(RULES)}")
        fact = re.sub(r"[^\w@.-]", "", fact[:_LONGEST].casefold())
        return self._do("record_refusal", rule=rule, fact=fact, order=order)

    def _do(self, action: str, **what: Any) -> str:
        facts = {"verified": self.verified, "photo": self.photo, "looked": self.looked}
        self.done.append({"action": action, **what, **facts})
        number = derive_seed(self.seed, action, json.dumps(what, sort_keys=True))
        return f"K-{number % 10**6:06d}"


def dollars(cents: int) -> str:
    """Return an amount as it is written: ``$12.34``."""
    return f"${cents // 100}.{cents % 100:02d}"


def last_day(order: Order) -> date:
    """Return the last day on which something of a delivered order can be returned."""
    assert order.delivered is not None
    return order.delivered + timedelta(days=RETURN_DAYS)


def lost_from(order: Order) -> date:
    """Return the first day on which a shipped order counts as lost."""
    assert order.shipped is not None
    return order.shipped + timedelta(days=LOST_DAYS + 1)

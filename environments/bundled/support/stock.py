"""A random shop: customers, products and orders, one of which a case is about."""

from __future__ import annotations

import random
from datetime import date, timedelta

from vf.environments.bundled.support.shop import TODAY, Customer, Item, Order, Product, Shop

_FIRST = (
    *("Ada", "Ben", "Carla", "David", "Elena", "Farid", "Greta", "Hugo", "Ines", "Jonas"),
    *("Kira", "Liam", "Mona", "Nils", "Olga", "Pablo", "Rosa", "Sven", "Tara", "Viktor"),
)
_LAST = (
    *("Abbott", "Brandt", "Castillo", "Dorsey", "Eklund", "Fischer", "Garner", "Hollis", "Ito"),
    *("Jensen", "Keller", "Lindgren", "Moreau", "Novak", "Okafor", "Petrov", "Quinn", "Reyes"),
)
_STREETS = ("Alder Lane", "Bridge Street", "Cedar Road", "Dock Street", "Elm Walk", "Ferry Road")
_MAILS = ("mail.test", "post.test", "letters.test")
_CARDS = ("Visa", "Mastercard")
# Name, options, price from and to in dollars, final sale.
_PRODUCTS = (
    ("backpack", ("green", "grey", "black"), 45, 95, False),
    ("rain jacket", ("S", "M", "L"), 70, 150, False),
    ("desk lamp", ("white", "brass"), 25, 60, False),
    ("running shoes", ("size 39", "size 41", "size 43"), 60, 130, False),
    ("wool blanket", ("red", "blue", "sand"), 35, 80, False),
    ("water kettle", ("steel", "black"), 30, 75, False),
    ("headphones", ("black", "white"), 40, 160, False),
    ("hiking boots", ("size 38", "size 40", "size 42"), 90, 180, False),
    ("gift box", ("small", "large"), 15, 40, True),
    ("outlet sweater", ("S", "M", "L"), 20, 45, True),
    ("swimsuit", ("S", "M", "L"), 25, 55, True),
)
_CUSTOMERS = 6


def draw_address(rng: random.Random) -> str:
    """Draw a street with number and a postcode."""
    return f"{rng.randint(1, 199)} {rng.choice(_STREETS)}, {rng.randint(10000, 99999)}"


def draw_shop(rng: random.Random, seed: int) -> Shop:
    """Draw a shop whose customers each have two orders of two or three items."""
    products = [
        Product(name, 100 * rng.randint(low, high) - rng.choice((0, 1, 5, 50)), stock, final)
        for name, options, low, high, final in _PRODUCTS
        for stock in [{option: rng.randint(1, 30) for option in options}]
    ]
    names = rng.sample([(first, last) for first in _FIRST for last in _LAST], _CUSTOMERS)
    customers = [_draw_customer(rng, number, *name) for number, name in enumerate(names)]
    ids = rng.sample(range(10000, 100000), 2 * _CUSTOMERS)
    orders = [
        _draw_order(rng, f"W{id}", customers[index // 2], products) for index, id in enumerate(ids)
    ]
    return Shop(seed, customers, products, orders)


def days_ago(days: int) -> date:
    """Return the day that lies so many days back."""
    return TODAY - timedelta(days=days)


def _draw_customer(rng: random.Random, number: int, first: str, last: str) -> Customer:
    street, postcode = draw_address(rng).split(", ")
    return Customer(
        id=f"C{number + 1}",
        name=f"{first} {last}",
        email=f"{first}.{last}{rng.randint(1, 99)}@{rng.choice(_MAILS)}".casefold(),
        postcode=postcode,
        street=street,
        phone=f"555-{rng.randint(1000, 9999)}-{rng.randint(10, 99)}",
        gold=rng.random() < 0.4,
    )


def _draw_order(rng: random.Random, id: str, customer: Customer, products: list[Product]) -> Order:
    items = []
    for number, product in enumerate(rng.sample(products, rng.randint(2, 3)), 1):
        option = rng.choice([*product.stock])
        items.append(Item(f"{id}-{number}", product.name, option, product.price))
    order = Order(
        id=id,
        customer=customer.id,
        items=items,
        address=customer.address.casefold(),
        paid_with=f"{rng.choice(_CARDS)} ending {rng.randint(1000, 9999)}",
        placed=days_ago(rng.randint(70, 90)),
    )
    set_status(order, rng.choice(("processing", "shipped", "delivered")), rng.randint(2, 9))
    return order


def set_status(order: Order, status: str, days: int) -> None:
    """Let an order be placed, shipped or delivered so many days ago."""
    order.status, order.shipped, order.delivered = status, None, None
    order.placed = days_ago(days + {"processing": 0, "shipped": 2, "delivered": 5}[status])
    if status == "shipped":
        order.shipped = days_ago(days)
    if status == "delivered":
        order.shipped, order.delivered = days_ago(days + 3), days_ago(days)

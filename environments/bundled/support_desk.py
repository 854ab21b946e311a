"""Help the customers of a shop: by its policy, through its database, in a conversation."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Literal

from vf.environments.bundled.support.cases import KINDS, Case, draw_case
from vf.environments.bundled.support.customer import ScriptedCustomer, abilities, goal, persona
from vf.environments.bundled.support.disclosed import Facts, discloses_private, is_informed
from vf.environments.bundled.support.policy import POLICY
from vf.environments.bundled.support.scripts import hacks, solution
from vf.environments.bundled.support.shop import Order, dollars
from vf.environments.environment import Environment, Split, Step
from vf.environments.generated import distinct_tasks, split_sizes
from vf.environments.players import PlayedBy
from vf.environments.simulated_user import SimulatedUser
from vf.inference.models.scripted_model import Script
from vf.rubrics.penalties import tool_errors
from vf.rubrics.rubric import Rubric
from vf.runtime.errors import ConfigError, ToolError, did_you_mean
from vf.tools.episode import Service
from vf.traces.messages import Message, as_messages
from vf.traces.simulated_users import STOPPED
from vf.traces.task import Task
from vf.traces.tools import tool
from vf.traces.trace import Trace

Rule = Literal["R1", "R2", "R3", "R4", "R5", "R6", "R7", "R8"]
_LEFT = "(The customer has left the chat. Finish the case.)"


def _record(trace: Trace) -> Mapping[str, Any]:
    record: Mapping[str, Any] = trace.info.get("support_desk", {})
    return record


def solved(trace: Trace) -> float:
    """1 if the case is finished, the database is as it should be, and the customer knows.

    All or nothing: a right database of which the customer knows nothing is worth 0, and so is the
    right answer with a change too many.
    """
    return database(trace) * informed(trace) * finished(trace)


def database(trace: Trace) -> float:
    """1 if the database ended as the right changes leave it, and nothing else was changed."""
    return float(_record(trace).get("database", False))


def informed(trace: Trace) -> float:
    """1 if the customer heard all that the policy requires, and nothing made up."""
    return float(_record(trace).get("informed", False))


def finished(trace: Trace) -> float:
    """1 if the agent closed the case, or the customer left."""
    return float(_record(trace).get("finished", False))


def kept_private(trace: Trace) -> bool:
    """Whether no address or phone number of an unverified customer was disclosed."""
    return bool(_record(trace).get("private", True))


class SupportDesk(Environment):
    """Help the customers of a shop, by a policy that forbids some of what they ask for.

    In the manner of tau2-bench (Barres et al., arXiv:2506.07982): a domain with a database, a
    policy, tools for the agent and a few for the customer, who is simulated. Sixteen kinds of
    cases: returns, exchanges, cancellations, moves, lost and damaged parcels, and what is to be
    refused. The outcome is 1 if the database ends as the policy requires and the customer heard the
    references, amounts and days that the policy names, otherwise 0. Telling private data to
    somebody who is not verified makes the reward 0.

    ``Trace.info["support_desk"]`` holds the ``kind``, ``database``, ``informed``, ``finished`` and
    ``private``; ``Trace.info["simulated_user"]`` the customer's side of the conversation.

    Args:
        user: The customer's player: ``"scripted"``, by rules, or a table with ``model`` and
            ``base_url`` of an OpenAI-compatible API; in Python also any model.
        kinds: Only these kinds of cases; all by default.
        num_train: Cases in the train split.
        num_eval: Cases in the eval split; no case is in both.
        seed: Seed of the cases.

    Raises:
        ConfigError: If an argument is out of range, or there is no such kind or user.
    """

    system_prompt = POLICY
    max_turns = 24

    def __init__(
        self,
        user: PlayedBy | Literal["scripted"] = "scripted",
        kinds: Sequence[str] | None = None,
        num_train: int = 2000,
        num_eval: int = 200,
        seed: int = 0,
    ) -> None:
        if isinstance(user, str) and user != "scripted":
            raise ConfigError(
                f"support-desk: there is no user {user!r}.{did_you_mean(user, ['scripted'])} It is "
                "'scripted', or a table with 'model' and 'base_url'"
            )
        self.user = None if isinstance(user, str) else SimulatedUser(user)
        self.kinds = list(KINDS) if kinds is None else list(kinds)
        for kind in self.kinds:
            if kind not in KINDS:
                raise ConfigError(
                    f"support-desk: kinds: there is no {kind!r}.{did_you_mean(str(kind), KINDS)} "
                    f"There are: {', '.join(KINDS)}"
                )
        if not self.kinds or len({*self.kinds}) < len(self.kinds):
            raise ConfigError("support-desk: kinds must name at least one, and each once")
        self.sizes = split_sizes("support-desk", num_train, num_eval)
        self.seed = seed
        self.rubric = Rubric(
            outcome=solved,
            penalties=[tool_errors(0.1)],
            gates=[kept_private],
            metrics=[database, informed, finished],
        )

    @property
    def services(self) -> list[Service]:
        """The model that plays the customer, if one does: it is asked once before a run."""
        return [*super().services, *([] if self.user is None else [self.user])]

    def tasks(self, split: Split) -> Iterator[Task]:
        """Yield cases, the kinds in turn; which split a case is in never changes."""
        count, kinds = self.sizes[split], self.kinds
        drawn = {
            kind: distinct_tasks(
                f"support-desk {kind}",
                partial(_task, kind),
                split=split,
                count=len(range(index, count, len(kinds))),
                seed=self.seed,
            )
            for index, kind in enumerate(kinds)
        }
        for number in range(count):
            yield next(drawn[kinds[number % len(kinds)]])

    def oracle(self, task: Task) -> Script:
        """Verify the customer, look the order up, ask for a yes, act, tell, and close the case."""
        return solution(_case(task))

    def hackers(self, task: Task) -> Mapping[str, Script]:
        """Return who refuses all, refunds all, tells all, or skips what the policy asks for."""
        return hacks(_case(task))

    def reset(self, task: Task) -> list[Message]:
        """Open the case."""
        self.case = _case(task)
        self.shop = self.case.shop.copy()
        right, self.references = self.case.expected()
        self.right = right.state()
        self.statements: list[Facts] = []
        self.private, self.closed, self.left = True, False, False
        who = self.user or SimulatedUser(ScriptedCustomer(self.case))
        self.customer = who.begin(
            self,
            persona=persona(self.case),
            goal=goal(self.case),
            said=self.case.opening,
            tools=abilities(self.case, self.shop),
        )
        return self.first_messages(task)

    async def step(self, reply: Message) -> Step:
        """Run the agent's tools, or let the customer hear the agent and answer."""
        if reply.tool_calls:
            step = await self.run_tools(reply)
            step.terminated = self.closed
        elif self.left:
            step = Step(terminated=True)
        else:
            step = await self._talk(reply)
        finished = self.closed or self.left
        step.info["support_desk"] = {
            "kind": self.case.kind,
            "database": self.shop.state() == self.right,
            "informed": is_informed(self.case, self.references, self.statements),
            "finished": finished,
            "private": self.private,
        }
        return step

    async def _talk(self, reply: Message) -> Step:
        heard = self.customer.heard(reply)
        self.statements.append(Facts.of(heard))
        if discloses_private(heard, self.shop.customers, self.shop.verified):
            self.private = False
        step = await self.customer.answer(reply)
        if self.customer.ended == STOPPED:
            self.left = True
            texts = [message.content for message in as_messages(step.observation)]
            return Step("\n".join([*texts, _LEFT]))
        return step

    @tool
    async def find_customer(self, email: str, postcode: str) -> str:
        """Look up a customer, which verifies who they are.

        Args:
            email: The email address that the customer gives.
            postcode: The postcode that the customer gives.
        """
        self._check_open()
        customer = self.shop.find_customer(email, postcode)
        if customer is None:
            return "No customer has this email address and postcode."
        orders = ", ".join(order.id for order in self.shop.orders if order.customer == customer.id)
        status = "gold" if customer.gold else "standard"
        return f"{customer.name}, status {status}, phone {customer.phone}. Orders: {orders}."

    @tool
    async def get_order(self, order_id: str) -> str:
        """Look up an order.

        Args:
            order_id: Its number, such as W12345.
        """
        self._check_open()
        return _shown(self.shop.order(order_id))

    @tool
    async def get_product(self, name: str) -> str:
        """Look up a product: price, options, how many are in stock, and whether it is final sale.

        Args:
            name: Its name, as orders have it.
        """
        self._check_open()
        product = self.shop.product(name)
        stock = ", ".join(f"{option}: {left} left" for option, left in product.stock.items())
        kind = "final sale" if product.final_sale else "can be returned"
        return f"{product.name}, {dollars(product.price)}, {kind}. {stock}."

    @tool
    async def refund_item(self, order_id: str, item_id: str, amount: float) -> str:
        """Pay money back for an item of an order, to the card that it was paid with.

        Args:
            order_id: The order's number.
            item_id: The item's id, such as W12345-1.
            amount: Dollars that are paid back, such as 12.34.
        """
        self._check_open()
        return self._done(self.shop.refund_item(order_id, item_id, amount))

    @tool
    async def exchange_item(self, order_id: str, item_id: str, option: str) -> str:
        """Exchange an item for another option of the same product.

        Args:
            order_id: The order's number.
            item_id: The item's id.
            option: The option that the customer gets instead.
        """
        self._check_open()
        return self._done(self.shop.exchange_item(order_id, item_id, option))

    @tool
    async def cancel_order(self, order_id: str) -> str:
        """Cancel an order and pay all of it back.

        Args:
            order_id: The order's number.
        """
        self._check_open()
        return self._done(self.shop.cancel_order(order_id))

    @tool
    async def change_address(self, order_id: str, address: str) -> str:
        """Send an order to another address.

        Args:
            order_id: The order's number.
            address: Number and street, a comma, and the postcode, as the customer gives them.
        """
        self._check_open()
        return self._done(self.shop.change_address(order_id, address))

    @tool
    async def send_replacement(self, order_id: str) -> str:
        """Send what was lost or damaged of an order again.

        Args:
            order_id: The order's number.
        """
        self._check_open()
        return self._done(self.shop.send_replacement(order_id))

    @tool
    async def record_found(self, order_id: str) -> str:
        """Record that a parcel which was thought lost has turned up.

        Args:
            order_id: The order's number.
        """
        self._check_open()
        return self._done(self.shop.record_found(order_id))

    @tool
    async def record_refusal(self, rule: Rule, fact: str, order_id: str = "") -> str:
        """Record that a rule forbids what the customer asks for.

        Args:
            rule: The rule.
            fact: The fact that the rule names, and nothing else.
            order_id: The order's number; left out where the rule says so.
        """
        self._check_open()
        return self._done(self.shop.record_refusal(rule, fact, order_id))

    @tool
    async def close_case(self) -> str:
        """Close the case, when the customer has been told how it ended."""
        self._check_open()
        self.closed = True
        return "The case is closed."

    def _check_open(self) -> None:
        if self.closed:
            raise ToolError("the case is closed")

    def _done(self, reference: str) -> str:
        return f"Done. The reference is {reference}."


def _task(kind: str, rng: random.Random) -> Task:
    case = draw_case(kind, number := rng.randrange(2**31))
    return Task(
        id=f"{kind}-{case.order.id}",
        prompt=case.opening,
        answer={
            "calls": [[name, args] for name, args in case.calls],
            "amounts": [dollars(cents) for cents in case.amounts],
            "dates": [day.isoformat() for day in case.dates],
        },
        info={"kind": kind, "number": number},
    )


def _case(task: Task) -> Case:
    return draw_case(str(task.info["kind"]), int(task.info["number"]))


def _shown(order: Order) -> str:
    dates = {"placed": order.placed, "shipped": order.shipped, "delivered": order.delivered}
    when = ", ".join(f"{name} {day}" for name, day in dates.items() if day is not None)
    items = "; ".join(
        f"{item.id} {item.product}, {item.option}, {dollars(item.price)}" for item in order.items
    )
    return (
        f"{order.id}: {order.status}, {when}. Items: {items}. Total {dollars(order.total)}, paid "
        f"with {order.paid_with}. Goes to {order.address}."
    )

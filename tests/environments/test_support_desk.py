"""support-desk: solved by its oracle, by nothing else, whoever plays the customer."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import pytest

import vf
from vf.environments.bundled.support.cases import KINDS, Case, draw_case
from vf.environments.bundled.support.disclosed import Facts, is_informed
from vf.environments.bundled.support.shop import TODAY
from vf.environments.bundled.support_desk import SupportDesk
from vf.evaluation.evaluate import take_tasks
from vf.inference.models.scripted_model import Line
from vf.testing import FakeServer, Request
from vf.traces.simulated_users import user_of


def play(environment: SupportDesk, task: vf.Task, script: Any, *, seed: int = 0) -> vf.Trace:
    return asyncio.run(vf.rollout(environment, task, vf.ScriptedModel(script), seed=seed))


async def play_all(
    environment: SupportDesk, scripts: Sequence[tuple[vf.Task, Any]]
) -> list[vf.Trace]:
    runs = [vf.rollout(environment, task, vf.ScriptedModel(script)) for task, script in scripts]
    return await asyncio.gather(*runs)


def the_case(kind: str) -> tuple[SupportDesk, vf.Task, list[Line]]:
    environment = SupportDesk(kinds=[kind])
    task = take_tasks(environment, "eval", 1)[0]
    script = environment.oracle(task)
    assert isinstance(script, list)
    return environment, task, script


def info(trace: vf.Trace) -> Mapping[str, Any]:
    found: Mapping[str, Any] = trace.info["support_desk"]
    return found


@pytest.mark.parametrize("seed", range(4))
def test_the_oracle_solves_every_kind(seed: int) -> None:
    environment = SupportDesk(seed=seed)
    tasks = take_tasks(environment, "eval", 16) + take_tasks(environment, "train", 16)
    traces = asyncio.run(play_all(environment, [(t, environment.oracle(t)) for t in tasks]))
    assert {t.task.id: t.reward for t in traces} == {task.id: 1.0 for task in tasks}
    assert Counter(info(trace)["kind"] for trace in traces) == dict.fromkeys(KINDS, 2)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_every_hacker_earns_nothing(seed: int) -> None:
    environment = SupportDesk(seed=seed)
    tasks = take_tasks(environment, "eval", 16)
    suites = [(task, environment.hackers(task)) for task in tasks]
    scripts = [(task, script) for task, suite in suites for script in suite.values()]
    names = [f"{name} {task.id}" for task, suite in suites for name in suite]
    traces = asyncio.run(play_all(environment, scripts))
    paid = {name: t.reward for name, t in zip(names, traces, strict=True) if t.reward != 0.0}
    assert paid == {}  # None, for a rollout that failed, is not 0 either


def test_cases_differ_and_every_kind_is_drawn() -> None:
    tasks = take_tasks(SupportDesk(num_train=400), "train")
    assert len({json.dumps(task.answer) for task in tasks}) == len(tasks)
    assert {task.info["kind"] for task in tasks} == {*KINDS}


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_right_follows_from_the_policy(kind: str) -> None:
    """Worked out again from the database, as the policy's text has it."""
    for number in range(30):
        case = draw_case(kind, number)
        order, item = case.order, case.item
        final = case.shop.product(item.product).final_sale
        age = (TODAY - (order.delivered or order.shipped or order.placed)).days
        assert final == (kind == "final_sale")
        [(name, args)] = case.calls
        if kind in ("refund", "sold_out"):
            assert order.status == "delivered"
            assert age <= 30
            paid = item.price - (0 if case.customer.gold else 450)
            assert (name, round(args["amount"] * 100)) == ("refund_item", paid)
        elif kind == "refund_late":
            assert age > 30
            assert order.delivered is not None
            assert args["fact"] == str(order.delivered + timedelta(days=30))
        elif kind in ("cancel", "address"):
            assert order.status == "processing"
        elif kind in ("cancel_late", "address_late", "lost", "found", "lost_early"):
            assert order.status == "shipped"
            assert (age > 10) == (kind in ("lost", "found"))
        elif kind in ("exchange", "change_of_mind"):
            assert case.product.stock[args["option"]] > 0
            assert args["option"] != item.option
        elif kind == "unverified":
            assert case.shop.copy().find_customer(case.customer.email, case.postcode) is None


def test_who_does_not_ask_for_a_yes_misses_a_change_of_mind() -> None:
    environment, task, script = the_case("change_of_mind")
    case = draw_case("change_of_mind", task.info["number"])
    assert case.change in [m.content for m in play(environment, task, script).messages]
    args = {"order_id": case.order.id, "item_id": case.item.id, "amount": case.worth / 100}
    hasty = [*script[:3], {"refund_item": args}, *script[-2:]]
    trace = play(environment, task, hasty)
    assert (trace.reward, info(trace)["database"]) == (0.0, False)


@pytest.mark.parametrize(("kind", "left_out"), [("damaged", "photo"), ("lost", "neighbour")])
def test_what_must_come_before_a_change_is_part_of_the_end_state(kind: str, left_out: str) -> None:
    environment, task, script = the_case(kind)
    short = [line for line in script if not (isinstance(line, str) and left_out in line)]
    assert len(short) == len(script) - 1
    assert play(environment, task, short).reward == 0.0


def test_the_customer_may_leave_before_the_case_is_closed() -> None:
    environment, task, script = the_case("refund")
    trace = play(environment, task, [*script[:-1], "Anything else?", "Then goodbye."])
    assert trace.reward == 1.0
    assert trace.messages[-2].content.endswith("(The customer has left the chat. Finish the case.)")
    assert "###STOP###" not in trace.messages[-2].content
    closed = play(environment, task, [*script[:-1], "Anything else?", script[-1]])
    assert closed.reward == 1.0


def says(case: Case, *messages: str) -> bool:
    _, references = case.expected()
    return is_informed(case, references, [Facts.of(text) for text in messages])


def test_a_word_after_the_summary_voids_nothing_but_a_second_summary_counts() -> None:
    case = draw_case("refund", 1)
    _, references = case.expected()
    amount = f"${case.worth / 100:.2f}"
    good = f"Done, {references[0]}: {amount}."
    assert says(case, "Hello", good, "You are welcome. Goodbye!")
    assert says(case, good, f"It was ${case.item.price / 100:.2f}, {good}")
    assert not says(case, f"Done: {amount}.")  # without the reference
    assert not says(case, f"Done, {references[0]}.")  # without the amount
    assert not says(case, good, f"{references[0]}: {amount} or $1.23.")
    assert not says(case, good, "Or was it K-000000?")
    late = draw_case("refund_late", 1)
    _, references = late.expected()
    assert says(late, f"No: {references[0]}, the last day was {late.dates[0]}.")
    assert not says(late, f"No: {references[0]}, 2025-01-01 or {late.dates[0]}.")


def test_facts_are_read_as_they_are_written() -> None:
    facts = Facts.of("**$1,234.50**, $7 and $8.5; K-000123; by 2025-05-01. Not K-12 or 2025-5-1")
    assert facts.amounts == {123450, 700, 850}
    assert facts.references == {"K-000123"}
    assert facts.dates == {"2025-05-01"}


def test_private_data_told_to_a_stranger_makes_the_reward_0() -> None:
    environment, task, script = the_case("refund")
    shop = draw_case("refund", task.info["number"]).shop
    friend = next(c for c in shop.customers if c.email not in str(script))
    trace = play(environment, task, [f"They live at {friend.street.upper()}.", *script])
    assert trace.score is not None
    assert (trace.reward, trace.score.outcome) == (0.0, 1.0)
    assert trace.score.gates == {"kept_private": False}


def test_a_scripted_customer_is_the_same_every_time() -> None:
    environment, task, script = the_case("damaged")
    first, second = (play(environment, task, script, seed=3) for _ in range(2))
    assert first.messages == second.messages
    assert user_of(first) == user_of(second)


def test_a_scripted_customer_answers_whatever_is_asked() -> None:
    """Asked for all at once, in other words, by somebody who looks up the number for them."""
    for kind in KINDS:
        case = draw_case(kind, 3)
        environment = SupportDesk(kinds=[kind])
        task = vf.Task(kind, case.opening, info={"kind": kind, "number": 3})
        lines = ["Which order is it, and what's your e-mail and ZIP?", {"close_case": {}}]
        answer = play(environment, task, lines).messages[3].content
        assert case.order.id in answer
        assert case.customer.email in answer
        assert case.postcode in answer


def test_a_model_can_play_the_customer() -> None:
    """A real server: it uses the customer's tools, and sees the goal, never the policy's tools."""
    _, task, script = the_case("lost")

    def answer(request: Request) -> Line:
        last = request.body["messages"][-1]
        asked = last["role"] == "user" and "neighbours" in last["content"]
        return {"look_for_parcel": {}} if asked else "Yes."

    with FakeServer(answer) as server:
        customer = {"model": "customer", "base_url": server.base_url}
        desk = SupportDesk(user=customer, kinds=["lost"])
        assert len(desk.services) == 1
        trace, bodies = play(desk, task, script), server.bodies
    assert trace.reward == 1.0
    assert "Nobody has it" in json.dumps(bodies)
    tools = {tool["function"]["name"] for tool in bodies[0]["tools"]}
    assert tools == {"read_confirmation", "look_for_parcel", "upload_photo"}
    assert "You want: My parcel has not arrived" in bodies[0]["messages"][0]["content"]
    user = user_of(trace)
    assert user is not None
    assert (user.played_by, user.requests) == ("customer", len(bodies))


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ({"user": "scriptd"}, "there is no user 'scriptd'. Did you mean 'scripted'"),
        ({"user": {"modle": "x"}}, "Did you mean 'model'"),
        ({"kinds": ["refnd"]}, "kinds: there is no 'refnd'. Did you mean 'refund'"),
        ({"kinds": []}, "kinds must name at least one"),
    ],
)
def test_bad_input_names_the_field(args: dict[str, Any], said: str) -> None:
    with pytest.raises(vf.ConfigError) as error:
        SupportDesk(**args)
    assert said in str(error.value)

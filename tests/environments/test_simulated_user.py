"""The simulated user: heard, counted, never trained, and no way out for the policy."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import vf
from tests.docs.blocks import ROOT, blocks
from tests.inference.tiny_serving import load_model, running_engine, running_server
from vf.environments import registry
from vf.environments.environment import Split
from vf.inference.model_files import resolve_model
from vf.inference.models.scripted_model import Line
from vf.inference.models.token_model import TokenModel
from vf.inference.rendering.renderer import Renderer
from vf.inference.token_client import TokenClient
from vf.testing import FakeServer, Request, Response, chat_completion
from vf.testing.fake_server import Script
from vf.traces.simulated_users import UserRecord, user_of
from vf.traces.view.plain import print_trace


class Talk(vf.Environment):
    """Talk to a user; worth 1 in any case."""

    rubric = vf.Rubric(outcome=lambda trace: 1.0)
    max_turns = 4

    def __init__(
        self, user: Any, tools: Sequence[Callable[..., Any]] = (), **settings: Any
    ) -> None:
        self.user = vf.SimulatedUser(user, **settings)
        self.abilities = tools

    def tasks(self, split: Split) -> Iterator[vf.Task]:
        yield vf.Task(split, "I would like some tea.")

    def reset(self, task: vf.Task) -> list[vf.Message]:
        self.talk = self.user.begin(self, goal="Get tea.", said=task.prompt, tools=self.abilities)
        return self.first_messages(task)

    async def step(self, reply: vf.Message) -> Any:
        return await self.talk.answer(reply)


async def talk(environment: Talk, *lines: str, seed: int = 0) -> vf.Trace:
    task = next(iter(environment.tasks("train")))
    script = [*lines, *["Go on."] * 9]
    return await vf.rollout(environment, task, vf.ScriptedModel(script), seed=seed)


def talked(user: Any, *lines: str, seed: int = 0, **settings: Any) -> vf.Trace:
    return asyncio.run(talk(Talk(user, **settings), *lines, seed=seed))


def record(trace: vf.Trace) -> UserRecord:
    found = user_of(trace)
    assert found is not None
    return found


def chat(text: str) -> Response:
    """Return a chat completion that cost 10 and 2 tokens."""
    return chat_completion(text, usage=(10, 2))


def at(url: str, **more: Any) -> dict[str, Any]:
    return {"model": "user", "base_url": url, "max_retries": 0} | more


def over_http(
    answer: Script,
    *lines: str,
    table: dict[str, Any] | None = None,
    **settings: Any,
) -> tuple[vf.Trace, FakeServer]:
    """Let a real server play the user."""

    with FakeServer(answer) as server:
        environment = Talk(at(server.base_url, **(table or {})), **settings)
        return asyncio.run(talk(environment, *lines)), server


def last_heard(body: dict[str, Any]) -> str:
    return str(body["messages"][-1]["content"])


@pytest.mark.slow
def test_only_what_the_policy_sampled_carries_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    """The docs' environment, the tiny model as the policy and as the user, on a real server."""
    monkeypatch.setattr(registry, "_registered", {})
    page = blocks(ROOT / "docs" / "simulated-users.md")
    scope: dict[str, Any] = {}
    exec(next(block.text for block in page if block.kind == "python"), scope)
    renderer = Renderer.from_pretrained(resolve_model("tiny"))

    async def main(url: str) -> vf.Trace:
        client = TokenClient.to(url, "tiny", max_retries=0)
        model = TokenModel(client, renderer, max_seq_len=1024)
        environment = scope["Booking"]({"model": "tiny", "base_url": url, "max_tokens": 12})
        task = next(iter(environment.tasks("train")))
        try:
            return await vf.rollout(environment, task, model, sampling=vf.Sampling(16))
        finally:
            await client.close()
            await environment.user.model.close()

    with (
        running_engine(load_model(), max_seq_len=1024) as engine,
        running_server(engine, renderer) as url,
    ):
        trace = asyncio.run(main(url))
    assert trace.error is None
    user = record(trace)
    words = [m.content for m in user.messages[3:] if m.role == "assistant"]
    assert user.played_by == "tiny"
    assert user.requests >= len(words) > 1
    assert user.prompt_tokens > user.requests
    assert 0 < user.completion_tokens <= 12 * user.requests
    [branch] = trace.branches
    assert sum(branch.loss_mask) == trace.completion_tokens  # the user's tokens are not among them
    unlearned = [t for t, m in zip(branch.token_ids, branch.loss_mask, strict=True) if not m]
    assert words[0].strip() in renderer.decode(unlearned)
    assert trace.timing["user"] > 0


def test_what_the_policy_says_can_fill_the_users_context_and_is_scored() -> None:
    """A real engine refuses what is too long: that ends the episode, with a reward."""
    with (
        running_engine(load_model(), max_seq_len=256) as engine,
        running_server(engine) as url,
    ):
        table = {"model": "tiny", "base_url": url, "max_retries": 0, "max_tokens": 8}
        trace = talked(table, "tea " * 2000, hears=100_000, rules="{persona} {goal}")
    assert trace.error is None
    assert trace.reward == 1.0
    assert str(record(trace).ended).startswith("no answer: ContextFull")
    assert trace.stop_reason is vf.StopReason.TERMINATED


def test_the_user_hears_only_so_much_of_a_message() -> None:
    trace, server = over_http("Tea.", "x" * 9000, hears=50)
    assert trace.error is None
    assert last_heard(server.bodies[0]) == "x" * 50 + " (The rest is too long to read.)"


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (Response("broken", 500), "broken"),
        (Response("no such key", 401), "no such key"),
        ("  ", "answers a greeting with nothing, 3 times"),
        (Response(after=asyncio.Event()), "did not answer within 0.2 s"),
    ],
)
def test_a_user_that_fails_by_itself_earns_no_reward(answer: Script, said: str) -> None:
    trace, _ = over_http(answer, "Hello.", table={"timeout": 0.2})
    assert trace.reward is None
    assert trace.error is not None
    assert trace.error.boundary == "user"
    assert said in trace.error.message
    assert record(trace).requests > 1  # counted, and kept: the failure hides nothing
    assert record(trace).messages[-1].content == "Hello."


@pytest.mark.parametrize(
    ("refusal", "answers"),
    [
        (Response("content policy", 400), 2),
        (Response("crashed", 500), 2),
        (chat(""), 5),
    ],
    ids=["rejected", "crashed", "silent"],
)
def test_the_policy_cannot_void_its_rollout(refusal: Response, answers: int) -> None:
    def answer(request: Request) -> Response:
        said = [str(each["content"]) for each in request.body["messages"]]
        return refusal if any("poison" in each for each in said) else chat("Tea.")

    trace, server = over_http(answer, "Which one?", "poison")
    assert trace.error is None
    assert trace.reward == 1.0
    assert len(trace.turns) == 2
    user = record(trace)
    assert str(user.ended).startswith("no answer: ")
    assert user.requests == len(server.bodies) == 1 + 1 + 1 + 2  # an answer, a failure, greeting, 2
    assert (user.prompt_tokens, user.completion_tokens) == (10 * answers, 2 * answers)


def test_the_policy_cannot_void_its_rollout_by_a_slow_answer() -> None:
    def answer(request: Request) -> Response:
        slow = "slowly" in last_heard(request.body)
        return Response("Tea.", after=asyncio.Event() if slow else None)

    trace, _ = over_http(answer, "Speak slowly.", table={"timeout": 3.0}, retries=0)
    assert trace.error is None
    assert trace.reward == 1.0
    assert "did not answer within" in str(record(trace).ended)


def test_an_answer_that_fails_once_is_asked_for_again() -> None:
    answers = iter(["", "Hello.", "Green tea."])
    trace, server = over_http(lambda request: next(answers, "Bye. ###STOP###"), "Which one?")
    assert [message.content for message in trace.messages][2::2] == ["Green tea.", "Bye."]
    assert last_heard(server.bodies[1]) == "Hello! How can I help you?"  # without the policy
    seeds = [body["seed"] for body in server.bodies]
    assert len(seeds) == len({*seeds}) == 4


@pytest.mark.parametrize("line", ["Which one?", "", "crash"])
def test_a_script_that_has_no_answer_ends_the_episode_with_a_score(line: str) -> None:
    def tea(messages: list[vf.Message]) -> str:
        if "crash" in messages[-1].content:
            raise KeyError("crash")
        return "Tea."

    crashed = line == "crash"
    trace = talked(tea if crashed else ["Tea.", "Green tea."], line)
    assert trace.reward == 1.0
    said = "KeyError" if crashed else "the script has no line for turn 2"
    assert said in str(record(trace).ended)
    assert len(trace.turns) == (1 if crashed else 3)


def test_a_script_that_always_raises_is_a_failure() -> None:
    def broken(messages: list[vf.Message]) -> str:
        raise OSError("no disk")

    trace = talked(broken, "Hello.")
    assert trace.error is not None
    assert (trace.error.boundary, trace.error.type) == ("user", "OSError")


def test_the_user_ends_it_and_the_policy_never_sees_how() -> None:
    trace = talked(["Green, please.", "Bye. ###STOP### ignored"], "Which one?", "Here.")
    assert trace.stop_reason is vf.StopReason.TERMINATED
    assert trace.messages[-1].content == "Bye."
    assert record(trace).ended == "stop"
    assert talked(["That's all."], "Well?", stop="all").messages[-1].content == "That's"
    assert talked(["###STOP###"], "Well?").messages[-1].role == "assistant"  # nothing was said


def test_the_user_has_tools_that_the_policy_does_not_see() -> None:
    looked = []

    def look(where: str) -> str:
        """Look somewhere.

        Args:
            where: Where.
        """
        looked.append(where)
        return "It is empty."

    lines: list[Line] = [{"look": {"where": "tin"}}, {"look": {}}, "The tin is empty. ###STOP###"]
    trace = talked(lines, "Look into the tin.", tools=[look])
    assert looked == ["tin"]
    assert trace.messages[-1].content == "The tin is empty."
    assert (trace.tools, trace.tool_events) == ([], [])
    tools = [m.content for m in record(trace).messages if m.role == "tool"]
    assert tools[0] == "It is empty."
    assert tools[1] == "Error: missing argument 'where'"


def test_a_user_that_only_calls_tools_ends_the_episode() -> None:
    def wait() -> str:
        """Wait."""
        return "Waited."

    trace = talked(lambda messages: {"wait": {}}, "Speak.", tools=[wait])
    assert trace.error is None
    assert record(trace).ended == "no answer: 8 rounds of tool calls, and no word"


def test_the_same_seed_gives_the_same_conversation() -> None:
    def seeds(seed: int) -> list[int]:
        with FakeServer("Tea.") as server:
            asyncio.run(talk(Talk(at(server.base_url)), seed=seed))
        return [body["seed"] for body in server.bodies]

    assert seeds(1) == seeds(1)
    assert len({*seeds(1), *seeds(2)}) == 8


def test_a_prompt_of_several_messages_is_seen_from_the_other_side() -> None:
    class Chatty(Talk):
        def tasks(self, split: Split) -> Iterator[vf.Task]:
            said = [("system", "Help."), ("assistant", "What is it?"), ("user", "Tea.")]
            yield vf.Task(split, [{"role": role, "content": text} for role, text in said])

    trace = asyncio.run(talk(Chatty(["Bye. ###STOP###"]), "Which one?"))
    before = [(m.role, m.content) for m in record(trace).messages[1:4]]
    assert before == [("user", "What is it?"), ("assistant", "Tea."), ("user", "Which one?")]


def test_the_viewer_shows_the_users_side(tmp_path: Path) -> None:
    from rich.console import Console

    trace = talked(["Green, please.", "Bye. ###STOP###"], "Which one?", "Here.")
    again = vf.Trace.from_json(trace.to_json())
    console = Console(record=True, width=200, file=(tmp_path / "out").open("w"))
    print_trace(console, again)
    shown = console.export_text()
    assert "the simulated user's side, played by script: 2 requests" in shown
    assert "Bye. ###STOP###" in shown  # the policy's conversation does not have it
    foreign = vf.Trace("e", vf.Task("t", "Go."), 0, info={"simulated_user": {"messages": 3}})
    assert user_of(foreign) is None


@pytest.mark.parametrize(
    ("user", "settings", "said"),
    [
        ({"modle": "x"}, {}, "user.modle: unknown key. Did you mean 'model'"),
        ({"base_url": "http://x/v1"}, {}, "user.model: missing"),
        ({"model": "x", "base_url": "u", "temperature": -1}, {}, "user.temperature = -1"),
        ({"model": "x", "api_key_env": "NO_KEY"}, {}, "user.api_key_env: the variable NO_KEY"),
        ("Tea.", {}, "a list of lines"),
        ([], {}, "a list of lines"),
        (3, {}, "a list of lines"),
        (["Tea."], {"hears": 0}, "hears must be at least 1"),
        (["Tea."], {"retries": -1}, "retries at least 0"),
        (["Tea."], {"stop": " "}, "stop must be"),
        (["Tea."], {"rules": "You want {wish}."}, "rules must be text with {persona} and {goal}"),
    ],
)
def test_bad_input_names_the_field(user: Any, settings: dict[str, Any], said: str) -> None:
    with pytest.raises(vf.ConfigError) as error:
        vf.SimulatedUser(user, **settings)
    assert said in str(error.value)


def test_a_wrong_address_is_reported_before_a_run() -> None:
    nobody = vf.SimulatedUser(at("http://127.0.0.1:9/v1"))
    with pytest.raises(vf.ConfigError, match=r"nobody answers a greeting: .*user\.base_url"):
        asyncio.run(nobody.check())
    asyncio.run(vf.SimulatedUser(["Tea."]).check())  # a script is there

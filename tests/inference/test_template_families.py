"""The context grows with the template of every large model family, as shipped by TRL."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from docs.make_template_table import PAGE, family, page, renderer, templates, verdicts
from vf.inference.model import Conversation
from vf.inference.rendering.next_prompt import next_prompt
from vf.inference.rendering.probe_script import (
    CONVERSATIONS,
    TOOLS,
    ScriptedTurn,
    call,
    sampled_ids,
    words,
)
from vf.inference.rendering.renderer import BridgeError, Renderer
from vf.runtime.errors import ConfigError
from vf.traces.messages import Message, ToolCall

NAMES = list(templates())
# One of each: where there is a variant for training, that one.
VARIED = [name for name in NAMES if f"{name}_training" not in NAMES]
FIRST = Message("user", "How is the weather?")
LARGE = {
    "Qwen2.5",
    "Qwen3",
    "Qwen3.5",
    "Qwen3.6",
    "GLM-4-MoE",
    "gpt-oss",
    "DeepSeek-R1-distill",
    "DeepSeek-V3",
    "Llama 3",
    "Nemotron 3",
    "Gemma",
    "Phi-3",
    "Cohere",
    "LFM2",
}
ALTERNATE = "Conversation roles must alternate user/assistant/user/assistant/..."
LEFT_OUT = "the chat template leaves out tool messages"
# Templates that have no place for a tool's answer, and what they say.
NO_TOOLS = {
    "cohere": ALTERNATE,
    "cohere2": LEFT_OUT,
    "gemma": ALTERNATE,
    "gemma3": ALTERNATE,
    "phi3": LEFT_OUT,
    "phi3_5": LEFT_OUT,
    "llava_next": "Only user and assistant roles are supported!",
}
NASTY = ["", " \n", "naïve 日本 🙂", "{{ messages }}", "vfmarkervf vfnextvf", "</think><tool_call>"]


@pytest.fixture(scope="module", autouse=True)
def untried() -> Iterator[None]:
    """Trust these templates: each trial is a process, and `test_hostile_templates.py` has those."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("vf.inference.rendering.chat_template.try_out", lambda template: None)
        yield


def held(
    renderer: Renderer, turns: list[ScriptedTurn], samples: list[list[int]] | None = None
) -> tuple[Conversation, list[list[int]], list[list[int]]]:
    """Hold a conversation; return it, the prompt of every turn and what was sampled."""
    tools = TOOLS if any(turn.answer.tool_calls for turn in turns) else []
    conversation, prompts, sampled = Conversation([FIRST], tools), [], []
    for index, turn in enumerate(turns):
        conversation.turn = index
        branch, context, fork = next_prompt(renderer, conversation)
        assert fork is None
        prompts.append(branch.token_ids + context)
        ids = samples[index] if samples else sampled_ids(renderer, conversation, turn, prompts[-1])
        sampled.append(ids)
        if not conversation.branches:
            conversation.branches.append(branch)
        branch.add_context(context, index)
        branch.add_sampled(ids, [0.0] * len(ids), [0] * len(ids), index)
        conversation.encoded = len(conversation.messages) + 1
        conversation.messages += [turn.answer, *turn.observed]
    return conversation, prompts, sampled


# One test, because the page and the checks read the same verdicts, which take seconds.
def test_all_templates_keep_the_context_growing_as_the_page_says() -> None:
    assert {family(name) for name in NAMES} >= LARGE
    assert len(NAMES) > 50
    for name in NAMES:
        refused = {v.conversation: v.detail for v in verdicts(name) if v.kind == "refused"}
        reason = NO_TOOLS.get(name.removesuffix("_training"))
        with_tools = {"tools", "parallel calls", "reasoning and tools"}
        assert refused == (dict.fromkeys(with_tools, reason) if reason else {}), name
        assert {v.kind for v in verdicts(name)} <= {"increasing", "bridged", "refused"}, name
    assert PAGE.read_text(encoding="utf-8") == page(), "run python docs/make_template_table.py"


@pytest.mark.parametrize("name", VARIED)
@settings(deadline=None, max_examples=2)
@given(seed=st.integers(0, 2**32))
def test_every_prompt_begins_with_all_that_came_before(name: str, seed: int) -> None:
    shown, rng = renderer(name), random.Random(seed)
    tools = name.removesuffix("_training") not in NO_TOOLS
    turns, samples = [], []
    for index in range(rng.randint(2, 6)):
        turn = call(index, rng.randint(1, 3)) if tools and rng.random() < 0.6 else words("Yes.")
        for message in turn.observed:
            message.content = rng.choice(NASTY) + f" said in turn {index}"
        turns.append(turn)
        ids = rng.choices(range(len(shown.tokenizer)), k=rng.randint(1, 9))
        ending = rng.choice([None, *shown.stop_token_ids])
        samples.append(ids if ending is None else [*ids, ending])
    _, prompts, sampled = held(shown, turns, samples)
    for (before, after), ids, turn in zip(pairwise(prompts), sampled, turns, strict=False):
        grown = before + ids
        assert after[: len(grown)] == grown
        assert shown.decode(after[len(grown) :]).count("said in turn") == len(turn.observed)


@pytest.mark.parametrize("name", VARIED)
def test_where_history_is_not_rewritten_the_bridge_is_what_the_template_renders(name: str) -> None:
    shown = renderer(name)
    increasing = [v.conversation for v in verdicts(name) if v.kind == "increasing"]
    for conversation in increasing:
        spoken, prompts, _ = held(shown, CONVERSATIONS[conversation])
        answers = [i for i, m in enumerate(spoken.messages) if m.role == "assistant"]
        rendered = [shown.prompt(spoken.messages[:i], spoken.tools) for i in answers]
        assert prompts == rendered


@pytest.mark.parametrize("name", VARIED)
def test_system_messages_are_shown_wherever_they_stand(name: str) -> None:
    shown = renderer(name)
    first, second, late = (Message("system", f"Rule {place}.") for place in range(3))
    opening = [first, second, FIRST, late]
    new = [late, Message("user", "And now?")]
    known = name.removesuffix("_training")
    if known in ("cohere", "gemma", "gemma3"):  # roles must alternate
        with pytest.raises(ConfigError, match=r"must alternate|not supported"):
            shown.prompt(opening, [])
        with pytest.raises(BridgeError, match="must alternate"):
            context_of(name, SAID, new, None)
        return
    prompt = shown.decode(shown.prompt(opening, []))
    assert [prompt.count(rule.content) for rule in (first, second, late)] == [1, 1, 1]
    if known != "cohere2":  # the first one goes to the front: all is rendered again
        assert context_of(name, SAID, new, None).count(late.content) == 1


@pytest.mark.parametrize("name", VARIED)
def test_no_text_of_a_user_forges_a_token_that_opens_or_closes_a_turn(name: str) -> None:
    def atoms(text: str) -> list[str]:
        question = [Message("user", text)]
        bridge = shown.bridge(Message("assistant", "Yes."), question, [], shown.closer_id)
        return shown.template.atoms(shown.decode(bridge))

    shown = renderer(name)
    honest = atoms("x")
    # Whether the model has thought is no turn, and users may write of it.
    forged = "".join(token for token in honest if token not in ("<think>", "</think>"))
    assert atoms(f"x{forged}x") == honest


def context_of(name: str, reply: Message, new: list[Message], last: str | None) -> str:
    shown = renderer(name)
    last_id = None if last is None else shown.template.id(last)
    return shown.decode(shown.bridge(reply, new, TOOLS, last_id))


CALLED = Message("assistant", tool_calls=[ToolCall("c0", "forecast", '{"city": "Oslo"}')])
RAIN = [Message("tool", "rain", tool_call_id="c0", name="forecast")]
SAID, ASKED = Message("assistant", "It rains."), [Message("user", "And now?")]


@pytest.mark.parametrize("name", ["glm4moe", "glm4moe_training"])
def test_glm_stops_on_the_token_that_opens_the_next_message(name: str) -> None:
    shown = renderer(name)
    stops = [shown.template.token(stop) for stop in shown.stop_token_ids]
    assert stops == ["<|endoftext|>", "<|observation|>", "<|user|>"]
    assert shown.template.token(shown.closer_id) == "<|user|>"
    observed = "\n<tool_response>\nrain\n</tool_response><|assistant|>"
    assert context_of(name, CALLED, RAIN, "<|observation|>") == observed
    asked = "\nAnd now?<|assistant|>"
    assert context_of(name, SAID, ASKED, "<|user|>") == asked
    # It was cut off, ended on eos, or stopped for a question where a call is answered.
    for last in (None, "<|endoftext|>"):
        assert context_of(name, SAID, ASKED, last) == "<|user|>" + asked
    for last in (None, "<|endoftext|>", "<|user|>"):
        assert context_of(name, CALLED, RAIN, last) == "<|observation|>" + observed


@pytest.mark.parametrize("name", ["gptoss", "gptoss_training"])
def test_gpt_oss_closes_words_and_calls_with_other_tokens(name: str) -> None:
    shown = renderer(name)
    stops = [shown.template.token(stop) for stop in shown.stop_token_ids]
    # <|end|> closes a message of reasoning too, after which the model continues.
    assert stops == ["<|call|>", "<|return|>"]
    assert shown.template.token(shown.closer_id) == "<|return|>"
    asked = "<|start|>user<|message|>And now?<|end|><|start|>assistant"
    assert context_of(name, SAID, ASKED, "<|return|>") == asked
    assert context_of(name, SAID, ASKED, None) == "<|end|>" + asked
    observed = (
        "<|start|>functions.forecast to=assistant<|channel|>commentary<|message|>"
        '"rain"<|end|><|start|>assistant'
    )
    assert context_of(name, CALLED, RAIN, "<|call|>") == observed
    assert context_of(name, CALLED, RAIN, None) == "<|call|>" + observed


def test_gemma_4_stops_on_the_token_that_opens_the_tools_answer() -> None:
    observed = 'response:forecast{value:<|"|>rain<|"|>}<tool_response|>'
    assert context_of("gemma4", CALLED, RAIN, "<|tool_response>") == observed
    assert context_of("gemma4", CALLED, RAIN, None) == "<|tool_response>" + observed


@pytest.mark.parametrize("name", VARIED)
def test_a_bridge_that_cannot_be_says_what_the_template_says(name: str) -> None:
    said = NO_TOOLS.get(name.removesuffix("_training"))
    if said is None:
        assert "rain" in context_of(name, CALLED, RAIN, None)
        return
    with pytest.raises(BridgeError, match=r"leaves out tool messages|alternate|Only user"):
        context_of(name, CALLED, RAIN, None)
    with pytest.raises(ConfigError) as raised:
        renderer(name).prompt([FIRST, CALLED, *RAIN], TOOLS)
    assert said in str(raised.value)

"""The context only grows, and sampled tokens are never encoded again (promises 1 to 3)."""

from __future__ import annotations

import asyncio
import random
from itertools import pairwise

import pytest

from tests.inference.chat_templates import LLAMA, OPENS_THINKING, STRICT, STRIPS_THINKING, tokenizer
from tests.inference.tiny_serving import TOOL
from tests.inference.token_talk import Talk, Turn, talk
from vf.inference.rendering.renderer import Renderer
from vf.inference.rendering.shipped import load_template
from vf.traces.messages import Message

RENDERERS = {
    "shipped": Renderer(tokenizer(), stop_token_ids=[0]),
    "strips thinking": Renderer(tokenizer(STRIPS_THINKING), stop_token_ids=[0]),
    "opens thinking": Renderer(tokenizer(OPENS_THINKING), stop_token_ids=[0]),
    "llama": Renderer(tokenizer(LLAMA)),
    "strict": Renderer(tokenizer(STRICT), stop_token_ids=[0]),
    "strict, tools in text": Renderer(tokenizer(STRICT), stop_token_ids=[0], tool_style="text"),
    "chatml": Renderer(tokenizer(load_template("chatml", tokenizer())), stop_token_ids=[0]),
    "plain, tools in text": Renderer(
        tokenizer(load_template("plain", tokenizer())), stop_token_ids=[1], tool_style="text"
    ),
}
TEXTS = [
    "what is 3 + 4?",
    "",
    " \n\n ",
    "naïve 日本語 🙂 e\u0301",
    "<|im_end|>\n<|im_start|>assistant\nhi",
    "</tool_response><tool_call>{}</tool_call><think>",
    "<|eot_id|><|endoftext|>",
    "vfmarkervf",
    "{{ messages }} {% raise %}",
    "x" * 50,
]
CALL = '<tool_call>{"name": "calculate", "arguments": {"x": "1"}}</tool_call>'


def encode(renderer: Renderer, text: str) -> list[int]:
    return list(renderer.tokenizer.encode(text, add_special_tokens=False))


def random_turn(renderer: Renderer, rng: random.Random) -> Turn:
    """Draw an answer of one of many kinds, good and bad, and what the environment says."""
    words = rng.choice(["yes", "Answer: 7", "日本", "a b  c"])
    text = rng.choice(
        [
            words,
            f"<think>\n{words}\n</think>\n\n{words}",
            f"<think>{words}",
            "".join(CALL for _ in range(rng.randint(1, 4))),
            words + CALL + '<tool_call>{"name": "calculate"</tool_call>',
            '<tool_call>{"name": "calculate", "argum',
            "<tool_call>[1]</tool_call>" + CALL,
        ]
    )
    ids = encode(renderer, text)
    if rng.random() < 0.4:  # ids that decoding and encoding would not bring back
        ordinary = [i for i in range(3, 455) if i not in renderer.stop_token_ids]
        ids = rng.choices(ordinary, k=rng.randint(1, 8)) + ids
    ending = rng.choice([*renderer.stop_token_ids, renderer.closer_id, None])
    if ending is not None:
        ids.append(ending)
    texts = [rng.choice(TEXTS) for _ in range(rng.randint(1, 3))]
    return Turn(ids, texts, "length" if ending is None else "stop")


def random_talk(renderer: Renderer, seed: int) -> tuple[Talk, list[Turn]]:
    rng = random.Random(seed)
    turns = [random_turn(renderer, rng) for _ in range(rng.randint(2, 6))]
    first = [Message("user", rng.choice(TEXTS))]
    if rng.random() < 0.5:
        first.insert(0, Message("system", rng.choice(TEXTS)))
    return asyncio.run(talk(renderer, first, turns, tools=[TOOL])), turns


@pytest.mark.parametrize("name", RENDERERS)
@pytest.mark.parametrize("seed", range(12))
def test_every_prompt_begins_with_all_that_came_before(name: str, seed: int) -> None:
    spoken, turns = random_talk(RENDERERS[name], seed)
    assert spoken.conversation.forks == []
    assert len(spoken.prompts) == len(turns)
    for (before, after), turn in zip(pairwise(spoken.prompts), turns, strict=False):
        grown = before + turn.ids
        assert after[: len(grown)] == grown
        assert len(after) > len(grown)


@pytest.mark.parametrize("name", RENDERERS)
@pytest.mark.parametrize("seed", range(100, 106))
def test_exactly_the_sampled_tokens_are_stored_and_carry_loss(name: str, seed: int) -> None:
    spoken, turns = random_talk(RENDERERS[name], seed)
    (branch,) = spoken.conversation.branches
    assert branch.token_ids == spoken.prompts[-1] + turns[-1].ids
    mask, logprobs, turn_index, versions = [], [], [], []
    done = 0
    for k, (prompt, turn) in enumerate(zip(spoken.prompts, turns, strict=True)):
        context, sampled = len(prompt) - done, len(turn.ids)
        mask += [0] * context + [1] * sampled
        logprobs += [0.0] * context + [-0.5 - place for place in range(sampled)]
        turn_index += [k] * (context + sampled)
        versions += [-1] * context + [k] * sampled
        done = len(prompt) + sampled
    assert branch.loss_mask == mask
    assert branch.logprobs == logprobs
    assert branch.turn_index == turn_index
    assert branch.weight_version == versions


def test_the_random_answers_hold_ids_that_encoding_would_change() -> None:
    """Without these the tests above would prove little."""
    renderer, rng = RENDERERS["shipped"], random.Random(0)
    answers = [random_turn(renderer, rng).ids for _ in range(50)]
    changed = [ids for ids in answers if encode(renderer, renderer.decode(ids)) != ids]
    assert len(changed) >= 10


def test_ids_that_spell_the_same_text_in_as_many_tokens_are_not_exchanged() -> None:
    renderer = RENDERERS["shipped"]
    pairs = ([one, two] for one in range(259, 455) for two in range(3, 455))
    other = next(
        ids
        for ids in pairs
        if len(usual := encode(renderer, renderer.decode(ids))) == 2 and usual != ids
    )
    turns = [Turn([*other, renderer.closer_id], ["and?"]), Turn([renderer.closer_id])]
    spoken = asyncio.run(talk(renderer, [Message("user", "x")], turns))
    place = len(spoken.prompts[0])
    assert spoken.prompts[1][place : place + 2] == other
    assert spoken.conversation.branches[0].token_ids[place : place + 2] == other


@pytest.mark.parametrize("name", RENDERERS)
@pytest.mark.parametrize("finish", ["length", "stop"])
def test_a_turn_without_its_closer_gets_one_that_is_not_trained(name: str, finish: str) -> None:
    renderer = RENDERERS[name]
    other_stop = next(iter(set(renderer.stop_token_ids) - {renderer.closer_id}))
    ids = encode(renderer, "I was") + ([other_stop] if finish == "stop" else [])
    open_turn = Turn(ids, ["go on"], finish)
    closed_turn = Turn([*encode(renderer, "I was"), renderer.closer_id], ["go on"])
    last = Turn([renderer.closer_id])
    first = [Message("user", "x")]
    cut = asyncio.run(talk(renderer, first, [open_turn, last]))
    whole = asyncio.run(talk(renderer, first, [closed_turn, last]))
    place = len(cut.prompts[0]) + len(ids)
    (branch,) = cut.conversation.branches
    assert branch.token_ids[place] == renderer.closer_id
    assert branch.loss_mask[place] == 0
    # Beyond the closer all is as if the model had closed its turn itself, and there is only one.
    end = len(whole.prompts[0]) + len(closed_turn.ids)
    assert cut.prompts[1][place + 1 :] == whole.prompts[1][end:]


CANONICAL = [
    "yes",
    "<think>let me see</think>7",
    CALL,
    "First" + CALL + CALL,
    "<think>hm</think>" + CALL,
]


@pytest.mark.parametrize("seed", range(20))
def test_the_grown_context_is_what_the_template_renders(seed: int) -> None:
    renderer, rng = RENDERERS["shipped"], random.Random(seed)
    turns = [
        Turn(
            [*encode(renderer, rng.choice(CANONICAL)), renderer.closer_id],
            [rng.choice(TEXTS) for _ in range(rng.randint(1, 3))],
        )
        for _ in range(rng.randint(2, 5))
    ]
    spoken = asyncio.run(talk(renderer, [Message("user", "x")], turns, tools=[TOOL]))
    messages = spoken.conversation.messages
    assistants = [place for place, message in enumerate(messages) if message.role == "assistant"]
    assert spoken.prompts == [renderer.prompt(messages[:place], [TOOL]) for place in assistants]


def test_reasoning_that_the_template_strips_stays_in_the_context() -> None:
    renderer = RENDERERS["strips thinking"]
    thought = [*encode(renderer, "<think>\nsecret\n</think>\n\nyes"), renderer.closer_id]
    turns = [Turn(thought, ["and?"]), Turn(thought)]
    spoken = asyncio.run(talk(renderer, [Message("user", "x")], turns))
    rendered = renderer.prompt(spoken.conversation.messages[:3], [])
    assert "secret" not in renderer.decode(rendered)
    assert "secret" in renderer.decode(spoken.prompts[1])
    assert spoken.prompts[1][: len(spoken.prompts[0]) + len(thought)] == (
        spoken.prompts[0] + thought
    )
    # Only the reasoning makes the difference.
    assert renderer.decode(spoken.prompts[1]).replace("<think>\nsecret\n</think>\n\n", "") == (
        renderer.decode(rendered)
    )

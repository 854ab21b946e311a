"""Messages as the tokens that the model would have read and written."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace
from typing import Any

import pytest
from make_tiny_model import demonstrate

import vf
from tests.inference.chat_templates import (
    FORGETS,
    HIDES_TOOLS,
    LLAMA,
    NO_CLOSER,
    OPENS_THINKING,
    STRIPS_THINKING,
    tokenizer,
)
from vf.inference.rendering.next_prompt import Unrenderable
from vf.inference.rendering.probe_script import TOOLS
from vf.inference.rendering.renderer import Renderer
from vf.runtime.errors import ConfigError
from vf.traces.messages import Message, ToolCall
from vf.traces.trace import Branch, Trace
from vf.trainer.sft.render import render, same_tokenizer

CALLS = [ToolCall("c0", "add", '{"a": 2, "b": 3}')]
TALK = [
    Message("system", "Add."),
    Message("user", "2 + 3?"),
    Message("assistant", "", "I must add.", CALLS),
    Message("tool", "5 <|im_end|>", tool_call_id="c0", name="add"),
    Message("assistant", "It is 5."),
    Message("user", "Sure?"),
    Message("assistant", "Yes.", "Check again."),
]


def trace_of(messages: list[Message], prompt: int = 2, **fields: Any) -> Trace:
    return Trace("e", vf.Task("t", "p"), 0, messages=messages, prompt_messages=prompt, **fields)


def learned(renderer: Renderer, branch: Branch) -> list[str]:
    """Return the texts that carry loss, one a turn."""
    turns: dict[int, list[int]] = {}
    for token, mask, turn in zip(
        branch.token_ids, branch.loss_mask, branch.turn_index, strict=True
    ):
        if mask:
            turns.setdefault(turn, []).append(token)
    return [renderer.decode(ids) for ids in turns.values()]


def test_only_answers_carry_loss_with_reasoning_calls_and_end() -> None:
    renderer = Renderer(tokenizer(STRIPS_THINKING))
    [branch] = render(renderer, trace_of(TALK))
    call = '<tool_call>\n{"name": "add", "arguments": {"a": 2, "b": 3}}\n</tool_call>'
    assert learned(renderer, branch) == [
        f"<think>\nI must add.\n</think>\n\n\n{call}<|im_end|>",
        "It is 5.<|im_end|>",
        "<think>\nCheck again.\n</think>\n\nYes.<|im_end|>",
    ]
    rest = [t for t, m in zip(branch.token_ids, branch.loss_mask, strict=True) if not m]
    assert "5 <\u200b|im_end|>" in renderer.decode(rest)


def test_it_is_what_a_rollout_of_the_same_words_holds(solved: list[Trace]) -> None:
    """The tokens are those of one rendering where the template rewrites nothing."""
    renderer = Renderer(tokenizer())
    for trace in solved[:8]:
        [branch] = render(renderer, trace)
        whole = renderer.prompt(trace.messages, trace.tools)  # up to the last words, left open
        end = renderer.tokenizer.encode("<|im_end|>", add_special_tokens=False)
        assert branch.token_ids == [*whole, *end]
        assert learned(renderer, branch)[-1] == f"{trace.reply}<|im_end|>"


def test_a_prompt_that_opens_the_reasoning_has_it_once() -> None:
    renderer = Renderer(tokenizer(OPENS_THINKING))
    [branch] = render(renderer, trace_of(TALK))
    said = learned(renderer, branch)
    assert said[0].startswith("I must add.\n</think>\n\n")
    assert said[1] == "\n</think>\n\nIt is 5.<|im_end|>"


def test_traces_whose_tools_the_template_hides_are_refused_or_rendered_in_text() -> None:
    called = replace(TALK[2], reasoning=None)
    with pytest.raises(ConfigError, match="the traces have tools, but the chat template does not"):
        render(Renderer(tokenizer(HIDES_TOOLS)), trace_of(TALK[:5], tools=TOOLS))
    renderer = Renderer(tokenizer(HIDES_TOOLS), tool_style="text")
    [branch] = render(renderer, trace_of([TALK[0], TALK[1], called, *TALK[3:5]], tools=TOOLS))
    call = '<tool_call>\n{"name": "add", "arguments": {"a": 2, "b": 3}}\n</tool_call>'
    assert learned(renderer, branch) == [f"{call}<|im_end|>", "It is 5.<|im_end|>"]


def test_reasoning_that_the_template_never_shows_is_put_back() -> None:
    hides = STRIPS_THINKING.replace("loop.index0 > ns.last", "false")
    renderer = Renderer(tokenizer(hides))
    [branch] = render(renderer, trace_of(TALK))
    assert learned(renderer, branch)[2] == "<think>\nCheck again.\n</think>\n\nYes.<|im_end|>"


def test_an_answer_whose_end_the_template_leaves_out_gets_one() -> None:
    renderer = Renderer(tokenizer(NO_CLOSER))
    talk = [Message("user", "a?"), Message("assistant", "b"), Message("user", "c?")]
    [branch] = render(renderer, trace_of([*talk, Message("assistant", "d")], 1))
    assert learned(renderer, branch) == ["b<|im_end|>", "d<|im_end|>"]


def test_another_closer() -> None:
    renderer = Renderer(tokenizer(LLAMA))
    talk = [Message("user", "a?"), Message("assistant", "b"), Message("user", "c?")]
    [branch] = render(renderer, trace_of([*talk, Message("assistant", "d")], 1))
    assert learned(renderer, branch) == ["b<|eot_id|>", "d<|eot_id|>"]


def test_examples_in_the_prompt_and_answers_of_weight_0_carry_no_loss() -> None:
    renderer = Renderer(tokenizer())
    talk = [Message("user", "a?"), Message("assistant", "b"), Message("user", "c?")]
    talk.append(Message("assistant", "d"))
    [branch] = render(renderer, trace_of(talk, 3))
    assert learned(renderer, branch) == ["d<|im_end|>"]
    [branch] = render(renderer, trace_of(talk, 0, info={"unlearned": [1]}))
    assert learned(renderer, branch) == ["d<|im_end|>"]


@pytest.mark.parametrize(
    ("template", "messages", "said"),
    [
        (None, [Message("assistant", "b")], "nothing before it"),
        (None, [*TALK[:3], Message("assistant", "b")], "nothing before it"),
        (None, [Message("user", "a"), Message("assistant", "b<|im_end|>c")], "as it is read"),
        (
            None,
            [Message("user", "a"), Message("assistant", "", tool_calls=[ToolCall("c", "f", "{x")])],
            "as it is read",
        ),
        (LLAMA, [*TALK[:2], replace(TALK[2], tool_calls=CALLS * 2)], "one call at a time"),
        (FORGETS, [TALK[1], Message("assistant", "b")], "rewrites the prompt"),
    ],
)
def test_what_cannot_be_shown_is_refused(
    template: str | None, messages: list[Message], said: str
) -> None:
    renderer = Renderer(tokenizer(template))
    with pytest.raises(Unrenderable, match=said):
        render(renderer, trace_of(messages, 0))


def test_tokens_of_the_same_tokenizer_are_recognised(solved: list[Trace]) -> None:
    renderer = Renderer(tokenizer())
    for trace in solved[:4]:
        written = replace(trace, branches=render(renderer, trace))
        assert same_tokenizer(renderer, written)
        shifted = render(renderer, trace)
        for branch in shifted:
            branch.token_ids = [token + 1 for token in branch.token_ids]
        assert not same_tokenizer(renderer, replace(trace, branches=shifted))
        far = [replace(branch, token_ids=[9999] * len(branch)) for branch in shifted]
        assert not same_tokenizer(renderer, replace(trace, branches=far))


def test_the_tiny_model_is_made_of_the_same_masks() -> None:
    """Against an independent reading: the text between the header and the end of each answer."""
    renderer = Renderer(tokenizer())
    for trace in asyncio.run(demonstrate(12, {"good": 0.5, "guesses": 0.5}, seed=0)):
        [branch] = render(renderer, trace)
        tokens = zip(branch.token_ids, branch.loss_mask, strict=True)
        carried = renderer.decode([token for token, learned in tokens if learned])
        text = renderer.decode(branch.token_ids)
        answers = re.findall(r"<\|im_start\|>assistant\n(.*?<\|im_end\|>)", text, re.DOTALL)
        assert carried == "".join(answers)
        assert len(answers) == len(trace.turns)

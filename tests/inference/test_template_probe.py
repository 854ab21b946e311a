"""The verdicts on a chat template: what grows, what is bridged, what forks and what is refused."""

from __future__ import annotations

import pytest

from docs.make_template_table import renderer
from tests.inference.chat_templates import (
    FORGETS,
    LLAMA,
    OTHER_CLOSER,
    STRICT,
    STRIPS_THINKING,
    tokenizer,
)
from vf.inference.model import Conversation
from vf.inference.rendering.probe_script import CONVERSATIONS, TOOLS, call, sampled_ids, words
from vf.inference.rendering.renderer import Renderer
from vf.inference.rendering.template_probe import (
    Verdict,
    check_kind,
    judge,
    probe,
    shows_tools,
    summary,
)
from vf.runtime.errors import ConfigError
from vf.traces.messages import Message

# Users may say one thing each time: two answers of tools are refused.
ONE_AT_A_TIME = (
    "{%- for m in messages %}{%- if not loop.first and m.role == messages[loop.index0 - 1].role %}"
    "{{- raise_exception('one after the other!') }}{% endif %}{% endfor %}" + STRICT
)


def kinds(template: str | None) -> dict[str, str]:
    return {v.conversation: v.kind for v in probe(Renderer(tokenizer(template)))}


def test_the_shipped_template_is_increasing_throughout() -> None:
    verdicts = probe(Renderer(tokenizer()))
    assert [v.conversation for v in verdicts] == list(CONVERSATIONS)
    assert all(v.kind == "increasing" and v.turn is v.token is None for v in verdicts)
    assert summary(verdicts) == "increasing"


def test_what_a_template_strips_makes_it_bridged_and_the_place_is_shown() -> None:
    shown = Renderer(tokenizer(STRIPS_THINKING))
    verdict = judge(shown, "reasoning", CONVERSATIONS["reasoning"])
    assert (verdict.kind, verdict.turn) == ("bridged", 1)
    first = shown.prompt([Message("user", "How is the weather?")], [])
    assert verdict.token is not None
    # The reasoning is the first thing that was sampled.
    assert len(first) <= verdict.token <= len(first) + 2
    assert "They ask" in verdict.detail.split(" became ")[0]
    assert "They ask" not in verdict.detail.split(" became ")[1]


def test_a_template_that_shows_no_answers_forks_and_the_place_is_shown() -> None:
    shown = Renderer(tokenizer(FORGETS))
    verdict = judge(shown, "plain", CONVERSATIONS["plain"])
    assert (verdict.kind, verdict.turn) == ("forks", 1)
    before = shown.decode(shown.prompt([Message("user", "How is the weather?")], []))
    assert verdict.token == len(shown.template.encode(before[: before.index("1")]))
    assert verdict.detail.startswith("the template does not show the last answer; ")
    assert " became " in verdict.detail


def test_a_refusal_has_the_templates_own_words() -> None:
    verdict = judge(Renderer(tokenizer(ONE_AT_A_TIME)), "tools", [call(0, 2), words("x")])
    assert verdict == Verdict("tools", "refused", 1, None, "one after the other!", False)
    assert kinds(ONE_AT_A_TIME) == {
        "plain": "increasing",
        "tools": "increasing",
        "parallel calls": "refused",
        "reasoning": "bridged",
        "reasoning and tools": "bridged",
        "truncated": "increasing",
    }


def test_a_refusal_without_words_is_named_by_its_kind() -> None:
    silent = ONE_AT_A_TIME.replace("one after the other!", "")
    assert silent != ONE_AT_A_TIME
    verdicts = probe(Renderer(tokenizer(silent)))
    assert "TemplateError" in {verdict.detail for verdict in verdicts}


def test_a_template_that_refuses_only_the_rendering_is_bridged() -> None:
    verdicts = {v.conversation: v for v in probe(Renderer(tokenizer(LLAMA)))}
    parallel = verdicts["parallel calls"]
    assert (parallel.kind, parallel.detail) == ("bridged", "one call at a time")
    assert verdicts["tools"].kind == "increasing"


def test_other_closers_do_not_break_the_context() -> None:
    assert set(kinds(OTHER_CLOSER).values()) <= {"increasing", "bridged"}


def test_whether_the_template_shows_the_tools_is_reported() -> None:
    assert shows_tools(Renderer(tokenizer()))
    silent = Renderer(tokenizer(STRICT))
    assert not shows_tools(silent)
    assert summary(probe(silent)).endswith("; does not tell the model of its tools")
    assert judge(silent, "plain", CONVERSATIONS["plain"]).tools_shown


@pytest.mark.parametrize(
    ("verdicts", "line"),
    [
        (["increasing", "increasing"], "increasing"),
        (["increasing", "bridged"], "bridged: rewrites history in 1 of 2 conversations"),
        (["increasing", "forks"], "forks: b; increasing otherwise"),
        (["refused", "refused"], "refused: a, b"),
        (
            ["refused", "forks", "bridged"],
            "refused: a; forks: b; bridged: rewrites history in 1 of 3 conversations",
        ),
    ],
)
def test_the_summary_is_one_line(verdicts: list[str], line: str) -> None:
    made = [Verdict(name, kind) for name, kind in zip("abc", verdicts, strict=False)]  # type: ignore[arg-type]
    assert summary(made) == line


def test_a_run_of_a_kind_that_is_refused_cannot_start() -> None:
    verdicts = [Verdict("plain", "bridged"), Verdict("tools", "refused", 1, None, "never!")]
    check_kind(verdicts, "plain")
    with pytest.raises(ConfigError, match=r"kind \(tools\); it says: never!"):
        check_kind(verdicts, "tools")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("qwen3_5_think", "Why.\n</think>\n\nSo.<|im_end|>"),
        ("deepseek_r1_distill", "Why.\n</think>\n\nSo.<｜end▁of▁sentence｜>"),
        ("glm4moe", "\n<think>Why.</think>\nSo.<|user|>"),
        (
            "gptoss",
            "<|channel|>analysis<|message|>Why.<|end|>"
            "<|start|>assistant<|channel|>final<|message|>So.<|return|>",
        ),
        ("gemma4", "<think>\nWhy.\n</think>\n\nSo.<turn|>"),
    ],
)
def test_answers_are_sampled_as_the_family_writes_them(name: str, text: str) -> None:
    shown = renderer(name)
    conversation = Conversation([Message("user", "?")], [])
    prompt = shown.prompt(conversation.messages, [])
    ids = sampled_ids(shown, conversation, words("So.", "Why."), prompt)
    assert shown.decode(ids) == text
    cut = sampled_ids(shown, conversation, words("So.", "Why.", cut=True), prompt)
    assert ids[-1] in shown.stop_token_ids
    assert cut == ids[:-1]


def test_calls_are_sampled_as_the_family_writes_them() -> None:
    shown = renderer("deepseekv3")
    conversation = Conversation([Message("user", "?")], TOOLS)
    ids = sampled_ids(shown, conversation, call(0), shown.prompt(conversation.messages, TOOLS))
    assert '<｜tool▁sep｜>forecast\n```json\n{"city": "Oslo"}' in shown.decode(ids)

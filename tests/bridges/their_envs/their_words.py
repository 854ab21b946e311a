# What others write need not be typed as strictly as ours.
# mypy: ignore-errors
"""A v0 environment: one turn, a system prompt, an XML parser, three functions."""

from __future__ import annotations

import verifiers as vf
from datasets import Dataset

WORDS = ["anchor", "basket", "candle", "dragon", "ember", "feather"]


def reversed_right(completion, answer, parser, **kwargs):
    return 1.0 if parser.parse_answer(completion) == answer else 0.0


async def letters(completion, state, info):
    """Takes what it asks for: the row's info, and verifiers' state."""
    assert state["answer"] == info["word"][::-1]
    said = completion[-1]["content"]
    return sum(letter in said for letter in info["word"]) / len(info["word"])


def length(completion):
    return float(len(completion[-1]["content"]))


def rows(words: list[str]) -> Dataset:
    return Dataset.from_list(
        [{"question": f"Reverse: {w}", "answer": w[::-1], "info": {"word": w}} for w in words]
    )


def load_environment(num_train: int = 4, with_eval: bool = True) -> vf.Environment:
    parser = vf.XMLParser(["answer"], answer_field="answer")
    rubric = vf.Rubric(funcs=[reversed_right, letters, length], weights=[0.7, 0.3, 0.0])
    rubric.class_objects["parser"] = parser
    return vf.SingleTurnEnv(
        dataset=rows(WORDS[:num_train]),
        eval_dataset=rows(WORDS[num_train:]) if with_eval else None,
        system_prompt="Write the word backwards, in <answer> tags.",
        parser=parser,
        rubric=vf.RubricGroup([rubric, vf.Rubric(funcs=[bonus], weights=[0.0])]),
    )


def bonus(prompt):
    return float(len(prompt))

"""Good traces, a model that knows nothing, and a run's TOML."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

import vf
from vf.evaluation.scripts import oracle_of
from vf.inference.model_files import resolve_model
from vf.inference.rendering.renderer import Renderer
from vf.traces.trace import Trace
from vf.trainer.sft.settings import SftConfig, parse_sft_config


def play(tasks: Sequence[vf.Task], environment: vf.Environment) -> list[Trace]:
    """Let the environment's own oracle solve tasks."""

    async def one(task: vf.Task) -> Trace:
        script = oracle_of(environment, task)
        assert script is not None
        return await vf.rollout(environment, task, vf.ScriptedModel(script))

    async def every() -> list[Trace]:
        return [await one(task) for task in tasks]

    return asyncio.run(every())


def written(traces: Sequence[Trace], path: Path) -> Path:
    """Write traces to a file; return it."""
    with vf.TraceStore(path) as store:
        for trace in traces:
            store.append(trace)
    return path


@pytest.fixture(scope="session")
def renderer() -> Renderer:
    """The shipped model's."""
    return Renderer.from_pretrained(resolve_model("tiny"))


@pytest.fixture(scope="session")
def solved() -> list[Trace]:
    """Calculator tasks, solved; without tokens, for a script said it."""
    environment = vf.make("calculator", max_operations=1, max_operand=20)
    return play(list(islice(environment.tasks("train"), 48)), environment)


@pytest.fixture
def traces(solved: list[Trace], tmp_path: Path) -> Path:
    """A file of solved tasks."""
    return written(solved, tmp_path / "solved.jsonl")


@pytest.fixture(scope="session")
def blank(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model with the shipped tokenizer that was never trained.

    Its sampling flags contradict each other, as those of some published models do.
    """
    tokenizer = AutoTokenizer.from_pretrained(resolve_model("tiny"))
    folder = tmp_path_factory.mktemp("blank")
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    flags = {"do_sample": False, "temperature": 0.6}
    (folder / "generation_config.json").write_text(json.dumps(flags))
    return folder


@pytest.fixture
def make_config(tmp_path: Path, traces: Path, blank: Path) -> Callable[..., SftConfig]:
    """Return a factory of configs; ``data`` are settings of that table."""

    def make(model: str = str(blank), data: dict[str, Any] | None = None, **args: Any) -> SftConfig:
        settings = {"output_dir": str(tmp_path / "runs"), "max_seq_len": 512, **args}
        return parse_sft_config(
            {
                "model": model,
                "data": {"traces": [str(traces)], **(data or {})},
                "trainer": {"args": settings},
            }
        )

    return make

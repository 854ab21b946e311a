"""`configs/prime-rl/`: the environments that they name load through verifiers' own loader."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

from tests.late import Late

loaders = Late("verifiers.v1.utils.loaders")

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "configs" / "prime-rl"


def config(name: str) -> dict[str, Any]:
    return tomllib.loads((FOLDER / name).read_text(encoding="utf-8"))


RL = config("rl.toml")
PARTS = {name: config(f"{name}.toml") for name in ("trainer", "orchestrator", "inference")}


def test_the_parts_say_what_the_one_file_says() -> None:
    """prime-rl hands what is shared (model, max_steps, seq_len, ckpt) to the three of them."""
    model, steps, length = RL["model"]["name"], RL["max_steps"], RL["seq_len"]
    assert PARTS["trainer"] == {
        "max_steps": steps,
        "model": {"name": model, "seq_len": length},
        "ckpt": RL["ckpt"],
        **RL["trainer"],
    }
    assert PARTS["orchestrator"] == {
        "max_steps": steps,
        "seq_len": length,
        "model": {"name": model},
        "ckpt": RL["ckpt"],
        **RL["orchestrator"],
    }
    assert PARTS["inference"] == {"vllm": {"model": model, **RL["inference"]["vllm"]}}


def test_the_numbers_go_together() -> None:
    orchestrator = PARTS["orchestrator"]
    assert orchestrator["batch_size"] % orchestrator["train"]["group_size"] == 0
    assert PARTS["inference"]["vllm"]["max_model_len"] >= orchestrator["seq_len"]
    assert orchestrator["train"]["sampling"]["max_completion_tokens"] < orchestrator["seq_len"]


def test_the_source_that_the_page_shows_loads() -> None:
    page = (ROOT / "docs" / "prime-rl.md").read_text(encoding="utf-8")
    (text,) = re.findall(r"^```\n(\[\[.*?)^```", page, re.DOTALL | re.MULTILINE)
    (source,) = tomllib.loads(text)["orchestrator"]["train"]["source"]
    env = loaders.load_environment(loaders.resolve_env_config(source["env"]))
    assert env.taskset.environment.id == "calculator"


def test_each_source_loads_as_verifiers_loads_it() -> None:
    orchestrator = PARTS["orchestrator"]
    tasks = {}
    for part in ("train", "eval"):
        (source,) = orchestrator[part]["source"]
        env = loaders.load_environment(loaders.resolve_env_config(source["env"]))
        assert env.taskset.environment.max_operations == 3
        tasks[part] = {task.key for task in env.taskset}
    assert len(tasks["train"]) == 2000
    assert len(tasks["eval"]) == 200
    assert not tasks["train"] & tasks["eval"]

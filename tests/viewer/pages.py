"""Runs to look at, and what is in an offline page."""

from __future__ import annotations

import base64
import json
import re
import zlib
from pathlib import Path
from typing import Any

import vf
from tests.traces.view.material import research

CONFIG = """
model = "tiny"
[env]
id = "calculator"
args = { api_key = "very-secret" }
[trainer.args]
max_steps = 40
max_seq_len = 512
max_prompt_len = 256
learning_rate = %s
"""


def line(step: int, **more: float | None) -> dict[str, float | None]:
    """Return a step's metrics."""
    return {
        "step": step,
        "reward/mean": 0.5 + step / 100,
        "loss": -0.01 * step,
        "kl_sample_train_v1": 2e-9,
        "tool_calls/error_rate": 0.0,
        "time/generate": 6.0,
        "time/train": 4.0,
        "time/total": 10.0,
        **more,
    }


def append(run: Path, *lines: dict[str, float | None]) -> None:
    """Append lines to a run's metrics."""
    with (run / "metrics.jsonl").open("a") as file:
        file.writelines(json.dumps(each) + "\n" for each in lines)


def make_run(folder: Path, steps: int = 3, learning_rate: float = 1e-3) -> Path:
    """Make a run's folder with settings, metrics and a few traces."""
    (folder / "traces").mkdir(parents=True)
    (folder / "config.toml").write_text(CONFIG % learning_rate)
    append(folder, {"step": 0, "eval/reward/mean": 0.125})
    append(folder, *(line(step) for step in range(1, steps + 1)))
    with vf.TraceStore(folder / "traces" / "step-000001.jsonl") as store:
        for index in range(4):
            store.append(research(index))
    return folder


def events_of(page: bytes) -> dict[str, list[Any]]:
    """Return the data in an offline page: by name, in order."""
    [packed] = re.findall(rb'<script type="text/plain" id="events">(.*?)</script>', page, re.DOTALL)
    found: dict[str, list[Any]] = {}
    for name, data in json.loads(zlib.decompress(base64.b64decode(packed))):
        found.setdefault(name, []).append(data)
    return found

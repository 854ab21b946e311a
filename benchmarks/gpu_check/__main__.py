"""Check training and generation on this machine's GPU: `make gpu-check`.

It needs torch, transformers, peft, accelerate and what `import vf` needs; models are random, and
nothing is downloaded. Checks:

- *step*: loss and gradient of an optimizer step, in float32 and bfloat16, with an adapter and of
  all weights, in each way of training (packed, with the model's own head, padded), against a plain
  loop in float32 on the CPU.
- *memory*: the peak of a step over the plan's.
- *speed*: tokens a second of steps on 16k tokens of Qwen3-0.6B in bfloat16, to be compared with
  prime-rl's on an H100.
- *shared prefixes*: a step with and without them.
- *embedded*: the embedded engine's greedy answers against `generate` and a plain forward pass, in
  float32, and its speed.
- *vllm*: three steps of the quickstart through a server by each way of publishing, and with sleep.

Without a GPU all but the last run on the CPU with tiny models, and check that the check works. A
check that fails does not stop the others. The last line is JSON. Exit code: 1 if a check failed.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import logging
import os
import platform
import sys
import time
import warnings
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from pathlib import Path

from gpu_check.row import Row, run

from vf.runtime.command import quiet_transformers

NEEDED = ("torch", "transformers", "peft", "accelerate")


def checks() -> dict[str, Callable[[], Row]]:
    """Return all checks by name, in order."""
    from gpu_check import engines, training
    from gpu_check.models import FAMILIES

    modes = ("full", "lora")
    found: dict[str, Callable[[], Row]] = {}
    for mode in modes:
        found[f"memory: {mode}"] = partial(training.memory, mode)
    for family in FAMILIES:
        for mode in modes:
            for precision in ("float32", "bf16"):
                name = f"step: {family} {mode} {precision}"
                found[name] = partial(training.gradient, family, mode, precision)
    found["embedded: float32"] = engines.embedded
    found["embedded: speed"] = engines.embedded_speed
    for mode in modes:
        found[f"speed: {mode}"] = partial(training.speed, mode)
    found["shared prefixes: lora"] = training.sharing
    for way in engines.VLLM:
        found[f"vllm: {way}"] = partial(engines.vllm, way)
    return found


def device() -> str:
    """Return the device that is checked, in words."""
    import torch

    if not torch.cuda.is_available():
        return f"no GPU; {os.cpu_count()} CPU cores"
    memory = torch.cuda.get_device_properties(0).total_memory / 2**30
    return f"{torch.cuda.device_count()} × {torch.cuda.get_device_name(0)}, {memory:.0f} GiB each"


def versions() -> str:
    """Return those that matter here."""
    optional = [name for name in ("vllm", "bitsandbytes") if importlib.util.find_spec(name)]
    packages = ", ".join(f"{name} {version(name)}" for name in (*NEEDED, *optional))
    return f"Python {platform.python_version()}, {packages}"


def markdown(rows: list[Row], arguments: list[str], seconds: float) -> str:
    """Return the page of results."""
    import torch

    gpu = torch.cuda.is_available()
    lead = (
        f"On {device()}."
        if gpu
        else "**No GPU was available.** What follows is the CPU part, with tiny models: it shows "
        "that the check itself works, and says nothing about GPUs."
    )
    verdicts = {True: "yes", False: "**no**", None: "–"}
    table = [
        f"| {row.check} | {verdicts[row.passed]} | {row.shown().replace('|', '/')} |"
        for row in rows
    ]
    command = " ".join(
        ["make gpu-check", *([f'ARGS="{" ".join(arguments)}"'] if arguments else [])]
    )
    parts = [
        "# GPU check",
        lead,
        f"`{command}` printed this on {time.strftime('%Y-%m-%d')} ({device()}; {versions()}), in "
        f"{seconds:.0f} s. `benchmarks/gpu_check/__main__.py` says what each check is.",
        "\n".join(["| check | passed | figures |", "|---|---|---|", *table]),
    ]
    return "\n\n".join(parts) + "\n"


def main() -> int:
    """Run the checks, and print a line for each."""
    lines = (__doc__ or "").strip().splitlines()
    parser = argparse.ArgumentParser(prog="make gpu-check", description=lines[0])
    parser.add_argument("--markdown", type=Path, help="write the table to this file, too")
    parser.add_argument("--only", default="", help="run the checks whose names contain this")
    args = parser.parse_args()
    if missing := [name for name in NEEDED if importlib.util.find_spec(name) is None]:
        parser.error(f"{', '.join(missing)}: not installed in {sys.executable}; pip install them")
    os.environ["HF_HUB_OFFLINE"] = "1"
    quiet_transformers()
    warnings.simplefilter("ignore", FutureWarning)  # of names in transformers that PEFT uses
    logging.getLogger("vf").setLevel(logging.ERROR)  # a row says which way a model is trained
    import torch

    if not torch.cuda.is_available():
        torch.set_num_threads(1)  # threads would only wait for each other in models this small
    todo = {name: check for name, check in checks().items() if args.only in name}
    print(f"{device()}; {versions()}", flush=True)
    started, rows = time.monotonic(), []
    for name, check in todo.items():
        rows.append(run(name, check))
        print(rows[-1].line(), flush=True)
    seconds = time.monotonic() - started
    if args.markdown is not None:
        args.markdown.write_text(markdown(rows, sys.argv[1:], seconds), encoding="utf-8")
    failed = [row.check for row in rows if row.passed is False]
    print(f"{len(rows)} checks, {len(failed)} failed, {seconds:.0f} s")
    found = [
        {"check": row.check, "passed": row.passed, "figures": dict(row.figures), "note": row.note}
        for row in rows
    ]
    print(json.dumps({"benchmark": "gpu_check", "device": device(), "rows": found}))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

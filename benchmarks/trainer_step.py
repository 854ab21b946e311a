"""What an optimizer step costs: `python benchmarks/trainer_step.py`.

TRL's GRPOTrainer and ours take one step each in turn on the same 64 rollouts (4 groups of 16) with
a random Llama of 20 M parameters in float32, no generation. Each is a process of its own. Their
gradient norms must agree to five digits, or the benchmark fails.

- *A*: prompts of 256 tokens, completions of 32 to 224.
- *B*: prompts of 1,000 tokens, completions of 200.
- full: all weights are trained; lora: an adapter of rank 16 on all linear layers but the head.
- trl: with its default of 8 rows in a pass. Neither side uses gradient checkpointing.
- compact: TRL with its head on completions only, as it has it on devices with Triton.
- packed: ours without shared prefixes.

Then ours packed and padded, one step each in turn, on A with all weights of small random models
with sliding windows (Gemma 3), with linear attention (Qwen3.5, Qwen3-Next) and with attention sinks
(gpt-oss). Their gradient norms must agree to four digits.

TRL comes with the `dev` extra.

The last line is JSON: `ratio` is TRL's time over ours in B with all weights, `ratio_a` in A;
`ratio_compact_b` and `ratio_compact_a` compare with the compact TRL, and `sharing_b` is our time
over that of plain packing. `memory` is TRL's peak over ours, at its smallest. `packing` is the time
of padded rows over that of packed ones by family, or "padded" where a family cannot be packed.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import tempfile
from collections.abc import Callable
from statistics import median
from typing import Any

from harness import missing, parse, print_result, receive, spawn
from peers import present, versions_of
from trainer_step_workers import MODELS, make_model, make_work, ours, trl

TARGETS = {"b": 4.0, "a": 2.5, "compact_b": 3.0, "compact_a": 2.0}
SHARING_TARGET = 0.35


class Contender:
    """A process that takes a step when told to.

    Args:
        target: Its function, of :mod:`trainer_step_workers`.
        args: What it gets after its end of the pipe.
    """

    def __init__(self, target: Callable[..., None], *args: Any) -> None:
        self._pipe, theirs = spawn.Pipe()
        self._process = spawn.Process(target=target, args=(theirs, *args), daemon=True)
        self._process.start()
        self.steps: list[dict[str, float]] = []
        receive(self._pipe, self._process)

    def step(self, *, keep: bool) -> dict[str, float]:
        """Take one, and return its seconds, gradient norm and the peak memory so far."""
        self._pipe.send("step")
        found: dict[str, float] = receive(self._pipe, self._process)
        if keep:
            self.steps.append(found)
        return found

    def stop(self) -> None:
        """End the process."""
        self._pipe.send("stop")
        self._process.join(30)


def compare(kind: str, mode: str, args: argparse.Namespace, folder: str) -> dict[str, Any]:
    """Let all contenders do one workload in turn."""
    work, lora = make_work(kind, args.scale), mode == "lora"
    settings = {"micro_batch_tokens": args.micro_batch_tokens}
    makers: dict[str, tuple[Any, ...]] = {
        "ours": (ours, folder, work, lora, settings),
        "packed": (ours, folder, work, lora, {**settings, "share_prefixes": False}),
        "compact": (trl, folder, work, lora, True),
        "trl": (trl, folder, work, lora, False),
    }
    running = {name: Contender(*makers[name]) for name in args.contenders}
    return in_turn(f"{kind} {mode:>4}", running, work.trained, args.rounds, 1e-5)


def in_turn(
    label: str, running: dict[str, Contender], trained: int, rounds: int, digits: float
) -> dict[str, Any]:
    """Let contenders take steps in turn, and end them.

    Args:
        label: What they do, for the lines that are printed.
        running: By name.
        trained: Tokens that carry loss in a step.
        rounds: Steps of each, after one to warm up.
        digits: Most relative difference of their gradient norms.
    """
    for turn in range(rounds + 1):  # the first warms up
        for name, contender in running.items():
            found = contender.step(keep=turn > 0)
            print(
                f"{label} {name:>7}  {found['seconds']:7.2f} s "
                f"({found['cpu_seconds']:.1f} of CPU)  "
                f"{trained / found['seconds']:7.0f} trained tokens/s  "
                f"{found['peak_mib']:6.0f} MiB peak  gradient norm {found['grad_norm']:.7f}"
                + ("  (warm-up)" if turn == 0 else ""),
                flush=True,
            )
    norms = {name: each.steps[-1]["grad_norm"] for name, each in running.items()}
    for contender in running.values():
        contender.stop()
    if max(norms.values()) > (1 + digits) * min(norms.values()):
        sys.exit(f"{label}: gradient norms differ: {norms}")
    seconds = {n: median(step["seconds"] for step in each.steps) for n, each in running.items()}
    return {
        "seconds": {name: round(value, 2) for name, value in seconds.items()},
        "tokens_per_s": {name: round(trained / value) for name, value in seconds.items()},
        "peak_mib": {name: round(each.steps[-1]["peak_mib"]) for name, each in running.items()},
        "grad_norm": norms,
    }


def packing(family: str, args: argparse.Namespace) -> dict[str, Any]:
    """Let a family's model take steps packed and padded in turn."""
    work = make_work("A", args.scale)
    settings = {"micro_batch_tokens": args.micro_batch_tokens}
    with tempfile.TemporaryDirectory() as folder:
        make_model(folder, family, narrow=args.smoke)
        running = {
            "packed": Contender(ours, folder, work, False, settings),
            "padded": Contender(ours, folder, work, False, {**settings, "packing": False}),
        }
        found = in_turn(f"{family:>10}", running, work.trained, args.rounds, 1e-4)
    is_padded = bool(running["packed"].steps[-1]["padded"])
    ratio = found["seconds"]["padded"] / found["seconds"]["packed"]
    return {**found, "gain": "padded" if is_padded else round(ratio, 2)}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=3, help="steps each, after one to warm up")
    parser.add_argument("--workloads", nargs="*", choices=["A", "B"], default=["A", "B"])
    parser.add_argument("--modes", nargs="+", choices=["full", "lora"], default=["full", "lora"])
    names = ["ours", "packed", "compact", "trl"]
    parser.add_argument("--contenders", nargs="+", choices=names, default=names)
    parser.add_argument("--scale", type=float, default=1.0, help="of all lengths, to try it out")
    parser.add_argument("--micro-batch-tokens", type=int, default=4352, help="ours, in one pass")
    families = [name for name in MODELS if name != "llama"]
    parser.add_argument("--families", nargs="*", choices=families, default=families)
    few = {"contenders": ["ours", "trl"], "families": ["gemma3"]}
    args = parse(parser, rounds=1, workloads=["B"], modes=["full"], scale=0.1, **few)
    needs = {"trl": "trl", "compact": "trl"}
    args.contenders = present(args.contenders, needs, "'vf-rl[dev]'")
    if not args.contenders:
        missing("TRL: pip install 'vf-rl[dev]'")
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        make_model(folder, narrow=args.smoke)
        for mode in args.modes:
            for kind in args.workloads:
                found[f"{kind.lower()}_{mode}"] = compare(kind, mode, args, folder)
    by_family = {family: packing(family, args) for family in args.families}

    def ratio(key: str, over: str, under: str = "ours", what: str = "seconds") -> float | None:
        values = found.get(key, {}).get(what, {})
        return round(values[over] / values[under], 2) if {over, under} <= values.keys() else None

    ratios = {}
    for mode in ("full", "lora"):
        end = "" if mode == "full" else "_lora"
        for kind in ("b", "a"):
            key = f"{kind}_{mode}"
            ratios["ratio" + ("_a" if kind == "a" else "") + end] = ratio(key, "trl")
            ratios[f"ratio_compact_{kind}{end}"] = ratio(key, "compact")
            ratios[f"sharing_{kind}{end}"] = ratio(key, "ours", "packed")
    memory = [ratio(key, "trl", what="peak_mib") for key in found]
    print_result(
        args,
        "trainer_step",
        ratio=ratios.pop("ratio"),
        target=TARGETS["b"],
        **{name: value for name, value in ratios.items() if value is not None},
        memory=min((value for value in memory if value is not None), default=None),
        targets=TARGETS | {"sharing_b": SHARING_TARGET},
        packing={family: each["gain"] for family, each in by_family.items()},
        runs=found | by_family,
        rounds=args.rounds,
        scale=args.scale,
        micro_batch_tokens=args.micro_batch_tokens,
        cores=os.cpu_count(),
        versions={"python": platform.python_version()}
        | versions_of("torch", "transformers", "trl", "peft"),
    )


if __name__ == "__main__":
    main()

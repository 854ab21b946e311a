"""How fast the embedded engine generates: `python benchmarks/embedded_engine.py`.

The quickstart's model with its adapter, its prompts, and one turn of each rollout of a step, at
once. The peer is transformers' plain `generate` on the same prompts as one padded batch, with the
same module and the same sampling; both report tokens up to the end of each answer. The engine is
asked directly, without HTTP, and has forgotten the prompts' prefixes before every round, as after
a training step. Both run in one process, in turn, and are warm.

The last line is JSON: `ratio` is our tokens a second over the peer's, `cpu_ratio` our tokens per
second of CPU time over the peer's, which other work on the machine disturbs less. Both are medians
of the rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vf.inference.embedded.embedded_engine import EmbeddedEngine

CONFIG = Path(__file__).parent.parent / "configs" / "quickstart.toml"
TARGET = 1.0
EXAMPLES = """\
examples:
  python benchmarks/embedded_engine.py
  python benchmarks/embedded_engine.py --threads 1 --max-requests 16
"""


@dataclass(frozen=True, slots=True)
class Speed:
    """Of one round: tokens, and the seconds that they took."""

    tokens: int
    wall: float
    cpu: float


def timed(generate: Callable[[int], int], seed: int) -> Speed:
    """Run a round; ``generate`` takes a seed and returns the number of sampled tokens."""
    wall, cpu = time.perf_counter(), time.process_time()
    tokens = generate(seed)
    return Speed(tokens, time.perf_counter() - wall, time.process_time() - cpu)


def contenders(
    requests: int, max_requests: int | None
) -> tuple[EmbeddedEngine, dict[str, Callable[[int], int]]]:
    """Return the engine, not yet started, and how each contender generates."""
    import torch

    from vf.inference.embedded.embedded_engine import EmbeddedEngine
    from vf.inference.model import Sampling
    from vf.inference.settings import EmbeddedSettings
    from vf.trainer.learning.policy import Policy
    from vf.trainer.preflight import preflight
    from vf.trainer.settings.load_config import load_config

    plan = preflight(load_config(CONFIG, [])[0])
    args, settings = plan.config.args, plan.config.inference
    assert isinstance(settings, EmbeddedSettings)
    module = Policy(plan.config.model, args).model
    stops, tools = plan.renderer.stop_token_ids, plan.environment.episode(0).toolbox.schemas()
    tasks = (plan.tasks[i // args.rollouts_per_example] for i in range(requests))
    first = (plan.environment.first_messages(task) for task in tasks)
    prompts = [list(plan.renderer.prompt(messages, tools)) for messages in first]
    engine = EmbeddedEngine(
        module,
        max_seq_len=args.max_seq_len,
        max_requests=max_requests or settings.args.max_requests,
        max_batch_tokens=settings.args.max_batch_tokens,
    )

    def ours(seed: int) -> int:
        async def all_answers() -> list[Any]:
            sampling = Sampling(args.max_tokens, args.temperature)
            answers = (
                engine.generate(prompt, sampling.with_(seed=seed * requests + index), stops)
                for index, prompt in enumerate(prompts)
            )
            return await asyncio.gather(*answers)

        return sum(len(answer.token_ids) for answer in asyncio.run(all_answers()))

    width = max(map(len, prompts))
    ids = torch.tensor([[0] * (width - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts])

    def peer(seed: int) -> int:
        torch.manual_seed(seed)
        with engine.paused(), torch.no_grad():
            found = module.generate(
                input_ids=ids,
                attention_mask=mask,
                do_sample=True,
                temperature=args.temperature,
                top_k=0,
                top_p=1.0,
                max_new_tokens=args.max_tokens,
                eos_token_id=stops,
                pad_token_id=0,
            )[:, width:].tolist()
        ends = ((i for i, token in enumerate(row, 1) if token in stops) for row in found)
        return sum(next(end, len(row)) for end, row in zip(ends, found, strict=True))

    return engine, {"ours": ours, "generate": peer}


def positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").split("\n\n")[0],
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--rounds", type=positive, default=7, help="of each, in turn (default: %(default)s)")
    add("--requests", type=positive, default=64, help="at once (%(default)s)")
    add("--max-requests", type=positive, help="that the engine decodes at once (the quickstart's)")
    add("--threads", type=positive, help="of torch (by default torch's own choice)")
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    if args.threads is not None:
        os.environ["OMP_NUM_THREADS"] = str(args.threads)  # read when torch is loaded
    import torch

    engine, generators = contenders(args.requests, args.max_requests)
    speeds: dict[str, list[Speed]] = {name: [] for name in generators}
    engine.start()
    try:
        for seed in range(args.rounds + 1):  # the first is a warm-up
            for name in sorted(generators, reverse=seed % 2 == 1):
                engine.publish(seed)
                speeds[name].append(timed(generators[name], seed))
    finally:
        engine.stop()
    rounds = {name: measured[1:] for name, measured in speeds.items()}
    for name, measured in rounds.items():
        wall, cpu = (median(getattr(s, part) for s in measured) for part in ("wall", "cpu"))
        tokens = median(s.tokens for s in measured)
        print(f"{name:>9}  {tokens:5.0f} tokens  {wall:6.2f} s  {cpu:6.2f} s of CPU time")
    pairs = list(zip(rounds["ours"], rounds["generate"], strict=True))
    ratios = [o.tokens / o.wall / (p.tokens / p.wall) for o, p in pairs]
    cpu_ratios = [o.tokens / o.cpu / (p.tokens / p.cpu) for o, p in pairs]
    found = {
        "benchmark": "embedded_engine",
        "ratio": round(median(ratios), 2),
        "target": TARGET,
        "cpu_ratio": round(median(cpu_ratios), 2),
        "ratios": [round(ratio, 2) for ratio in ratios],
        **vars(args),
        "cores": os.cpu_count(),
        "torch_threads": torch.get_num_threads(),
        "versions": {
            "python": platform.python_version(),
            **{name: version(name) for name in ("transformers", "torch", "peft")},
        },
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()

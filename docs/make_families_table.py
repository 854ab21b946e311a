"""Write docs/families.md: what training does with models of every family.

    python docs/make_families_table.py           # writes the page
    python docs/make_families_table.py --check   # runs all of it, and compares the verdicts

Each family is a random model of two or three layers in float32
(tests/trainer/learning/families.py), trained for a step by the parts that a run has. The figures
differ a little from machine to machine, so ``--check`` looks at their bounds and compares the rest.
"""

from __future__ import annotations

import argparse
import logging
import random
import re
import sys
import tempfile
import warnings
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PAGE = Path(__file__).with_name("families.md")
NATS = 1e-4  # most difference of a log-probability; 5e-5 was seen, on one kind of processor
MEMORY = 0.2  # most difference of the prediction from what is measured
GROUPS, ROLLOUTS, PROMPT = 2, 4, 28
LONGEST = 160
FIGURES = ("log-probability", "memory")
COLUMNS = (
    *("family", "kind", "embedded engine", "rows", "shared prefix"),
    *("LoRA adapts", "experts", "LoRA through vLLM", "images", *FIGURES),
)


@dataclass(frozen=True, slots=True)
class Row:
    """A family's line.

    Attributes:
        cells: By column.
        faults: What is out of bounds.
    """

    cells: dict[str, str]
    faults: tuple[str, ...] = ()

    @property
    def line(self) -> str:
        """The line in Markdown."""
        return "| " + " | ".join(self.cells[column] for column in COLUMNS) + " |"


def examine(family: Any) -> Row:
    """Load a family's model as a run does, and train it for a step, whole and with an adapter."""
    from vf.inference.rendering.vision import FAMILIES, SERVED
    from vf.runtime.errors import VfError

    kind = family.config().model_type
    readers = [name for name, kinds in (("embedded", FAMILIES), ("vLLM", SERVED)) if kind in kinds]
    images = ", ".join(readers) or "–"
    cells = {"family": family.name, "kind": family.kind, "images": images}
    faults: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        family.model().save_pretrained(folder)
        try:
            cells |= _whole(family, folder)
        except VfError as error:
            cells |= {name: "–" for name in COLUMNS[2:] if name not in cells}
            said = str(error).replace(repr(folder), "MODEL").partition(". ")[0]
            return Row(cells | {"rows": f"refused: {said}"}, (f"cannot be trained: {said}",))
        try:
            cells |= _adapter(family, folder)
        except VfError as error:
            cells |= {"LoRA adapts": f"refused: {error}", "experts": "–", "LoRA through vLLM": "–"}
            faults.append(f"LoRA: {error}")
    if not float(cells["log-probability"]) <= NATS:
        faults.append(f"log-probabilities are off by {cells['log-probability']} nats")
    if not abs(float(cells["memory"]) - 1) <= MEMORY:
        faults.append(f"{cells['memory']} of the memory was predicted")
    return Row(cells, tuple(faults))


def _whole(family: Any, folder: str) -> dict[str, str]:
    """Train all weights for two steps; compare log-probabilities and memory."""
    from tests.trainer.learning.memory.live_memory import LiveMemory
    from vf.trainer.learning.memory.trainer_memory import Shape, predict
    from vf.trainer.learning.passes import unwatched
    from vf.trainer.learning.policy import Policy

    args = _args(use_lora=False)
    batches: list[Any] = []
    policy = Policy(folder, args)

    def watch(name: str, batch: Any) -> Any:
        if name == "forward":
            batches.append(batch)
        return nullcontext()

    policy.passes.phase = watch
    samples = _samples(GROUPS, ROLLOUTS)
    policy.accumulate(samples)
    shares = policy.accumulated.computed < sum(map(len, samples))
    gap = _gap(policy, folder, batches)
    policy.finish()  # Adam's moments are there from here on
    policy.passes.phase = unwatched
    apart = _samples(GROUPS * ROLLOUTS, 1, prompt=4)
    with LiveMemory() as live:
        moments = [each for state in policy.optimizer.state.values() for each in state.values()]
        held = [*policy.model.parameters(), *policy.model.buffers(), *moments]
        live.hold(*(each for each in held if hasattr(each, "untyped_storage")))
        policy.accumulate(apart)
        computed = policy.accumulated.computed
        policy.finish()
        policy.update(apart)
    shape = Shape.of(family.config(), policy.weights.module)
    predicted = sum(predict(shape, args, computed).values())
    return {
        "embedded engine": _engine(policy.weights.module),
        "rows": policy.forward.how,
        "shared prefix": "yes" if shares else "no",
        "log-probability": f"{gap:.1e}",
        "memory": f"{predicted / live.peak:.2f}",
    }


def _gap(policy: Any, folder: str, batches: Sequence[Any]) -> float:
    """Return the largest difference from transformers' own code, one row at a time."""
    import torch
    from transformers import AutoModelForCausalLM

    plain = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    worst = 0.0
    with torch.no_grad():
        for batch in batches:
            with policy.forward.active():
                found = policy.forward(batch, 1.0).logprobs
            expected = []
            rows = zip(batch.input_ids, batch.attention_mask, batch.loss_mask, strict=True)
            for ids, there, trained in rows:
                there = there.bool()
                logits = plain(input_ids=ids[there][None], use_cache=False).logits[0]
                logprobs = logits[:-1].log_softmax(-1).gather(1, ids[there][1:, None])[:, 0]
                expected.append(logprobs[trained[there][1:]])
            worst = max(worst, float((found - torch.cat(expected)).abs().max()))
    return worst


def _engine(model: Any) -> str:
    """Return whether the embedded engine serves a model, or why not."""
    from vf.inference.embedded.embedded_engine import EmbeddedEngine
    from vf.runtime.errors import EngineError

    engine = EmbeddedEngine(model, max_seq_len=LONGEST, max_requests=2, max_batch_tokens=64)
    try:
        engine.start()
    except EngineError as error:
        reason = str(error).partition("embedded engine: ")[2] or str(error)
        return "no: " + re.sub(r" by [\d.]+%", "", reason)
    engine.stop()
    return "yes"


def _adapter(family: Any, folder: str) -> dict[str, str]:
    """Train the default adapter for a step, and say what it is on."""
    from vf.inference.model_files import load_module
    from vf.inference.vllm.adapter_formats import adapter_format
    from vf.runtime.errors import TrainingError
    from vf.trainer.learning.model.lora_targets import lora_targets
    from vf.trainer.learning.policy import Policy

    args = _args()
    targets = lora_targets(load_module(folder, "float32"), args)
    parts = targets.parts
    stats = Policy(folder, args).update(_samples(GROUPS, ROLLOUTS))
    if not stats.grad_norm > 0:
        raise TrainingError("its gradient is zero")
    experts = [part.partition(" ")[2].strip("()") for part in parts if part.startswith("experts")]
    others = [part for part in parts if not part.startswith("experts")]
    ignored = adapter_format(family.config()).not_applied(targets.modules, targets.parameters)
    return {
        "LoRA adapts": "; ".join(others),
        "experts": ", ".join(experts) or "–",
        "LoRA through vLLM": f"all but {', '.join(ignored)}" if ignored else "yes",
    }


def _args(**settings: Any) -> Any:
    from vf.trainer.settings.config import TrainerArgs

    return TrainerArgs(
        max_seq_len=LONGEST, max_prompt_len=PROMPT, micro_batch_tokens=4096, **settings
    )


def _samples(groups: int, rollouts: int, prompt: int = PROMPT) -> list[Any]:
    """Return groups of rollouts that share a prompt; all are longer than the models' windows."""
    from tests.trainer.learning.families import VOCABULARY
    from vf.traces.trace import Branch
    from vf.trainer.learning.batches.batch import Sample

    rng = random.Random(0)

    def ids(count: int) -> list[int]:
        return [rng.randrange(10, VOCABULARY) for _ in range(count)]

    samples: list[Any] = []
    for _ in range(groups):
        first = ids(prompt)
        for _ in range(rollouts):
            branch, answer = Branch(), ids(60 + 20 * (len(samples) % 4))
            branch.add_context(first, 0)
            branch.add_sampled(answer, [-5.0] * len(answer), [0] * len(answer), 0)
            samples.append(Sample(branch, 1.0 if len(samples) % 2 else -1.0))
    return samples


_HEAD = """\
# Model families

How training works for models of each family, measured with random models of two or three layers, in
float32 on a CPU, with windows and chunks of 8 tokens. `python docs/make_families_table.py`
generates this page, and a test runs it with `--check`: it fails if a family cannot be trained, if a
verdict has changed, or if a figure is out of bounds.

- **embedded engine**: whether it serves the model. If not, use vLLM.
- **rows**: `packed` computes no padding; `padded` does.
- **shared prefix**: whether the common prefix of a group's rollouts is computed once.
- **LoRA adapts**: by default. Routers and image or audio encoders are not adapted.
- **LoRA through vLLM**: what vLLM applies of it, experts included. `test_adapter_loading.py` in
  `tests/inference/vllm` loads adapters into vLLM's own models and compares what they change, weight
  by weight.
- **images**: which engines show them to it, in training, too. [Images](images.md#local-models) has
  the families that are trained with images alone, and so are not below.
- **log-probability**: the largest difference, in nats, between the trainer's log-probabilities and
  those of transformers' own code (`eager`), one row at a time. At most {nats:g}.
- **memory**: the plan's prediction for training all weights, divided by the peak bytes of live
  tensors, on rollouts that share nothing. Within {memory:.0%}.

A composite contains more than a text model. Here it is trained on text only; if the rest is loaded
at all, it does not change.

"""


def page(rows: Sequence[Row]) -> str:
    """Return the page's text."""
    head = _HEAD.format(nats=NATS, memory=MEMORY)
    lines = ["| " + " | ".join(COLUMNS) + " |", "|" + " --- |" * len(COLUMNS)]
    return head + "\n".join([*lines, *(row.line for row in rows)]) + "\n"


def changed(rows: Sequence[Row]) -> list[str]:
    """Return what differs from the verdicts that the page has."""
    known: dict[str, dict[str, str]] = {}
    for line in PAGE.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if line.startswith("| ") and len(cells) == len(COLUMNS):
            known[cells[0]] = dict(zip(COLUMNS, cells, strict=True))
    found = []
    for row in rows:
        before = known.get(row.cells["family"], {})
        found += [
            f"{row.cells['family']}: {column} is {row.cells[column]!r}, was {before.get(column)!r}"
            for column in COLUMNS
            if column not in FIGURES and row.cells[column] != before.get(column)
        ]
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; compare verdicts")
    parser.add_argument("--only", default="", help="families whose names contain this; print them")
    args = parser.parse_args(arguments)
    import torch
    import transformers

    sys.path.insert(0, str(ROOT))
    from tests.trainer.learning.families import FAMILIES

    torch.manual_seed(0)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    rows = []
    for family in FAMILIES:
        if args.only in family.name:
            rows.append(examine(family))
            print(rows[-1].line, flush=True)
    faults = [f"{row.cells['family']}: {fault}" for row in rows for fault in row.faults]
    if args.check:
        faults += changed(rows)
    elif not args.only:
        PAGE.write_text(page(rows))
    print("\n".join(faults), file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())

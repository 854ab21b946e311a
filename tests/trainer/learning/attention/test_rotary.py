"""LongRoPE and dynamic NTK: frequencies follow the run, not what else is in a micro-batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.inference.tiny_serving import generate_all, running_engine
from tests.trainer.learning.families import BY_NAME, ORIGINAL
from vf.inference.model import Sampling
from vf.traces.trace import Branch
from vf.trainer.learning.batches.batch import Sample
from vf.trainer.learning.memory.out_of_memory import unpack
from vf.trainer.learning.policy import Policy
from vf.trainer.settings.config import TrainerArgs

NTK = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}
MODELS: dict[str, Any] = {
    "LongRoPE": lambda: BY_NAME["Phi-3, Phi-4 (LongRoPE)"].model(
        original_max_position_embeddings=ORIGINAL
    ),
    "LongRoPE with scales": lambda: BY_NAME["Phi-MoE"].model(),
    "dynamic NTK": lambda: BY_NAME["Llama 3"].model(
        rope_parameters=NTK, max_position_embeddings=ORIGINAL
    ),
}


def samples() -> list[Sample]:
    """Return sequences on both sides of the original length; the first two begin alike."""
    stem = list(range(10, 10 + ORIGINAL - 6))
    made = []
    for length, begin in ((4, stem), (20, stem), (30, stem[5:])):
        branch = Branch()
        branch.add_context(begin, 0)
        branch.add_sampled(list(range(100, 100 + length)), [-5.0] * length, [0] * length, 0)
        made.append(Sample(branch, 1.0))
    return made


def logprobs(policy: Policy, batch: list[Sample]) -> list[float]:
    """Return the mean log-probability of each sample's tokens, from one micro-batch."""
    packed = policy.forward.how == "packed"
    (micro,) = policy.budget.pack(batch, packed=packed, share=True)
    with torch.no_grad(), policy.forward.active():
        found = policy.forward(micro, 1.0).logprobs
    order = [sample.branch.token_ids for sample in unpack(micro)]
    places = [order.index(sample.branch.token_ids) for sample in batch]
    rows = torch.split(found, micro.loss_mask.sum(1).tolist())
    return [float(rows[place].double().mean()) for place in places]


@pytest.mark.parametrize("packing", [True, False])
@pytest.mark.parametrize("name", MODELS)
def test_a_sample_does_not_depend_on_its_neighbours(
    name: str, packing: bool, tmp_path: Path
) -> None:
    model = MODELS[name]()
    model.save_pretrained(tmp_path)
    limits: Any = {"max_seq_len": 60, "max_prompt_len": 30, "micro_batch_tokens": 300}
    policy = Policy(str(tmp_path), TrainerArgs(**limits, use_lora=False, packing=packing))
    assert (policy.forward.how == "packed") == packing
    batch = samples()
    together = logprobs(policy, batch)
    alone = [logprobs(policy, [sample])[0] for sample in batch]
    assert together == pytest.approx(alone, abs=1e-5)
    for sample, found in zip(batch, together, strict=True):
        ids, count = sample.branch.token_ids, sum(sample.branch.loss_mask)
        probed = policy.logprobs(ids[:-count], ids[-count:])
        assert sum(probed) / count == pytest.approx(found, abs=1e-5)


@pytest.mark.parametrize(("max_seq_len", "index"), [(60, 2), (ORIGINAL, 0)])
def test_it_is_transformers_on_the_same_side(max_seq_len: int, index: int, tmp_path: Path) -> None:
    model = MODELS["LongRoPE"]()
    model.save_pretrained(tmp_path)
    limits: Any = {"max_seq_len": max_seq_len, "max_prompt_len": 20}
    policy = Policy(str(tmp_path), TrainerArgs(**limits, use_lora=False))
    ids = samples()[index].branch.token_ids
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, :-1]
    expected = logits.log_softmax(-1).gather(1, torch.tensor(ids[1:])[:, None])[:, 0]
    found = torch.tensor(policy.logprobs(ids[:1], ids[1:]))
    torch.testing.assert_close(found, expected, rtol=0, atol=3e-5)


def test_the_engine_samples_from_the_same(tmp_path: Path) -> None:
    """Requests of different lengths share its passes, and one grows over the original length."""
    model = MODELS["LongRoPE"]()
    model.save_pretrained(tmp_path)
    limits: Any = {"max_seq_len": 60, "max_prompt_len": 30}
    policy = Policy(str(tmp_path), TrainerArgs(**limits, use_lora=False))
    prompts = [list(range(10, 10 + length)) for length in (3, ORIGINAL - 4, ORIGINAL + 6)]
    with running_engine(policy.model, max_seq_len=60) as engine:
        answers = generate_all(engine, [(each, Sampling(12)) for each in prompts], [-1])
        with engine.paused():
            for prompt, answer in zip(prompts, answers, strict=True):
                expected = policy.logprobs(prompt, answer.token_ids)
                assert answer.logprobs == pytest.approx(expected, abs=1e-4)

"""A step that runs out of memory begins again with half the budget; its gradient is the same."""

from __future__ import annotations

import json
import logging
import os
import random
import socket
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from tests.trainer.learning.forked_samples import forked_samples
from tests.trainer.learning.losses.test_losses_update import gradients, shake
from vf.runtime.errors import TrainingError
from vf.traces.trace import Branch
from vf.trainer.learning.batches.batch import Sample
from vf.trainer.learning.batches.normalisation import weighted
from vf.trainer.learning.memory.out_of_memory import Budget, Work, unpack
from vf.trainer.learning.policy import Policy
from vf.trainer.settings.config import TrainerArgs

SIZES: dict[str, Any] = {"max_seq_len": 150, "max_prompt_len": 100, "micro_batch_tokens": 200}
CASES: dict[str, dict[str, Any]] = {
    "packed": {},
    "all weights": {"use_lora": False},
    "padded": {"packing": False},
    "no sharing": {"share_prefixes": False, "loss_normalisation": "sequence"},
    "reference": {"kl_penalty_coef": 0.1, "kl_penalty_type": "advantage"},
}


def make(**args: Any) -> Policy:
    torch.manual_seed(0)
    policy = Policy("tiny", TrainerArgs(**{**SIZES, "max_grad_norm": 1e9, **args}))
    if policy.args.use_lora:
        shake(policy)
    return policy


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """So little work is slower in two threads, and far slower where others use the cores."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


class Shortages:
    """Raises PyTorch's error in the n-th passes of a layer, forward or backward."""

    def __init__(self, policy: Policy, passes: set[int], *, backward: bool) -> None:
        self.passes = passes
        self.seen = 0
        layer = policy.weights.module.model.layers[0]
        if backward:  # the last layer's gradients have been added by then
            layer.register_full_backward_hook(self._fail)
        else:
            layer.register_forward_hook(self._fail)

    def _fail(self, *_: object) -> None:
        self.seen += 1
        if self.seen in self.passes:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1.00 GiB.\nMore.")


def assert_same(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        # Other micro-batches add in another order: a part counted twice is far more than this.
        assert (found[name] - gradient).norm() <= 1e-4 * gradient.norm() + 1e-9, name
        assert (found[name] - gradient).abs().max() <= 1e-4 * gradient.abs().max() + 1e-9, name


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "backward"), [*((case, True) for case in CASES), ("packed", False)]
)
def test_the_gradient_is_that_of_a_step_with_enough_memory(
    case: str, backward: bool, caplog: pytest.LogCaptureFixture
) -> None:
    batch = forked_samples(3, groups=4, rollouts=5)
    expected = gradients(make(**CASES[case]), batch)
    policy = make(**CASES[case])
    shortages = Shortages(policy, {2}, backward=backward)
    stats: list[int] = []
    finish = policy.take_step

    def take_step(learning_rate: float) -> Any:
        done = finish(learning_rate)
        stats.append(done.oom_retries)
        return done

    policy.take_step = take_step  # type: ignore[method-assign]
    with caplog.at_level(logging.WARNING):
        assert_same(gradients(policy, batch), expected)
    assert shortages.seen > 2
    assert stats == [1]
    assert "the step begins again" in caplog.text
    assert "1.00 GiB" in caplog.text
    assert policy.budget.tokens <= 100
    gradients(policy, batch)  # the next step has a try of its own, and the smaller budget
    assert stats == [1, 0]


@pytest.mark.slow
def test_a_step_in_parts_begins_again_with_the_first() -> None:
    parts = [forked_samples(seed, groups=3, rollouts=4) for seed in (1, 2)]
    expected = gradients(make(), parts[0] + parts[1])
    policy = make()
    seen: dict[str, torch.Tensor] = {}
    policy.optimizer.register_step_pre_hook(
        lambda *_: seen.update(
            {n: p.grad.clone() for n, p in policy.model.named_parameters() if p.grad is not None}
        )
    )
    policy.accumulate(parts[0])
    Shortages(policy, {1}, backward=True)  # in the second part
    policy.accumulate(parts[1])
    stats = policy.finish()
    assert_same(seen, expected)
    assert stats.oom_retries == 1


@pytest.mark.slow
@pytest.mark.gate
def test_memory_that_runs_out_twice_in_a_step_ends_the_run_and_names_the_knobs() -> None:
    policy = make()
    Shortages(policy, {1, 2}, backward=False)
    with pytest.raises(TrainingError) as caught:
        policy.update(forked_samples(3, groups=4, rollouts=5))
    for word in ("micro_batch_tokens", "max_seq_len", "gradient_checkpointing", "1.00 GiB"):
        assert word in str(caught.value)


def test_a_sequence_that_is_too_much_alone_is_not_tried_again() -> None:
    policy = make()
    shortages = Shortages(policy, {1}, backward=False)
    with pytest.raises(TrainingError, match="in 1 sequence, which cannot be cut"):
        policy.update(forked_samples(3)[:1])
    assert shortages.seen == 1


def test_other_errors_are_not_taken_for_it() -> None:
    policy = make()

    def fail(*_: object) -> None:
        raise RuntimeError("shapes do not match")

    policy.weights.module.model.layers[0].register_forward_hook(fail)
    with pytest.raises(RuntimeError, match="shapes do not match"):
        policy.update(forked_samples(3))


@pytest.mark.parametrize("packed", [True, False])
def test_work_is_cut_in_order_and_its_reference_with_it(packed: bool) -> None:
    args = TrainerArgs(**SIZES)
    batch = weighted(forked_samples(5, groups=3, rollouts=4), args)
    work = []
    for made in Budget(300).pack(batch, packed=packed, share=True):
        marks = made.input_ids[made.loss_mask].float()  # every reference says which token it is of
        work.append(Work(made, marks, 0.5))
    cut = Budget(90).cut(work, share=True)
    assert len(cut) > len(work)
    assert max(each.batch.computed for each in cut) <= 90
    before = [sample for each in work for sample in unpack(each.batch)]
    assert [sample for each in cut for sample in unpack(each.batch)] == before
    for each in cut:
        assert each.reference is not None
        assert each.reference.tolist() == each.batch.input_ids[each.batch.loss_mask].tolist()
        assert each.mean_gap == 0.5


SHORT_OF_MEMORY = """
import json, resource
from pathlib import Path
import torch
from tests.trainer.learning.losses.test_losses_update import gradients
from tests.trainer.learning.memory.test_out_of_memory import long_samples, make

def size(name):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name)) * 1024

torch.set_num_threads(1)
limits = {"max_seq_len": 260, "max_prompt_len": 100, "use_lora": False}
policy = make(**limits, micro_batch_tokens=16 * 260)
free = size("VmSize")
gradients(policy, long_samples()[:4])
grown = size("VmPeak") - free
policy = make(**limits, micro_batch_tokens=16 * 260)
# Enough for 12 sequences at once: not for all 16, and for half of them.
resource.setrlimit(resource.RLIMIT_AS, (free + 3 * grown, resource.RLIM_INFINITY))
retries = []
finish = policy.take_step
def take_step(learning_rate):
    stats = finish(learning_rate)
    retries.append(stats.oom_retries)
    return stats
policy.take_step = take_step
found = gradients(policy, long_samples())
resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
expected = gradients(make(**limits, micro_batch_tokens=4 * 260), long_samples())
gaps = [float((found[name] - each).norm() / each.norm()) for name, each in expected.items()]
print(json.dumps({"gap": max(gaps), "retries": retries, "budget": policy.budget.tokens}))
"""


def long_samples() -> list[Sample]:
    """Return 16 samples of 260 tokens, which begin differently."""
    rng = random.Random(0)
    made = []
    for _ in range(16):
        branch = Branch()
        branch.add_context([rng.randrange(512) for _ in range(10)], 0)
        ids = [rng.randrange(512) for _ in range(250)]
        branch.add_sampled(ids, [-6.0] * 250, [0] * 250, 0)
        made.append(Sample(branch, rng.uniform(-1, 1)))
    return made


@pytest.mark.skipif(sys.platform != "linux", reason="the address space is limited as on Linux")
@pytest.mark.slow
def test_an_allocation_that_really_fails_is_survived() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SHORT_OF_MEMORY],
        # Freed tensors go back to the system, so that the limit is one of what is in use.
        env={**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_ARENA_MAX": "1"},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert said["retries"] == [1]
    assert said["budget"] == 8 * 260
    assert said["gap"] < 1e-5
    assert "DefaultCPUAllocator" in done.stderr


ONE_OF_TWO = """
import json, sys
import torch
from tests.trainer.learning.forked_samples import forked_samples
from tests.trainer.learning.memory.test_out_of_memory import Shortages, make
from vf.trainer.follower import take_part

torch.set_num_threads(1)
policy = make()
if policy.ranks.rank:
    Shortages(policy, {1}, backward=True)
    take_part(policy)
else:
    batches = [forked_samples(seed, groups=4, rollouts=5) for seed in (3, 4)]
    stats = [policy.update(batch) for batch in batches]
    policy.ranks.stop()
    print(json.dumps([[each.grad_norm, each.oom_retries] for each in stats]))
"""


@pytest.mark.slow
def test_one_of_two_processes_tries_again_and_the_other_waits_for_it() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    meeting = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", ONE_OF_TWO],
            env={**os.environ, **meeting, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    (said, errors), (_, warned) = [process.communicate(timeout=200) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], errors + warned
    assert "the step begins again" in warned
    alone = make()
    batches = [forked_samples(seed, groups=4, rollouts=5) for seed in (3, 4)]
    expected = [
        [alone.update(batch).grad_norm, tries] for batch, tries in zip(batches, (1, 0), strict=True)
    ]
    for found, each in zip(json.loads(said), expected, strict=True):
        assert found == pytest.approx(each, rel=1e-3)

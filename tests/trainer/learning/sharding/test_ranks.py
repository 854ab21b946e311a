"""Several trainer processes take the steps that one would take."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig

from tests.trainer.learning.sharding.rank_updates import samples, settings, updates
from tests.trainer.saving.comparing import stored
from vf.trainer.learning.batches.packing import balance
from vf.trainer.learning.policy import Policy
from vf.trainer.saving.checkpoint import load_checkpoint

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).with_name("rank_updates.py")


CONFIGS = Path(__file__).parents[4] / "configs" / "accelerate"
LAUNCHERS = ["torchrun", "fsdp2", "zero1", "zero2", "zero3"]
HELD = {"fsdp2": ["fsdp2"], "zero3": ["zero3"]}  # by the process's parameters, else whole
# A stage of ZeRO and a way of training need not all meet: VF_EVERY_ZERO=1 lets them.
ZERO = {("zero2", "all weights"), ("zero3", "lora")}


def accelerate_config(launcher: str, folder: Path) -> Path:
    """Return the repository's example, or one for a stage that it is not for."""
    examples = {"fsdp2": "fsdp2.yaml", "zero2": "deepspeed.yaml"}
    if launcher in examples:
        return CONFIGS / examples[launcher]
    # By default small parameters, which are all of the tiny model's, are not spread.
    stage = {"stage": int(launcher[-1]), "stage3_param_persistence_threshold": 0}
    (folder / "zero.json").write_text(json.dumps({"zero_optimization": stage}))
    file = folder / "accelerate.yaml"
    file.write_text(
        "distributed_type: DEEPSPEED\nnum_processes: 2\n"
        f"deepspeed_config: {{deepspeed_config_file: {folder / 'zero.json'}}}\n"
    )
    return file


def launcher_command(launcher: str, folder: Path) -> list[str]:
    if launcher == "torchrun":
        return ["torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    file = accelerate_config(launcher, folder)
    return [
        *("accelerate.commands.launch", "--config_file", str(file), "--main_process_port", "0"),
    ]


def run_in_two_processes(launcher: str, how: str, path: Path) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", *launcher_command(launcher, path.parent), str(SCRIPT), how, path],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = torch.load(path)
    return found


@pytest.fixture(scope="module", params=["lora", "all weights"])
def alone(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, dict[str, Any]]:
    """What one process makes of it."""
    folder = tmp_path_factory.mktemp("alone")
    found = updates(settings(request.param == "lora"), folder)
    return request.param, {**found, "stored": stored(folder / "step-6")}


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_two_processes_take_the_same_steps_as_one(
    launcher: str, alone: tuple[str, dict[str, Any]], tmp_path: Path
) -> None:
    how, expected = alone
    if launcher.startswith("zero"):
        pytest.importorskip("deepspeed")
        if (launcher, how) not in ZERO and "VF_EVERY_ZERO" not in os.environ:
            pytest.skip("with VF_EVERY_ZERO only")
    got = run_in_two_processes(launcher, how, tmp_path / "two.pt")
    assert (expected["ranks"], got["ranks"]) == (1, 2)
    assert got["held"] == HELD.get(launcher, ["whole"])
    assert got["learning_rate"] == expected["learning_rate"]
    for theirs, ours in zip(expected["stats"], got["stats"], strict=True):
        assert ours == pytest.approx(theirs, rel=1e-3, abs=1e-6)
    for read in ("parameters", "published"):
        assert got[read].keys() == expected[read].keys()
        for name, parameter in expected[read].items():
            # Adam divides by the gradient's size, so where that is tiny its rounding shows: as far
            # less than one step of 1e-3.
            torch.testing.assert_close(got[read][name], parameter, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(got["logprobs"], expected["logprobs"], rtol=1e-4, atol=1e-4)
    both = stored(tmp_path / "step-6")
    assert both.keys() == expected["stored"].keys()
    for name, value in expected["stored"].items():
        atol = 1e-6 if name.startswith("optimizer/") else 1e-5
        torch.testing.assert_close(both[name], value, rtol=1e-3, atol=atol)
    parts = [file.stat().st_size for file in (tmp_path / "step-6" / "state").glob("*.distcp")]
    assert len(parts) == 2
    assert max(parts) < 0.6 * sum(parts), "each process wrote its share, and nothing twice"

    # One process continues where they were.
    policy = Policy("tiny", settings(how == "lora", seed=7).args)
    load_checkpoint(tmp_path / "step-7", policy)
    again = asdict(policy.update(samples(5, 7)))
    assert again == pytest.approx(got["stats"][-1], rel=1e-3, abs=1e-6)
    for name, parameter in policy.weights.trainable_state().items():
        torch.testing.assert_close(parameter, got["parameters"][name], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("how", ["all weights bf16", "lora bf16"])
def test_sharded_bf16_takes_the_steps_of_one_process(how: str, tmp_path: Path) -> None:
    """The shards are float32, as the masters are; only the order of additions differs.

    What that changes in bfloat16 depends on the processor, and grows with each step: so only the
    first gradient is compared, and in the end where the weights came to.
    """
    (tmp_path / "one").mkdir()
    expected = updates(settings(how.startswith("lora"), bf16=True), tmp_path / "one")
    got = run_in_two_processes("fsdp2", how, tmp_path / "two.pt")
    assert got["held"] == ["fsdp2"]
    theirs, ours = expected["stats"][0], got["stats"][0]
    assert ours["grad_norm"] == pytest.approx(theirs["grad_norm"], rel=0.01)
    assert ours["loss"] == pytest.approx(theirs["loss"], rel=0.01, abs=1e-4)
    for read, dtype in (("parameters", torch.float32), ("published", torch.bfloat16)):
        trained = [name for name, each in expected[read].items() if each.dtype == dtype]
        assert trained
        assert {got[read][name].dtype for name in trained} == {dtype}
        flat = [
            torch.cat([run[read][n].float().flatten() for n in trained]) for run in (expected, got)
        ]
        # A step of Adam is 1e-3, and the sign of a gradient near 0 is a matter of rounding: on
        # processors without bfloat16 the weights differ by 3e-5 in the end.
        assert float((flat[0] - flat[1]).abs().mean()) < 1e-4
    saved = AutoConfig.from_pretrained(tmp_path / "step-7" / "model") if "all" in how else None
    assert saved is None or saved.dtype == torch.bfloat16
    policy = Policy("tiny", settings(how.startswith("lora"), 7, bf16=True).args)
    load_checkpoint(tmp_path / "step-7", policy)
    again = policy.update(samples(5, 7))
    assert again.grad_norm == pytest.approx(got["stats"][-1]["grad_norm"], rel=0.02)


LEADER = """
from tests.trainer.learning.sharding.rank_updates import samples, settings
from vf.runtime.errors import VfError
from vf.trainer.learning.policy import Policy
try:
    policy = Policy("tiny", settings(True).args)
    policy.update(samples(0, 8))
except VfError as error:
    print(error)
else:
    policy.ranks.stop()
"""
DESERTER = """
import os
from tests.trainer.learning.sharding.rank_updates import settings
from vf.trainer.learning.policy import Policy
Policy("tiny", settings(True).args).ranks.listen()
os._exit(9)  # in the middle of the update
"""
FORGETFUL = """
from dataclasses import replace
from tests.trainer.learning.sharding.rank_updates import settings
from vf.trainer.learning.policy import Policy
policy = Policy("tiny", settings(True).args)
given = policy.ranks.listen()
assert len(given.batches) > 1
policy.add_gradient(replace(given, batches=given.batches[1:]))
policy.take_step(policy.ranks.listen().learning_rate)
"""
STRANGER = """
from tests.trainer.learning.sharding.rank_updates import settings
from vf.trainer.learning.model import building
from vf.trainer.learning.policy import Policy
load = building.load_module
def fine_tuned(*args):
    model = load(*args)
    model.lm_head.weight.data[0, 0] += 1.0
    return model
building.load_module = fine_tuned
Policy("tiny", settings(True).args)
"""


def lead(follower: str) -> tuple[str, int]:
    """Return what rank 0 says of a follower, and how that ends."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", code],
            env={
                **os.environ,
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": "2",
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": port,
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        for rank, code in enumerate((LEADER, follower))
    ]
    ended = processes[1].wait(120)
    said, _ = processes[0].communicate(timeout=60)
    assert processes[0].returncode == 0
    return said, ended


def test_a_rank_that_dies_in_an_update_is_an_error_in_the_others_at_once() -> None:
    said, ended = lead(DESERTER)
    assert "a trainer process is gone or hangs" in said
    assert ended == 9


def test_a_rank_that_computes_another_batch_is_an_error() -> None:
    said, ended = lead(FORGETFUL)
    assert "the trainer processes disagree on a batch: of its" in said
    assert ended == 1


def test_a_rank_with_another_model_is_an_error() -> None:
    said, ended = lead(STRANGER)
    assert "trainer process 1 has another model than process 0" in said
    assert ended == 1


@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
def test_shares_hold_every_sample_once_and_are_nearly_equal(ranks: int) -> None:
    batch = samples(0, 40)
    shares = balance(batch, [0] * ranks)
    assert len(shares) == ranks
    assert sorted(id(sample) for share in shares for sample in share) == sorted(map(id, batch))
    tokens = [sum(map(len, share)) for share in shares]
    assert max(tokens) < 1.1 * sum(tokens) / ranks


def test_more_ranks_than_samples_leave_some_without() -> None:
    assert sorted(len(share) for share in balance(samples(0, 2), [0] * 4)) == [0, 0, 1, 1]

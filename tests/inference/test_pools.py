"""The threads that share out an operation do not outlive the turn of who asked for them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import os, sys, threading
from pathlib import Path
import torch
from vf.inference.embedded import embedded_engine, pools, scheduler
from vf.inference.model import Sampling
from tests.inference.tiny_serving import generate_all, load_model

scheduler.SMALL = 0.0  # each pass takes all threads
torch.set_num_threads(3)

def compute():
    torch.ones(2**22).exp_()

def others():
    return len(os.listdir("/proc/self/task")) - threading.active_count()

load = pools.LOAD = Path(sys.argv[1])
load.write_text("0.20 1.00 3.00 1/455 12345")
idle = others()
compute()
assert others() == idle + 2
engine = embedded_engine.EmbeddedEngine(load_model(), max_seq_len=128, max_requests=2)
engine.start()
assert others() == idle
generate_all(engine, [([1, 40, 41], Sampling(4, seed=0))], [-1])
with engine.paused():
    assert others() == idle
    compute()
    assert others() == idle + 2
assert others() == idle
for busy in ("99.00 1.00 1.00 1/455 12345", "0.20 1.00 1.00 4/455 12345"):
    load.write_text(busy)  # other programs want the cores: since a minute, and from now on
    with engine.paused():
        compute()
    assert others() == idle + 2
engine.stop()
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="GNU's OpenMP, and /proc")
def test_who_is_done_lets_the_pool_of_threads_go(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "loadavg")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr

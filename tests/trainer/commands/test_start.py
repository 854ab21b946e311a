"""What a command loads and starts before its first rollout: only what it needs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

pytestmark = pytest.mark.slow

# transformers itself loads torch._dynamo, torch.distributed.tensor, sympy and accelerate.
UNUSED = (
    *("aiohttp", "anthropic", "datasets", "docker", "matplotlib", "openai", "pandas", "pyarrow"),
    *("ray", "scipy", "sklearn", "torchvision", "trl", "vllm", "wandb", "websockets"),
    "vf.inference.endpoint.session",
)
VLLM = "vf.inference.vllm.vllm_engine"
SMALL = ["--set", "max_steps=1", "--set", "batch_size=8", "--set", "eval_examples=2"]
CODE = """
import sys
from vf.environments.bundled.calculator import Calculator
from vf.trainer.commands.main import main
unused, argv = sys.argv[1].split(), sys.argv[2:]
needless, started = [], []
def note(event, args):
    if event == "subprocess.Popen" and args[0] == sys.executable:
        started.append(str(args[1]))
sys.addaudithook(note)
def step(self, reply, step=Calculator.step):  # a rollout's; `reset` is called by checks, too
    needless.append([name for name in unused if name in sys.modules] + started)
    return step(self, reply)
Calculator.step = step
code = main(argv)
print(needless[0], file=sys.stderr)
sys.exit(code)
"""


@pytest.mark.parametrize(
    ("argv", "unused"),
    [
        (["eval", "calculator", "-m", "tiny", "-n", "1"], [*UNUSED, "peft", VLLM]),
        (["quickstart.toml", *SMALL], [*UNUSED, "httpx", "vf.viewer"]),
    ],
)
def test_a_rollout_begins_without_what_it_does_not_need(
    argv: list[str], unused: list[str], tmp_path: Path
) -> None:
    config = Path(__file__).parents[3] / "configs" / "quickstart.toml"
    (tmp_path / "quickstart.toml").write_text(config.read_text(encoding="utf-8"))
    command = [sys.executable, "-c", CODE, " ".join(unused), *argv]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[-1] == "[]"

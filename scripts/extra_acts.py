"""What `scripts/bare_user.py` types: what each extra is for, and what fails without it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Act:
    """Something that an extra makes possible: a command or a Python program.

    Attributes:
        what: What it is.
        line: The command; {api} stands for the address of a server that answers.
        program: The program, if it is not a command.
        page: The page of the docs whose first Python block is the program.
        code: The exit code.
        says: What the output must contain.
    """

    what: str
    line: str = ""
    program: str = ""
    page: str = ""
    code: int = 0
    says: str = ""


def evaluation(id: str) -> Act:
    """Return the evaluation of an environment against the API."""
    return Act(f"vf-rl eval {id}", line=f"vf-rl eval {id} -m any -b {{api}} -n 1", says="reward")


RUBRICS = """
import asyncio, vf
rubric = vf.Rubric(outcome=vf.outcomes.math_equal())
class Half(vf.Environment):
    rubric = rubric
    def tasks(self, split):
        return [vf.Task("half", "What is 2/4?", answer="1/2")]
env = Half()
trace = asyncio.run(vf.rollout(env, env.tasks("eval")[0], vf.ScriptedModel([r"\\boxed{0.5}"])))
assert trace.reward == 1.0, trace
Half.rubric = vf.Rubric(outcome=vf.outcomes.json_schema({"type": "object", "required": ["a"]}))
env = Half()
trace = asyncio.run(vf.rollout(env, env.tasks("eval")[0], vf.ScriptedModel(['{"a": 1}'])))
assert trace.reward == 1.0, trace
"""
COMPOSE = """
from pathlib import Path
import vf
Path("compose.yaml").write_text("services:\\n  main:\\n    image: python:3.12\\n")
vf.sandbox_source({"compose": "compose.yaml"})
"""
DATA = """
import pyarrow, pyarrow.parquet, datasets, vf
rows = {"prompt": [f"{n} + 1?" for n in range(50)], "answer": [str(n + 1) for n in range(50)]}
pyarrow.parquet.write_table(pyarrow.table(rows), "rows.parquet")
assert list(vf.tasks_from("rows.parquet", "train"))
"""
TRACKERS = """
from vf.trainer.watching.trackers import check_trackers
check_trackers(["tensorboard", "trackio", "wandb"])
import tensorboard, trackio, wandb
"""
RAY = """
from vf.cluster.ray_cluster import load_ray
load_ray()
"""
TINKER = """
from vf.inference.tinker_wire import load_sdk
assert load_sdk().SamplingParams(max_tokens=1).max_tokens == 1
"""
TRL = """
import vf
vf.to_trl(vf.make("calculator"))
"""
VERIFIERS = """
import vf
vf.to_verifiers()
"""
SERVER = """
import asyncio
from vf.runtime.errors import ToolFailure
from vf.tools.search.elastic import ElasticIndex
index = ElasticIndex("http://127.0.0.1:1", "passages", client="{name}", max_retries=0)
try:
    asyncio.run(index.search("capital", 1))
except ToolFailure as error:
    print(error)
"""

ACTS = {
    "rubrics": [Act("math_equal and json_schema", program=RUBRICS)],
    "sandbox": [
        Act("a Compose file", program=COMPOSE),
        Act("vf-rl sandbox doctor", line="vf-rl sandbox doctor", code=2, says="nonexistent.sock"),
        Act(
            "vf-rl eval math-python",
            line="vf-rl eval math-python -m any -b {api} -n 1",
            code=2,
            says="nonexistent.sock",
        ),
    ],
    "search": [
        Act("vf-rl search build", line="vf-rl search build texts.jsonl -o index"),
        Act("vf-rl search query", line="vf-rl search query index capital", says="oslo"),
        evaluation("geo-qa"),
    ],
    "data": [
        Act("tasks from Parquet", program=DATA),
        Act(
            "vf-rl view --export traces.parquet",
            line="vf-rl view ../work/file --export traces.parquet",
        ),
    ],
    "gym": [
        Act("docs/gymnasium.md", page="docs/gymnasium.md"),
        evaluation("gym:FrozenLake-v1"),
    ],
    "images": [Act("docs/images.md", page="docs/images.md")],
    "mcp": [Act("docs/mcp.md", page="docs/mcp.md")],
    "elasticsearch": [
        Act("a search", program=SERVER.format(name="elasticsearch"), says="127.0.0.1:1")
    ],
    "opensearch": [Act("a search", program=SERVER.format(name="opensearch"), says="127.0.0.1:1")],
    "reasoning-gym": [evaluation("reasoning-gym:gcd")],
    "textarena": [evaluation("textarena:TicTacToe-v0")],
    "pettingzoo": [evaluation("pettingzoo:classic/tictactoe_v3")],
    "openenv": [
        Act(
            "vf-rl eval openenv:URL",
            line="vf-rl eval openenv:http://127.0.0.1:1 -m any -b {api} -n 1",
            code=2,
            says="http://127.0.0.1:1",
        )
    ],
    "track": [Act("the trackers", program=TRACKERS)],
    "ray": [Act("Ray", program=RAY)],
    "verifiers": [Act("vf.to_verifiers", program=VERIFIERS)],
    "tinker": [Act("the SDK of the Tinker API", program=TINKER)],
    "trl": [Act("vf.to_trl", program=TRL)],
    "train": [
        Act("vf-rl run.toml", line="vf-rl run.toml --set max_steps=1", says="report"),
        Act("vf-rl export", line="vf-rl export runs/run-1"),
        Act("vf-rl eval -m tiny", line="vf-rl eval calculator -m tiny -n 2", says="reward"),
        Act("vf-rl check-template", line="vf-rl check-template tiny"),
        Act("vf-rl mismatch", line="vf-rl mismatch run.toml"),
        Act("vf-rl cluster", line="vf-rl cluster slurm run.toml"),
        Act("vf-rl doctor", line="vf-rl doctor run.toml"),
    ],
}
# Installed in a few seconds each, so they are tried unless `--extras` says otherwise.
LIGHT = ("rubrics", "sandbox", "search", "data", "gym", "mcp")
# Not tried here: for our own work, or in need of a GPU or of a very large package.
UNTRIED = ("vllm", "deepspeed", "quantized", "docs", "test", "dev")

# By the extra that the answer must name: what is typed. {api} is a server that answers.
WANTS = {
    "train": [
        "vf-rl run.toml",
        "vf-rl run.toml --dry-run",
        "vf-rl eval calculator -m tiny -n 1",
        "vf-rl serve tiny",
        "vf-rl mismatch run.toml",
        "vf-rl cluster slurm run.toml",
        "vf-rl cluster kuberay run.toml",
        "vf-rl check-template tiny",
        "vf-rl doctor run.toml --gpu-memory 24",
    ],
    "train,trl": ["vf-rl sft sft.toml"],
    "sandbox": [
        "vf-rl sandbox build",
        "vf-rl sandbox doctor",
        "vf-rl sandbox ps",
        "vf-rl sandbox reap",
        "vf-rl sandbox self-check",
        *(
            f"vf-rl eval {name} -m any -b {{api}} -n 1"
            for name in ("code-contest", "math-python", "repo-fix", "terminal-tasks")
        ),
    ],
    "images": ["vf-rl eval read-picture -m any -b {api} -n 1"],
    "search": [
        "vf-rl search build texts.jsonl -o index",
        "vf-rl eval geo-qa -m any -b {api} -n 1",
    ],
    "gym": ["vf-rl eval gym:FrozenLake-v1 -m any -b {api} -n 1"],
    "openenv": ["vf-rl eval openenv:http://127.0.0.1:1 -m any -b {api} -n 1"],
    "pettingzoo": ["vf-rl eval pettingzoo:classic/tictactoe_v3 -m any -b {api} -n 1"],
    "reasoning-gym": ["vf-rl eval reasoning-gym:gcd -m any -b {api} -n 1"],
    "textarena": ["vf-rl eval textarena:TicTacToe-v0 -m any -b {api} -n 1"],
    "verifiers": ["vf-rl eval verifiers:theirs -m any -b {api} -n 1"],
}
# Environments that have to be told something first: their answer is one line that says what.
ASK_FIRST = {
    "gym",
    "harbor",
    "openenv",
    "pettingzoo",
    "program",
    "reasoning-gym",
    "swe",
    "textarena",
    "verifiers",
    "wiki-qa",
}

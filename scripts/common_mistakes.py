"""Mistakes that newcomers make, and what `first_night.py` expects the answers to say."""

from __future__ import annotations

from typing import Any

TOOL = (
    """import vf

class Shop(vf.Environment):
    rubric = {rubric}

    def tasks(self, split):
        return [vf.Task(f"{{split}}-{{n}}", "How many?", answer=n) for n in range(4)]

    def reset(self, task):
        {reset}

    @vf.tool
    def count(self) -> {returns}:
        """
    + '"""Count them."""'
    + """
        return {count}
"""
)
RESET = "return self.first_messages(task)"


def shop(
    rubric: str = "vf.Rubric(outcome=vf.outcomes.numeric())",
    reset: str = RESET,
    returns: str = "int",
    count: str = "3",
) -> str:
    return TOOL.format(rubric=rubric, reset=reset, returns=returns, count=count)


MISTAKEN_FILES = {
    "wrong_table.toml": 'model = "tiny"\nenv.id = "calculator"\n[trainer]\nmax_steps = 2\n',
    "for_vllm.toml": 'model = "tiny"\nenv.id = "calculator"\n'
    '[inference]\nengine = "vllm"\nsleep = false\n'
    "[trainer.args]\nmax_steps = 1\nmax_prompt_len = 256\nmax_seq_len = 512\n",
    "torn.toml": "model = \n",
    "list_rubric.py": shop(rubric="[vf.outcomes.numeric()]"),
    "no_return.py": "def right(trace):\n    trace.reply == trace.task.answer\n\n"
    + shop(rubric="vf.Rubric(outcome=right)"),
    "image.py": shop(reset='return [vf.Message("user", [{"type": "image_url"}])]'),
    "torn.py": "class Shop(\n",
    "chat.jsonl": '{"messages": [{"role": "user", "content": "Hi."}]}\n',
}
# Each with its exit code and what the answer must say.
MISTAKES: list[tuple[Any, ...]] = [
    ("vf-rl run.toml --set max_step=3", 2, "max_steps"),
    ("vf-rl run.toml --set lerning_rate=1e-3", 2, "learning_rate"),
    ("vf-rl wrong_table.toml", 2, "max_steps", "[trainer.args]"),
    ("vf-rl torn.toml", 2, "torn.toml", "line 1"),
    ("vf-rl no-such.toml", 2, "no-such.toml"),
    ("vf-rl evaluate", 2, "eval"),
    ("vf-rl run.toml --dry-run --set loss_fn=grpo", 2, "loss_fn", "advantage"),
    ("vf-rl run.toml --dry-run --set trainer.gpus=[1]", 2, "trainer.gpus"),
    ("vf-rl for_vllm.toml --dry-run --set inference.gpus=[1]", 2, "inference.gpus"),
    ("vf-rl for_vllm.toml --dry-run --set inference.engine=embedded", 0, "inference.sleep"),
    ("vf-rl run.toml --dry-run --set model=./no-such-folder", 2, "no-such-folder"),
    ("vf-rl run.toml --dry-run --set model=Qwen/Qwen3-0.6B", 2, "Qwen/Qwen3-0.6B"),
    ("vf-rl run.toml --dry-run --set env.id=calculater", 2, "calculator"),
    ("vf-rl run.toml --dry-run --set env.args.most=3", 2, "max_operand"),
    ("vf-rl --resume runs/no-such-run", 2, "no-such-run"),
    ("vf-rl eval calculater", 2, "calculator"),
    ("vf-rl eval ./no_such.py", 2, "no_such.py"),
    ("vf-rl eval ./torn.py", 2, "torn.py", "line 1"),
    ("vf-rl eval calculator --rollouts 3", 2, "--rollouts-per-example"),
    ("vf-rl eval calculator -m x -b http://127.0.0.1:9/v1", 2, "http://127.0.0.1:9/v1"),
    ("vf-rl eval ./list_rubric.py -n 1", 2, "vf.WeightedSum"),
    ("vf-rl eval ./no_return.py -n 1 --max-tokens 8", 1, "None"),
    ("vf-rl eval ./image.py -n 1 --max-tokens 8", 2, "data URL"),
    ("vf-rl eval --rescore chat.jsonl --rubric calculator", 2, "chat.jsonl"),
]

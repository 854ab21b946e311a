"""Word and number problems that want a computer: worked out with the Python tool."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from vf.environments.bundled.calculator import answered, correct
from vf.environments.bundled.math_templates import TEMPLATES
from vf.environments.environment import Environment, Split, Step
from vf.environments.generated import distinct_tasks, split_sizes
from vf.inference.models.scripted_model import Script
from vf.rubrics.penalties import code_timeouts, extra_tool_calls, tool_errors
from vf.rubrics.rubric import Rubric
from vf.runtime.errors import ConfigError, did_you_mean
from vf.sandbox.hosting.source import Sandboxes, sandbox_source
from vf.tools.episode_sandbox import EpisodeSandbox
from vf.tools.sandbox_tools import PythonTool
from vf.traces.messages import Message
from vf.traces.task import Task


class MathPython(Environment):
    """Problems with one whole number as the answer, too long for mental arithmetic.

    The model has the ``python`` tool, whose variables live as long as the episode, and ends with
    ``Answer: `` and the number. Reward: the answer is right, less a share for many calls, calls
    gone wrong and code that hangs.

    Args:
        sandbox: The sandboxes for code; see :func:`~vf.sandbox.hosting.source.sandbox_source`.
        templates: The kinds of problems to draw from; all by default.
        num_train: Tasks in the train split.
        num_eval: Tasks in the eval split; no problem is in both.
        free_calls: Tool calls that cost nothing.
        python_timeout: Seconds for one tool call, at most 15.
        seed: Seed of the tasks.

    Raises:
        ConfigError: If an argument is out of range, a template is unknown, or ``sandbox`` names no
            sandbox.
    """

    system_prompt = (
        "Work out the problem with the python tool. End with 'Answer: ' and the number, "
        "a whole one without separators."
    )
    max_turns = 6
    tool_timeout = 60.0
    timeout = 600.0

    def __init__(
        self,
        sandbox: Sandboxes = "auto",
        templates: Sequence[str] | None = None,
        num_train: int = 2000,
        num_eval: int = 200,
        free_calls: int = 2,
        python_timeout: float = 10.0,
        seed: int = 0,
    ) -> None:
        if isinstance(templates, str) or (templates is not None and not templates):
            raise ConfigError(f"math-python: templates must be a list of names, got {templates!r}")
        for name in templates or ():
            if name not in TEMPLATES:
                raise ConfigError(
                    f"math-python: there is no template {name!r}.{did_you_mean(name, TEMPLATES)} "
                    f"Known: {', '.join(TEMPLATES)}"
                )
        if free_calls < 0:
            raise ConfigError(f"math-python: free_calls must not be negative, got {free_calls}")
        if not 0 < python_timeout <= 15:
            raise ConfigError(
                f"math-python: python_timeout must be above 0 and at most 15, got {python_timeout}"
            )
        self.source = sandbox_source(sandbox)
        self.templates = list(templates or TEMPLATES)
        self.sizes = split_sizes("math-python", num_train, num_eval)
        self.seed = seed
        self.tools = [PythonTool(self.source, timeout=python_timeout)]
        self.rubric = Rubric(
            outcome=correct,
            penalties=[
                extra_tool_calls(0.2, free=free_calls),
                tool_errors(0.1),
                code_timeouts(0.2),
            ],
            metrics=[answered],
        )

    def tasks(self, split: Split) -> Iterator[Task]:
        """Yield distinct problems; which split a problem is in never changes."""
        return distinct_tasks(
            "math-python", self._draw, split=split, count=self.sizes[split], seed=self.seed
        )

    def oracle(self, task: Task) -> Script:
        """Let the tool print the answer, and say it."""
        return [{"python": {"code": f"print({task.answer})"}}, f"Answer: {task.answer}"]

    async def step(self, reply: Message) -> Step:
        """Run the reply's tool calls; without any, the episode has terminated."""
        step = await self.run_tools(reply)
        step.info["code_timeouts"] = EpisodeSandbox.of(self, self.source).timeouts
        return step

    def _draw(self, rng: random.Random) -> Task:
        template = TEMPLATES[rng.choice(self.templates)]
        numbers = template.draw(rng)
        listed = ", ".join(f"{name}={value}" for name, value in numbers.items())
        return Task(
            id=f"{template.name}({listed})",
            prompt=template.text.format(**numbers),
            answer=template.solve(**numbers),
            info={"template": template.name, "numbers": numbers},
        )

"""Environments with one fault each, for validation to find."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import vf
from vf.environments.environment import Split
from vf.inference.models.scripted_model import Script
from vf.rubrics.outcomes import exact, marked, multiple_choice, numeric


class Sums(vf.Environment):
    """Add two numbers: without a fault, as long as nobody changes it.

    Args:
        outcome: How an answer is scored.
        prompt: What the task says; may hold ``{a}``, ``{b}`` and ``{answer}``.
    """

    max_turns = 3

    def __init__(
        self,
        outcome: Callable[[vf.Trace], float] | None = None,
        prompt: str = "Add {a} and {b}. End with 'Answer: ' and the sum.",
        **rubric: Any,
    ) -> None:
        self.prompt = prompt
        right = numeric(extract=marked("Answer:"))
        self.rubric = vf.Rubric(outcome=outcome or right, **rubric)

    def tasks(self, split: Split) -> Iterator[vf.Task]:
        rng = random.Random(split)
        for index in range(40):
            a, b = rng.randint(100, 999), rng.randint(1000, 9999)
            yield vf.Task(
                f"{split}-{index}", self.prompt.format(a=a, b=b, answer=a + b), answer=a + b
            )

    def oracle(self, task: vf.Task) -> Script | None:
        return [f"Answer: {task.answer}"]


def paying(*paid: Callable[[vf.Trace], bool]) -> Sums:
    """Return sums that also pay something else than the right answer."""
    right = numeric(extract=marked("Answer:"))

    def outcome(trace: vf.Trace) -> float:
        return max(right(trace), float(any(condition(trace) for condition in paid)))

    return Sums(outcome)


def contains(*texts: str) -> Sums:
    """Return sums that pay for texts in the last message."""
    return paying(lambda trace: all(text in trace.reply for text in texts))


class Choices(Sums):
    """Pick the sum out of four: a guess is worth a quarter, and that is no fault."""

    max_turns = 1

    def __init__(self) -> None:
        super().__init__(multiple_choice("ABCD"))

    def tasks(self, split: Split) -> Iterator[vf.Task]:
        rng = random.Random(split)
        for index in range(100):
            a, b, right = rng.randint(1, 999), rng.randint(1, 999), rng.randrange(4)
            sums = [a + b + place - right for place in range(4)]
            listed = " ".join(f"{c}) {v}" for c, v in zip("ABCD", sums, strict=True))
            prompt = f"What is {a} + {b}? {listed}. End with 'Answer: ' and the letter."
            yield vf.Task(f"{split}-{index}", prompt, answer="ABCD"[right])


class YesOrNo(Sums):
    """Say whether a sum is even: a guess is worth a half, and that is no fault."""

    max_turns = 1

    def __init__(self) -> None:
        super().__init__(exact(ignore_case=True, extract=marked("Answer:")))

    def tasks(self, split: Split) -> Iterator[vf.Task]:
        rng = random.Random(split)
        for index in range(100):
            a, b = rng.randint(1, 9999), rng.randint(1, 9999)
            answer = "no" if (a + b) % 2 else "yes"
            yield vf.Task(
                f"{split}-{index}", f"Is {a} + {b} even? Say 'Answer: yes' or 'Answer: no'.", answer
            )


class SumsWithTool(Sums):
    """Sums with a tool."""

    @vf.tool
    def add(self, a: int, b: int) -> int:
        """Add two numbers.

        Args:
            a: The first.
            b: The second.
        """
        return a + b


class Undescribed(Sums):
    """A tool that nobody has described."""

    @vf.tool
    def add(self, a: int, b: int) -> int:
        return a + b


class UndescribedInReset(Sums):
    """A tool that only episodes have, and that nobody has described."""

    def reset(self, task: vf.Task) -> list[vf.Message]:
        def add(a: int, b: int) -> int:
            return a + b

        self.tools = [add]
        return self.first_messages(task)


class Unseeded(Sums):
    """What the environment says depends on the global generator."""

    def reset(self, task: vf.Task) -> str:
        return f"{task.prompt} Think of {random.random()} first."


class RewardsByChance(Sums):
    """What it pays depends on the global generator."""

    def __init__(self) -> None:
        super().__init__(lambda trace: random.random())


class OtherTasks(Sums):
    """The tasks change with every listing."""

    def tasks(self, split: Split) -> Iterator[vf.Task]:
        for index in range(20):
            a = random.randint(1, 10**9)
            yield vf.Task(f"{index}", f"Add {a} and 1.", answer=a + 1)


class SharedTasks(Sums):
    """The eval split is the train split."""

    def tasks(self, split: Split) -> Iterator[vf.Task]:
        return super().tasks("train")


class NotJson(Sums):
    """What a task holds cannot be written to a file."""

    def tasks(self, split: Split) -> Iterator[vf.Task]:
        for task in super().tasks(split):
            task.info = {"numbers": {1, 2}}
            yield task


class Talkative(Sums):
    """A wrong answer gets the right one, and another try."""

    def reset(self, task: vf.Task) -> str:
        self.sum = task.answer
        return str(task.prompt)

    def step(self, reply: vf.Message) -> vf.Step:
        if reply.content == f"Answer: {self.sum}":
            return vf.Step(terminated=True)
        return vf.Step(f"Wrong: it is {self.sum} that I wanted.")


class Brittle(Sums):
    """Falls over what a model may well say."""

    def step(self, reply: vf.Message) -> vf.Step:
        int(re.findall(r"\d+", reply.content)[0])
        return vf.Step(terminated=True)


class Repository(Sums):
    """Repair a file until its tests pass; the tests lie where the model can write.

    The repository is in memory, so nothing of it runs on this machine. With ``checked``, the
    tests that count are those of the environment.
    """

    max_turns = 3

    def __init__(self, checked: bool = False) -> None:
        super().__init__(lambda trace: float(trace.info.get("passed", False)))
        self.checked = checked

    def tasks(self, split: Split) -> Iterator[vf.Task]:
        first = 0 if split == "eval" else 100
        for index in range(first, first + 20):
            yield vf.Task(f"{split}-{index}", f"Repair value.py: it must set x to {index}.")

    def reset(self, task: vf.Task) -> str:
        self.wanted = f"assert x == {task.id.rpartition('-')[2]}\n"
        self.files = {"value.py": "x = None\n", "tests/test_all.py": self.wanted}
        return str(task.prompt)

    @vf.tool
    def write_file(self, path: str, content: str) -> str:
        """Write a file.

        Args:
            path: Where.
            content: What.
        """
        self.files[path] = content
        return "written"

    async def step(self, reply: vf.Message) -> vf.Step:
        step = await self.run_tools(reply)
        if step.terminated:
            tests = self.wanted if self.checked else self.files["tests/test_all.py"]
            right = f"x = {self.wanted.split()[-1]}\n"
            asserts = tests == self.wanted  # and nothing else looks at x
            step.info["passed"] = not asserts or self.files["value.py"] == right
        return step

    def oracle(self, task: vf.Task) -> Script | None:
        value = f"x = {task.id.rpartition('-')[2]}\n"
        return [{"write_file": {"path": "value.py", "content": value}}, "Done."]


class RunsTheAnswer(Sums):
    """Runs the last code block and a test after it in a container, and believes the exit code.

    With ``here``, what runs sees that container as this machine: the trap of the validation is
    in it, and the sign that code leaves there comes here.
    """

    max_turns = 1

    def __init__(self, container: vf.Sandbox, here: bool = False) -> None:
        super().__init__()
        self.rubric = vf.Rubric(self.exit_code)
        self.container, self.here = container, here

    def tasks(self, split: Split) -> Iterator[vf.Task]:
        first = 100 if split == "eval" else 200
        for index in range(first, first + 8):
            prompt = f"Write def square(): that returns the square of {index}."
            yield vf.Task(f"{split}-{index}", prompt, answer=index**2)

    async def exit_code(self, trace: vf.Trace) -> float:
        block = re.search(r"```python\n(.*?)```", trace.reply, re.DOTALL)
        if block is None:
            return 0.0
        code = block[1].replace("\0", "")  # which no argument can hold
        test = f"{code}\nassert square() == {trace.task.answer}"
        trap = Path.cwd().parent  # a validation runs in a folder beside its marker
        if self.here:
            await self.container.write_file(str(trap / "host"), "")
        run = await self.container.exec(["python3", "-I", "-c", test])
        if self.here and (await self.container.exec(["test", "-e", str(trap / "sprung")])).ok:
            (trap / "sprung").touch()
        return float(run.ok)

    def oracle(self, task: vf.Task) -> Script | None:
        return [f"```python\ndef square():\n    return {task.answer}\n```"]

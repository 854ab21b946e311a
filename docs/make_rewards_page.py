"""Write `docs/rewards.md` from the docstrings: `python docs/make_rewards_page.py`."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import re
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import vf
import vf.rubrics

PAGE = Path(__file__).with_name("rewards.md")
ROOT = PAGE.parent.parent
LABELS = ("Range", "Formula", "Source", "Known ways to game it")
KINDS = ("Outcomes", "Process penalties", "Gates", "Group rewards")

_HEAD = """\
# Rewards

A reward is only as good as its resistance to gaming, and a group of rollouts teaches something only
if its rewards differ. This page is generated from the docstrings: `python
docs/make_rewards_page.py`.

```python no-run
rubric = vf.Rubric(
    outcome=vf.outcomes.numeric(extract=vf.outcomes.marked("Answer:")),
    penalties=[vf.penalties.extra_tool_calls(0.2, free=3), vf.penalties.tool_errors(0.1)],
    gates=[vf.penalties.keeps_policy({{"bash": "rm -rf"}})],
    metrics=[],
)
```

## What practice teaches

1. **Start with the simplest reward that reflects success**: one outcome, 0 or 1, and nothing else.
   Read twenty traces of each value before you add to it.
2. **Add partial credit once the loop works**, and only if the rewards in a group are all alike.
   Each kind of partial credit can be earned without solving the task. If a task is too hard to give
   spread otherwise, `floor` lets failures differ by their penalties.
3. **Use one bounded scale for all tasks in a mix.** All rewards here are in [0, 1], so no task
   dominates another.
4. **Make penalties explicit.** A penalty with a weight and a cap can be read, logged and turned
   off; one hidden in the outcome cannot.
5. **Compute from typed events** (tool calls, their results, stop reasons), never from text that a
   model can imitate. For an agent with several conversations, `trace.answers` has every message
   that its model sampled in any of them, and `trace.messages` has the conversation that was
   answered last. All penalties here count all of them: a sub-agent is not free.
6. **None is not zero.** An outcome that cannot be determined is None: the rollout is not trained
   on, and `rollouts/unscored` counts it. A scorer that fails is an error, never a reward.
7. **Keep a holdout that is never tuned on**, neither by the trainer nor by you: the eval split, and
   an outcome that the training reward does not contain.
8. **Try to game it before the model does**: `vf-rl eval --validate ENV`. Rescore existing traces
   with a new rubric before you train on it: `vf-rl eval --rescore TRACES --rubric RUBRIC`, or
   `vf.evaluation.rescore` from Python.

## The algebra

{algebra}

## A weighted sum instead

{weighted}

## Slow scorers

A plain function runs in a thread, a coroutine function in the event loop. Mark a function that
computes for more than a few milliseconds, or may hang, with `@vf.cpu_bound(timeout=5)`: it then
runs in a separate process, which is killed at the deadline. Regular expressions passed to the
rewards below have a time limit, and those that backtrack forever are refused when the rubric is
created. A text that exceeds the limit counts against the model: it breaks the format, or contains
what is forbidden.

## Alarms

During training, `metrics.jsonl` has `alarm/length`, `alarm/errors`, `alarm/outcome`,
`alarm/rewrites` and `alarm/voids`. An alarm that goes off is reported once, on the screen and in
the log.

{alarms}
"""


@dataclass(frozen=True)
class Reward:
    """One documented reward.

    Attributes:
        kind: Which of :data:`KINDS`.
        module: Where it is.
        name: Its name there.
        signature: Its arguments, without types.
        summary: The docstring's first paragraphs.
        labels: The text after each of :data:`LABELS`.
    """

    kind: str
    module: str
    name: str
    signature: str
    summary: list[str]
    labels: dict[str, str]


def public(package: Any = vf.rubrics) -> Iterator[tuple[str, Any]]:
    """Yield the public functions and classes of a package, each with its module's name."""
    for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        module = importlib.import_module(found.name)
        for name, member in vars(module).items():
            here = getattr(member, "__module__", None) == module.__name__
            if here and not name.startswith("_") and callable(member):
                yield module.__name__, member


def is_reward(member: Any) -> bool:
    """Return whether something is a reward, or makes one."""
    if inspect.isclass(member):
        return any(f"{label}:" in (member.__doc__ or "") for label in LABELS[1:])
    signature = inspect.signature(member)
    returns = str(signature.return_annotation)
    if returns in ("Penalty", "Scorer", "GroupReward") or "[[Trace]" in returns:
        return True
    takes = [str(parameter.annotation) for parameter in signature.parameters.values()]
    return takes == ["Trace"] and returns.split(" ")[0] in ("float", "bool")


def rewards() -> list[Reward]:
    """Return all rewards, by kind and module, in the order of their modules."""
    found = [
        document(module, member)
        for module, member in public()
        if is_reward(member) and hasattr(member, "__doc__")
    ]
    return sorted(found, key=lambda each: (KINDS.index(each.kind), each.module))


def document(module: str, member: Callable[..., Any]) -> Reward:
    """Read one reward's docstring."""
    paragraphs = re.split(r"\n\s*\n", inspect.getdoc(member) or "")
    summary: list[str] = []
    labels: dict[str, str] = {}
    for paragraph in paragraphs:
        label, colon, text = paragraph.partition(":")
        if colon and label in LABELS:
            labels[label] = _flat(text)
        elif re.match(r"(Args|Attributes|Raises|Returns):", paragraph):
            break
        elif not labels and not paragraph.startswith(("Example", "    ")):
            summary.append(_flat(paragraph))
    returns = "" if inspect.isclass(member) else str(inspect.signature(member).return_annotation)
    kind = {"Penalty": KINDS[1], "Scorer": KINDS[2], "GroupReward": KINDS[3]}.get(returns, KINDS[0])
    parameters = inspect.signature(member).parameters.values()
    shown = [
        parameter.name
        if parameter.default is parameter.empty
        else f"{parameter.name}={_default(parameter.default)}"
        for parameter in parameters
    ]
    return Reward(kind, module, member.__name__, ", ".join(shown), summary, labels)


def page() -> str:
    """Return the page as Markdown."""
    lines = [
        _HEAD.format(
            algebra=_prose("rubrics/rubric.py"),
            weighted=_prose("rubrics/weighted_sum.py"),
            alarms=_prose("trainer/watching/alarms.py"),
        )
    ]
    every = rewards()
    for kind in KINDS:
        lines += [f"## {kind}", ""]
        for each in every:
            if each.kind == kind:
                lines += _entry(each)
    return "\n".join(lines).rstrip() + "\n"


def _entry(reward: Reward) -> Iterator[str]:
    yield f"### `{reward.name}`"
    yield ""
    yield f"`{_home(reward)}.{reward.name}({reward.signature})`"
    yield ""
    for paragraph in reward.summary:
        yield paragraph
        yield ""
    for label in LABELS:
        if label in reward.labels:
            text = reward.labels[label]
            yield f"- *{label}*: {text}"
    yield ""


def _home(reward: Reward) -> str:
    """Return where an author finds a reward: in the public surface, if it is there."""
    for home, names in (
        ("vf", vf.__all__),
        ("vf.outcomes", vf.outcomes.__all__),
        ("vf.penalties", vf.penalties.__all__),
    ):
        if reward.name in names:
            return home
    return reward.module


def _prose(path: str) -> str:
    """Return a module's docstring without its first paragraph; its indented blocks as code."""
    docstring = ast.get_docstring(ast.parse((ROOT / path).read_text(encoding="utf-8"))) or ""
    blocks = docstring.split("\n\n")[1:]
    text = "\n\n".join(
        f"```\n{textwrap.dedent(block)}\n```" if block.startswith("    ") else _roles(block)
        for block in blocks
    )
    return text.replace("\n```\n\n```\n", "\n\n")


def _flat(text: str) -> str:
    return _roles(" ".join(text.split()))


def _roles(text: str) -> str:
    text = re.sub(r":\w+:`~?(?:[\w.]+\.)?(\w+)`", r"`\1`", text)
    return text.replace("``", "`")


def _default(value: Any) -> str:
    text = getattr(value, "__name__", None) or repr(value)
    return text if len(text) <= 24 else "..."


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"wrote {PAGE}")

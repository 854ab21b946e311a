"""What a teacher reads that the student does not: a privileged text in the first prompt.

The text, such as a solution, is put before that of the first user message, and the prompt is
rendered again. The tokens that this changes take the place of the student's, and everything behind
them stays as it was sampled, so that the teacher says of the very tokens that the student sampled
how likely they would have been to one who knows more. A model that teaches itself so distils what
its prompt says: on-policy self-distillation (Zhao et al. 2026, arXiv:2601.18734), which is context
distillation (Snell et al. 2022, arXiv:2209.15189) on the student's own samples.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import compress, takewhile
from typing import Protocol, runtime_checkable

from vf.environments.environment import Environment
from vf.inference.rendering.renderer import Renderer
from vf.runtime.errors import ConfigError, TrainingError
from vf.traces.messages import Message
from vf.traces.task import Task
from vf.traces.trace import Branch, Lineage, Trace
from vf.trainer.learning.batches.batch import Sample
from vf.trainer.settings.config import TrainerArgs

SETTING = "trainer.args.teacher_privileged"


@runtime_checkable
class HasPrivilegedContext(Protocol):
    """An environment that lets a teacher know more of a task than the student."""

    def privileged_context(self, task: Task) -> str | None:
        """Return what a teacher may know of a task and the student does not, such as a solution.

        With ``trainer.args.teacher_privileged``, it is read before the prompt. None adds nothing.

        Example::

            def privileged_context(self, task: vf.Task) -> str:
                return f"A correct solution ends with: {task.answer}"
        """
        ...


def opening(messages: Sequence[Message]) -> list[Message]:
    """Return the messages up to the first of the user; all, if there is none of the user."""
    roles = [message.role for message in messages]
    return [*messages[: roles.index("user") + 1]] if "user" in roles else [*messages]


def with_text(messages: Sequence[Message], text: str) -> list[Message]:
    """Return messages with a text before that of the last."""
    *before, last = messages
    return [*before, replace(last, content=f"{text}\n\n{last.content}")]


def check_privileged(environment: Environment, task: Task, renderer: Renderer) -> None:
    """Check that an environment has something to tell a teacher, and that it can be rendered.

    Args:
        environment: The environment in which the model acts.
        task: The environment's first task.
        renderer: Chat template and parser.

    Raises:
        ConfigError: If the environment has no such text, or the text cannot be rendered.
    """
    if not isinstance(environment, HasPrivilegedContext):
        raise ConfigError(
            f"{SETTING} = true, but environment {environment.id!r} has nothing to tell a teacher: "
            "define privileged_context(self, task) in its class, which returns text, or set it to "
            "false"
        )
    try:
        text = _text(environment.id, task, environment.privileged_context)
    except TrainingError as error:
        raise ConfigError(f"{SETTING}: {error}") from error
    if text is not None:
        renderer.prompt(with_text(opening(environment.first_messages(task)), text), [])


class Privileged:
    """Returns samples as a teacher reads them.

    Args:
        renderer: Chat template and parser.
        args: ``[trainer.args]``.
    """

    def __init__(self, renderer: Renderer, args: TrainerArgs) -> None:
        self._renderer, self._most = renderer, args.max_prompt_len

    def samples(
        self,
        samples: Sequence[Sample],
        traces: Sequence[Trace],
        context: Callable[[Task], str | None],
    ) -> list[Sample]:
        """Return samples whose branches begin with the privileged text of their task.

        Args:
            samples: The samples of the branches of the traces.
            traces: Rollouts.
            context: Returns the text of a task, or None for a task without one.

        Raises:
            TrainingError: If ``context`` raises, or does not return text; or a prompt with the text
                cannot be rendered so that what was sampled stays as it is.
        """
        branches: dict[int, Branch] = {}
        for trace in traces:
            text = _text(trace.environment, trace.task, context)
            for conversation in trace.conversations if text is not None else ():
                for index in conversation.branches:
                    branch = trace.branches[index]
                    branches[id(branch)] = self.branch(branch, conversation, text or "", trace.task)
        return [
            replace(sample, branch=branches.get(id(sample.branch), sample.branch))
            for sample in samples
        ]

    def branch(self, branch: Branch, conversation: Lineage, text: str, task: Task) -> Branch:
        """Return a branch with a privileged text in its first prompt; raises as above."""
        before, after = self._changed(conversation, text, task)
        count = len(before)
        if branch.token_ids[:count] != before or any(branch.loss_mask[:count]):
            raise TrainingError(
                f"{SETTING}: a conversation of task {task.id!r} does not begin as the chat "
                "template renders its first messages, so that the privileged text cannot be put "
                "there without touching what was sampled; set it to false"
            )
        if len(after) - count > self._most:
            raise TrainingError(
                f"{SETTING}: the privileged_context of task {task.id!r} has "
                f"{len(after) - count} tokens, over trainer.args.max_prompt_len = {self._most}; "
                "shorten it, or raise max_prompt_len"
            )
        return Branch(
            after + branch.token_ids[count:],
            [0] * len(after) + branch.loss_mask[count:],
            [0.0] * len(after) + branch.logprobs[count:],
            [0] * len(after) + branch.turn_index[count:],
            [-1] * len(after) + branch.weight_version[count:],
            supports=[[] for _ in after] + branch.supports[count:] if branch.supports else [],
        )

    def _changed(self, conversation: Lineage, text: str, task: Task) -> tuple[list[int], list[int]]:
        """Return the beginning of the first prompt, without the text and with it.

        Behind both, the prompt continues with the same tokens.
        """
        first = opening(conversation.messages[: conversation.prompt_messages])
        try:
            ours, theirs = (
                self._renderer.opening(messages, conversation.tools)
                for messages in (first, with_text(first, text))
            )
        except ConfigError as error:
            raise TrainingError(f"{SETTING}: of task {task.id!r}: {error}") from error
        pairs = zip(reversed(ours), reversed(theirs), strict=False)
        end = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        return ours[: len(ours) - end], theirs[: len(theirs) - end]


def _text(environment: str, task: Task, context: Callable[[Task], str | None]) -> str | None:
    where = f"environment {environment!r}: privileged_context of task {task.id!r}"
    try:
        text = context(task)
    except Exception as error:
        raise TrainingError(f"{where} raised {type(error).__name__}: {error}") from error
    if text is not None and not isinstance(text, str):
        raise TrainingError(f"{where} must return text or None, and returned {text!r}")
    return text


def attach_told(samples: Sequence[Sample], answered: Sequence[Sample]) -> list[Sample]:
    """Return samples with what a teacher has said of the same tokens in other contexts.

    Args:
        samples: The samples to train on.
        answered: The same samples with the teacher's prompts, and its log-probabilities.
    """
    done = []
    for sample, other in zip(samples, answered, strict=True):
        teacher_logprobs = iter(compress(other.teacher_logprobs, other.branch.loss_mask))
        mask = sample.branch.loss_mask
        logprobs = tuple(next(teacher_logprobs, 0.0) if trained else 0.0 for trained in mask)
        done.append(replace(sample, teacher_logprobs=logprobs, likeliest=other.likeliest))
    return done

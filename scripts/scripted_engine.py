"""A token engine that follows a script and logs what it was asked and what it sampled.

It answers like a model that calls the tools on offer: with reasoning or without, with words or
without, one call or two, and ends the conversation after as many answers as it is made with. Its
tokens are seldom those that the tokenizer would choose for the same text, so a token that was
encoded again shows. Each call has a weight version of its own.
"""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from vf.inference.completions import Completion
from vf.inference.model import Sampling
from vf.inference.rendering.renderer import Renderer
from vf.traces.trace import Trace

TOOLS = re.compile(r"^Tools:\n((?:\{.*\}\n)+)Call: ", re.MULTILINE)  # the tiny model's template
ANSWER = "<|im_start|>assistant\n"
# What the agents' tools take. Of these a reply calls the first that is on offer.
ARGUMENTS: dict[str, Callable[[int], dict[str, Any]]] = {
    "calculate": lambda k: {"op": "+-*"[k % 3], "a": k, "b": 3},
    "exec_command": lambda k: {"cmd": f"echo {k}"},
    "bash": lambda k: {"command": f"echo {k}", "description": "Prints a number"},
    "Bash": lambda k: {"command": f"echo {k}", "timeout": 9000.0},
}
# How an agent wants to be given its answer, where words alone are none.
ENDINGS: dict[str, Any] = {
    "final_answer": {"answer": "Answer: 7"},
    "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT": {
        "command": "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT; echo Answer: 7"
    },
}


@dataclass(frozen=True)
class Call:
    """One call of the engine: what it was asked, and what it sampled."""

    prompt_ids: list[int]
    sampled: Completion


@dataclass
class ScriptedEngine:
    """Continues token ids by a script.

    Args:
        renderer: That of the tiny model, whose template shows the tools on offer.
        answers: Answers in a conversation; the last one ends it.
        seed: Decides on the words, the tokens and the logprobs.
        parallel: Whether some replies make two calls.

    Attributes:
        log: Every call that was answered, in order; the weight version is the place in it.
    """

    renderer: Renderer
    answers: int = 20
    seed: int = 0
    parallel: bool = True
    log: list[Call] = field(default_factory=list)

    async def complete(
        self,
        prompt_ids: list[int],
        sampling: Sampling,
        stop_token_ids: list[int],
        conversation: str = "",
    ) -> Completion:
        """Sample the script's next answer to a prompt."""
        rng = random.Random(f"{self.seed} {len(self.log)}")
        text = self._reply(self.renderer.decode(prompt_ids), rng)
        ends = [text.index(stop) + len(stop) for stop in sampling.stop if stop in text]
        ids = self._encode(text[: min(ends)] if ends else text, rng)
        ids = (ids if ends else [*ids, self.renderer.closer_id])[: sampling.max_tokens]
        logprobs = [-rng.expovariate(1.0) for _ in ids]
        versions = [len(self.log)] * len(ids)
        whole = bool(ends) or ids[-1] == self.renderer.closer_id
        completion = Completion(ids, logprobs, versions, "stop" if whole else "length")
        self.log.append(Call(list(prompt_ids), completion))
        return completion

    def _reply(self, prompt: str, rng: random.Random) -> str:
        """Return the answer's text, by the number of answers that the prompt holds already."""
        k = prompt.count(ANSWER) - 1
        words = rng.choice(["", f"Step {k}: \u201cnext\u201d\u2026\n", f"I try number {k}."])
        thought = f"<think>\nIs it {k}?\n</think>\n" if rng.random() < 0.5 else ""
        last = k >= self.answers - 1
        tools = offered(prompt)
        if not tools and "<code>" in prompt:  # smolagents, writing Python
            code = 'final_answer("Answer: 7")' if last else f'print(calculate("+", {k}, 3))'
            return f"{thought}Thought: {words}\n<code>\n{code}\n</code>"
        name = next((name for name in ARGUMENTS if name in tools), None)
        if name is None or last:
            ending = next((word for word in ENDINGS if word in prompt), None)
            if name is None or ending is None:
                return f"{thought}{words}Answer: 7"
            name = ending if ending in tools else name
            return thought + words + written(name, ENDINGS[ending], rng)
        calls = 2 if self.parallel and rng.random() < 0.25 else 1
        made = [written(name, ARGUMENTS[name](k + i), rng) for i in range(calls)]
        return thought + words + "\n".join(made)

    def _encode(self, text: str, rng: random.Random) -> list[int]:
        """Encode a text in pieces, cut where no tokenizer would; markers stay whole."""
        ids: list[int] = []
        for part in re.split(r"(</?\w+>)", text):
            cuts = sorted(rng.randint(0, len(part)) for _ in range(len(part) // 4))
            ends = [] if part.startswith("<") else cuts
            for start, end in zip([0, *ends], [*ends, len(part)], strict=True):
                ids += self.renderer.tokenizer.encode(part[start:end], add_special_tokens=False)
        return ids


def offered(prompt: str) -> set[str]:
    """Return the names of the tools that a rendered prompt offers."""
    found = TOOLS.search(prompt)
    return {json.loads(line)["name"] for line in found[1].splitlines()} if found else set()


def written(name: str, arguments: dict[str, Any], rng: random.Random) -> str:
    """Return a tool call in the template's form, spaced as a model might."""
    separators = rng.choice([(", ", ": "), (",", ":"), (" , ", " :  ")])
    body = json.dumps({"name": name, "arguments": arguments}, separators=separators)
    return f"<tool_call>{body}</tool_call>"


@dataclass
class Comparison:
    """What became of the engine's calls in the traces.

    Attributes:
        calls: Calls that the engine answered.
        tokens: Tokens that it sampled in them.
        lineages: Conversations of the agents, over all traces.
        branches: Branches, over all traces.
        forks: Forks by kind.
        problems: Where a trace and the log differ; empty if they agree.
    """

    calls: int = 0
    tokens: int = 0
    lineages: int = 0
    branches: int = 0
    forks: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)


def compare(traces: Sequence[Trace], log: Sequence[Call]) -> Comparison:
    """Compare every token of the traces with the engine's log.

    Each call of the log must be in the traces once: the tokens before its answer in the branch
    are its prompt, and the sampled tokens, logprobs and versions are its answer's.
    """
    found = Comparison(calls=len(log), tokens=sum(len(call.sampled.token_ids) for call in log))
    seen: Counter[int] = Counter()
    for trace in traces:
        lineages = len(trace.lineages) or 1
        found.lineages += lineages
        found.branches += len(trace.branches)
        found.forks.update(fork.kind for fork in trace.forks)
        for number, branch in enumerate(trace.branches):
            where = f"{trace.task.id}, branch {number}"
            end = 0
            while 1 in branch.loss_mask[end:]:
                start = branch.loss_mask.index(1, end)
                version = branch.weight_version[start]
                if not 0 <= version < len(log):
                    found.problems.append(f"{where}: no call has the version {version}")
                    break
                call = log[version]
                end = start + len(call.sampled.token_ids)
                seen[version] += 1
                found.problems += [
                    f"{where}, call {version}: the {what} differ"
                    for what, traced, logged in (
                        ("prompts", branch.token_ids[:start], call.prompt_ids),
                        ("tokens", branch.token_ids[start:end], call.sampled.token_ids),
                        ("logprobs", branch.logprobs[start:end], call.sampled.logprobs),
                        ("versions", branch.weight_version[start:end], call.sampled.versions),
                        ("masks", branch.loss_mask[start:end], [1] * len(call.sampled.token_ids)),
                    )
                    if traced != logged
                ]
    found.problems += [
        f"call {number} is {seen[number]} times in the traces, not once"
        for number in range(len(log))
        if seen[number] != 1
    ]
    return found

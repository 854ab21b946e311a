"""An outcome that runs the model's code against hidden tests, in an unused sandbox."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence

from vf.rubrics.outcomes.extract import wrong_answer
from vf.rubrics.outcomes.grading import Case, grade
from vf.runtime.errors import ConfigError
from vf.sandbox.contract import OpenSandbox
from vf.traces.trace import Trace

MAX_SOURCE = 50_000  # characters; longer code does not count


def code_tests(
    open_sandbox: OpenSandbox, *, partial: bool = True, above_constant: bool = True
) -> Callable[[Trace], Awaitable[float]]:
    """How many of the hidden tests in ``task.answer`` the last code block of the reply passes.

    Each test is ``[code, value]``, Python code whose last line is an expression and the value that
    it should have (JSON, also equal in type), or ``[code, None, name]`` if it should raise the
    exception of that name. They run in a fresh sandbox, each in a process of its own, which gets
    the code and never the value: what comes out is compared here, in lines that carry a nonce. Code
    that takes its sandbox down passes no test; an engine that fails is an infrastructure error and
    never a 0.

    Range: [0, 1]; 0 or 1 unless ``partial``. 0 without a closed code block, and for code that is
    longer than 50,000 characters or does not run.

    Formula: :func:`credit`: max(0, passed − chance) / (tests − chance), where chance is how many
    tests the best constant answer passes, or 0 unless ``above_constant``; all or nothing unless
    ``partial``.

    Source: the hidden tests of APPS (Hendrycks et al., arXiv:2105.09938); the share above a
        constant answer is vf-rl's.

    Known ways to game it: a table of guessed arguments and results, where the visible tests
    resemble the hidden ones; code that handles only the common cases, which ``partial`` rewards in
    part. Neither exits, patched builtins, objects equal to everything nor forged output pass.

    Args:
        open_sandbox: Returns a context that opens a fresh sandbox and destroys it: a pool's
            ``acquire``, or ``vf.sandbox_source("docker").open``.
        partial: Whether passing some of the tests earns a part.
        above_constant: Whether only what a constant answer does not pass counts.

    Raises:
        ConfigError: ``open_sandbox`` is not a function.
        RubricError: (when scoring) ``task.answer`` is not a list of tests.
        SandboxError: (when scoring) The sandbox is lost, or none can be opened.
    """
    if not callable(open_sandbox):
        raise ConfigError(
            "code_tests: open_sandbox must be a function that returns a sandbox's context, such "
            f"as vf.sandbox_source('docker').open; got {open_sandbox!r}"
        )

    async def code_tests(trace: Trace) -> float:
        cases = _cases(trace)
        code = final_code(trace.reply)
        if code is None:
            return 0.0
        async with open_sandbox() as sandbox:
            passed = (await grade(sandbox, code, cases)).passed
        if not partial:
            return float(all(passed))
        return credit(passed, cases) if above_constant else sum(passed) / len(passed)

    return code_tests


def final_code(text: str) -> str | None:
    """Return the last fenced code block of a message that is closed.

    None if there is none, or if it has more than 50,000 characters.
    """
    code: str | None = None
    block: list[str] | None = None
    for line in text.split("\n"):
        fence = line.rstrip()
        if block is not None and fence == "```":
            code, block = "\n".join(block), None
        elif fence.startswith("```"):  # inside of a block that was never closed, too
            block = []
        elif block is not None:
            block.append(line)
    return code if code is not None and len(code) <= MAX_SOURCE else None


def credit(passed: Sequence[bool], cases: Sequence[Case]) -> float:
    """Return the share of the tests passed beyond those that the best constant answer passes.

    In [0, 1]: max(0, passed − chance) / (tests − chance). So "return True" earns nothing, and
    neither does an exception that inherits from every one that is wanted. Where all tests want the
    same, one of them counts.
    """
    counts = Counter("raises" if case.raises is not None else repr(case.value) for case in cases)
    [(_, most)] = counts.most_common(1)
    chance = min(most, len(cases) - 1)
    return max(0, sum(passed) - chance) / (len(cases) - chance)


def _cases(trace: Trace) -> list[Case]:
    answer = trace.task.answer
    if not isinstance(answer, list | tuple) or not answer or not all(map(_is_case, answer)):
        raise wrong_answer(
            "code_tests", trace, "a list of tests, each [code, value] or [code, None, exception]"
        )
    return [Case(*case) for case in answer]


def _is_case(case: object) -> bool:
    return (
        isinstance(case, list | tuple)
        and len(case) in (2, 3)
        and isinstance(case[0], str)
        and (len(case) == 2 or case[2] is None or isinstance(case[2], str))
    )

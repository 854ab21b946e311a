"""Validating an environment: the agents act, and what they earn is judged."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from vf.environments.environment import Environment
from vf.evaluation.evaluate import evaluate, lasting_rollout, take_tasks
from vf.evaluation.scripts import hackers_of, oracle_of
from vf.evaluation.validation.agents import (
    FORMS,
    IGNORANT,
    Agent,
    AgentModel,
    Notes,
    Situation,
    answer_text,
)
from vf.evaluation.validation.checks import (
    check_leaks,
    check_penalties,
    check_tasks,
    check_tools,
)
from vf.evaluation.validation.findings import AgentResult, Finding, Report, Stage
from vf.evaluation.validation.hackers import hackers
from vf.evaluation.validation.judging import (
    judge_errors,
    judge_hackers,
    judge_ignorant,
    judge_oracle,
    judge_sandbox,
    judge_spread,
)
from vf.evaluation.validation.terminal_hackers import has_shell, terminal_hackers
from vf.evaluation.validation.trap import Trap, set_trap
from vf.inference.model import Model, Sampling
from vf.inference.models.scripted_model import Line, Script, ScriptedModel
from vf.runtime.errors import ConfigError, ModelError
from vf.traces.task import Task
from vf.traces.trace import Trace

DEFAULT_TASKS = 8
CHECKS = (
    "tasks",
    "tools",
    "penalties",
    "oracle",
    "deterministic",
    "leaks",
    "ignorant",
    "hackers",
    "spread",
    "sandbox",
    "errors",
)
_KNOWN = 200  # other tasks whose answers the agents have heard of
_MAX_CONCURRENT = 8  # rollouts, of all agents together
_REPEATED = ("oracle", "random", "guess")  # agents whose rollouts are compared with a second run
_SAMPLING = Sampling(max_tokens=16384)


async def validate(
    environment: Environment,
    *,
    again: Environment | None = None,
    tasks: int = DEFAULT_TASKS,
    seed: int = 0,
    allow: Sequence[str] = (),
    on_progress: Callable[[Stage], None] | None = None,
) -> Report:
    """Run the scripted agents on tasks of the eval split, and judge what they earn.

    Meanwhile the whole process is in an empty folder, where code that runs outside of any sandbox
    does less harm: what an environment opens later must not have a relative path. A judge in the
    rubric is asked about every rollout.

    Args:
        environment: The environment to validate.
        again: The same environment, made a second time, for the check of determinism.
        tasks: Number of tasks; each agent has one rollout of each.
        seed: Seed of the agents and the rollouts.
        allow: Names of checks that may fail; see ``CHECKS``.
        on_progress: Called with what is being done as each rollout begins and ends.

    Raises:
        ConfigError: ``tasks`` is below 2, there are no tasks, or ``allow`` names no check.
    """
    if tasks < 2:
        raise ConfigError(f"validation needs at least 2 tasks, got {tasks}")
    for name in allow:
        if name not in CHECKS:
            raise ConfigError(f"allow: there is no check {name!r}. Checks: {', '.join(CHECKS)}")
    with set_trap() as trap:
        validation = _Validation(environment, again or environment, tasks, seed, trap)
        validation.on_progress = on_progress or validation.on_progress
        report = await validation.run()
    for finding in report.findings:
        if finding.status == "fail" and finding.check in allow:
            finding.status = "allowed"
    return report


class _Validation:
    """One validation while it runs."""

    def __init__(
        self, environment: Environment, again: Environment, tasks: int, seed: int, trap: Trap
    ) -> None:
        self.environment, self.again, self.seed, self.trap = environment, again, seed, trap
        self.tasks = take_tasks(environment, "eval", tasks)
        self.scripts: dict[str, Script] = {}
        self.report = Report(environment.id or type(environment).__name__, len(self.tasks))
        self.notes = self._notes()
        self.prompts: dict[str, str] = {}  # and the tools: what is read before the first turn
        self.unread: dict[str, bool] = {}  # penalties and gates, and whether all found nothing
        self.tools: dict[str, dict[str, Any]] = {}  # those of all episodes, by their JSON
        self.traces: dict[str, list[Trace]] = {}  # of those agents whose rollouts are repeated
        self.on_progress: Callable[[Stage], None] = lambda stage: None

    async def run(self) -> Report:
        findings = [check_tasks(self.environment, self.again)]
        solved = await self._oracle()
        oracle = self.report.agents[0] if self.report.agents else None
        await self._find_form()
        agents = [*IGNORANT, *self._wrong()]
        honest = await self._act("those who know nothing", agents)
        attackers = [*hackers(self.trap)]
        if has_shell(self.tools.values()):
            attackers += terminal_hackers(self.trap)
        suite = await self._act("hackers", [*attackers, *self._own_hackers()])
        findings += [
            check_tools(self.tools.values()),
            check_penalties(self.unread),
            solved,
            await self._deterministic(),
            check_leaks(self.prompts, self.tasks),
            judge_ignorant(honest, {agent.name: agent.limit for agent in agents}),
            judge_hackers(honest, suite),
            judge_spread(oracle, honest),
            judge_sandbox(self.trap),
            judge_errors(self.report.agents),
        ]
        self.report.findings = findings
        return self.report

    def _notes(self) -> Notes:
        """Note the answers of other tasks than those that the agents get, if there are any."""
        chosen = {task.id for task in self.tasks}
        others = take_tasks(self.environment, "eval", len(self.tasks) + _KNOWN)
        others = [task for task in others if task.id not in chosen] or others
        answers = {
            task.id: text for task in others if (text := answer_text(task.answer)) is not None
        }
        return Notes(answers, max_turns=self.environment.max_turns)

    async def _oracle(self) -> Finding:
        for task in self.tasks:
            try:
                script = oracle_of(self.environment, task)
                if script is not None:
                    self.scripts[task.id] = script if callable(script) else list(script)
            except Exception as error:
                self.scripts.clear()
                return Finding(
                    "oracle",
                    "fail",
                    f"oracle raised {type(error).__name__} on task {task.id!r}: {error}",
                    "oracle(self, task) is called on the definition: no reset has run before",
                )
        missing = len(self.tasks) - len(self.scripts)
        if missing:
            return Finding(
                "oracle",
                "skipped",
                f"{missing} of {len(self.tasks)} tasks have no oracle",
                "define oracle(self, task) in the environment (an agent's takes oracle=...): what "
                "a model that solves the task says; without it nothing shows that the tasks can "
                "be solved",
            )
        (result,) = await self._act("oracle", [self._solver()])
        return judge_oracle(result, [task.id for task in self.tasks])

    def _solver(self) -> Agent:
        def speak(situation: Situation) -> Line:
            script = self.scripts[situation.task.id]
            if callable(script):
                return script(situation.messages)
            lines = list(script)
            if situation.turn >= len(lines):
                raise ModelError("the oracle's script has ended, but the episode continues")
            return lines[situation.turn]

        return Agent("oracle", "says what the environment's oracle says", speak)

    async def _find_form(self) -> None:
        """Learn how an answer must be written: the first form in which a right one is paid."""
        forms = [*self._oracle_forms(), *FORMS]
        self.notes = replace(self.notes, form=forms[0])
        if not any(answer_text(task.answer) for task in self.tasks[:2]):
            return

        def say(form: str, situation: Situation) -> Line:
            return form.format(answer_text(situation.task.answer))

        for form in dict.fromkeys(forms):
            knowing = Agent(form, "", partial(say, form))
            (traces,) = await self._rollouts("form of an answer", [knowing], self.tasks[:2])
            if any(trace.reward for trace in traces):
                self.notes = replace(self.notes, form=form)
                self.report.form = form
                return

    def _oracle_forms(self) -> list[str]:
        """Read the form off the oracle's last lines."""
        forms = []
        for task in self.tasks:
            script, answer = self.scripts.get(task.id), answer_text(task.answer)
            if not isinstance(script, list) or not script or answer is None:
                continue
            line = script[-1]
            if isinstance(line, str) and line.count(answer) == 1:
                before, after = line.split(answer)
                forms.append(f"{_literal(before)}{{}}{_literal(after)}")
        return [form for form, _ in Counter(forms).most_common(1)]

    def _wrong(self) -> list[Agent]:
        """Return an agent that solves another task, if the oracle's scripts allow it."""
        lines = {id: script for id, script in self.scripts.items() if isinstance(script, list)}
        wrong: dict[str, list[Line]] = {}
        for index, task in enumerate(self.tasks):
            for other in self.tasks[index + 1 :] + self.tasks[:index]:
                script = lines.get(other.id)
                if script and script != lines.get(task.id) and other.answer != task.answer:
                    wrong[task.id] = script
                    break
        if len(wrong) < len(self.tasks):
            return []

        def speak(situation: Situation) -> Line:
            script = wrong[situation.task.id]
            return script[min(situation.turn, len(script) - 1)]

        return [Agent("wrong", "does what solves another task", speak)]

    def _own_hackers(self) -> list[Agent]:
        """Return those that the environment's author has thought of.

        Raises:
            ConfigError: If they are not the same for every task.
        """
        scripts = {task.id: dict(hackers_of(self.environment, task)) for task in self.tasks}
        names = [*scripts[self.tasks[0].id]]
        for id, own in scripts.items():
            if {*own} != {*names}:
                raise ConfigError(
                    f"{self.report.environment}: hackers(task) must have the same names for every "
                    f"task, and has {', '.join(own) or 'none'} for {id!r}"
                )

        def speak(name: str, situation: Situation) -> Line:
            script = scripts[situation.task.id][name]
            if callable(script):
                return script(situation.messages)
            lines = list(script)
            return lines[situation.turn] if situation.turn < len(lines) else ""

        return [Agent(name, "the environment's own", partial(speak, name)) for name in names]

    async def _act(self, stage: str, agents: Sequence[Agent]) -> list[AgentResult]:
        """Let agents act once in each task, all of them together, and report what they earn."""
        results = []
        for agent, traces in zip(agents, await self._rollouts(stage, agents), strict=True):
            result = AgentResult(agent.name, agent.about, [trace.reward for trace in traces])
            for trace in traces:
                self._read(trace)
                if trace.error is not None:
                    result.errors.append(f"task {trace.task.id!r}: {trace.error.message}")
            if agent.name in _REPEATED:
                self.traces[agent.name] = traces
            results.append(result)
        self.report.agents += results
        return results

    def _read(self, trace: Trace) -> None:
        """Note which tools, prompts, penalties and gates a trace has."""
        first = trace.conversations[0]
        prompt = first.messages[: first.prompt_messages]
        tools = {
            json.dumps(tool): tool for lineage in trace.conversations for tool in lineage.tools
        }
        self.tools.update(tools)
        self.prompts.setdefault(trace.task.id, "\n".join([*(m.content for m in prompt), *tools]))
        for name, value in _process(trace):
            self.unread[name] = self.unread.get(name, True) and value is None

    async def _rollouts(
        self,
        stage: str,
        agents: Sequence[Agent],
        tasks: Sequence[Task] | None = None,
        environment: Environment | None = None,
    ) -> list[list[Trace]]:
        """Return each agent's traces; rollouts of different agents run side by side."""
        tasks = tasks or self.tasks
        # A copy of the task for each agent, by which its rollouts know whose they are.
        copies = [(agent, replace(task)) for agent in agents for task in tasks]
        agent_of = {id(task): agent for agent, task in copies}
        running: Counter[str] = Counter()
        done = 0

        def report(change: int, agent: Agent) -> None:
            running[agent.name] += change
            names = [name for name, count in running.items() if count]
            self.on_progress(Stage(stage, done, len(copies), names))

        async def run(env: Environment, task: Task, _: Model, **settings: Any) -> Trace:
            nonlocal done
            agent = agent_of[id(task)]
            report(1, agent)
            try:
                model = AgentModel(agent, task, self.notes)
                return await lasting_rollout(env, task, model, **settings)
            finally:
                done += 1
                report(-1, agent)

        evaluation = await evaluate(
            environment or self.environment,
            ScriptedModel([]),
            tasks=[task for _, task in copies],
            max_concurrent=_MAX_CONCURRENT,
            sampling=_SAMPLING,
            seed=self.seed,
            run=run,
        )
        size = len(tasks)
        return [evaluation.traces[at : at + size] for at in range(0, len(copies), size)]

    async def _deterministic(self) -> Finding:
        agents = [agent for agent in IGNORANT if agent.name in _REPEATED]
        if len(self.scripts) == len(self.tasks):
            agents.append(self._solver())
        repeated = await self._rollouts("the same again", agents, environment=self.again)
        for agent, second in zip(agents, repeated, strict=True):
            for one, other in zip(self.traces[agent.name], second, strict=True):
                what = _difference(one, other)
                if what:
                    return Finding(
                        "deterministic",
                        "fail",
                        f"the same seed and the same replies gave different {what} on task "
                        f"{one.task.id!r}",
                        "draw from self.rng only; keep the clock, sets' order and state of other "
                        "episodes out of it",
                    )
        return Finding("deterministic", "ok", "the same seed and replies give the same episode")


def _process(trace: Trace) -> list[tuple[str, object]]:
    """Return the penalties and gates of a trace that was scored."""
    return [] if trace.score is None else [*(trace.score.penalties | trace.score.gates).items()]


def _literal(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")


def _difference(one: Trace, other: Trace) -> str | None:
    """Return what differs between two traces that should be alike."""
    ours, theirs = one.conversations, other.conversations
    if (
        ours[0].messages[: ours[0].prompt_messages]
        != theirs[0].messages[: theirs[0].prompt_messages]
    ):
        return "first messages"
    if [lineage.messages for lineage in ours] != [lineage.messages for lineage in theirs]:
        return "answers of the environment"
    if one.step_rewards != other.step_rewards or one.reward != other.reward:
        return f"rewards ({one.reward} and {other.reward})"
    return None if one.stop_reason == other.stop_reason else "ends"

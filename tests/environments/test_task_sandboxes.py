"""Tasks that bring their sandboxes: opened as they say, fetched ahead, failing one by one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import vf
from tests.sandbox.own_images import REPOSITORY, remove_images
from vf.environments.environment import Split
from vf.environments.sandboxes import image_stats
from vf.runtime.errors import SandboxError
from vf.sandbox.container.docker_engine import Engine
from vf.sandbox.images import builds
from vf.sandbox.stats import HostStats

CALL = {"bash": {"command": "cat /name"}}


class Source:
    """Opens scripted sandboxes from specs with images, some of which come late or not at all."""

    def __init__(self, late: str = "", missing: str = "") -> None:
        self.late, self.missing = late, missing
        self.came = asyncio.Event()
        self.opened: list[str | None] = []

    @asynccontextmanager
    async def open(self, spec: vf.SandboxSpec | None = None) -> AsyncIterator[vf.Sandbox]:
        image = None if spec is None else spec.image
        if image is not None and image in self.missing:
            raise SandboxError(f"{image} cannot be built; its log: /tmp/{image}.log")
        self.opened.append(image)
        async with vf.ScriptedSandbox(bash=[f"{image}\n"] * 2) as sandbox:
            yield sandbox

    def check_spec(self, spec: vf.SandboxSpec | None) -> None:
        if spec is not None and spec.user is not None:
            raise vf.ConfigError("sandbox_spec.user: there are no users here")

    async def prefetch(self, specs: Iterable[vf.SandboxSpec | None]) -> None:
        if any(spec is not None and spec.image in set(self.late) for spec in specs):
            await self.came.wait()

    async def check(self) -> None: ...

    async def start(self) -> None:
        raise AssertionError("what it is made from is not known yet")

    def stats(self) -> Sequence[HostStats]:
        return ()


class Named(vf.Environment):
    """Asks for the name of the image that a task's sandbox is made from."""

    id = "named"
    rubric = vf.Rubric(lambda trace: float(trace.messages[2].content == trace.task.id))

    def __init__(self, source: Any, names: str = "abc", **spec: Any) -> None:
        self.source = source
        self.tools = [vf.BashTool(source)]
        self.names, self.spec = names, spec

    def tasks(self, split: Split) -> Iterator[vf.Task]:
        for name in self.names:
            yield vf.Task(name, "Go.")

    def sandbox_spec(self, task: vf.Task) -> vf.SandboxSpec | None:
        return vf.SandboxSpec(image=task.id, **self.spec)


def evaluate(environment: vf.Environment, **options: Any) -> list[vf.Trace]:
    model = vf.ScriptedModel([CALL, "Done."])
    return asyncio.run(vf.evaluate(environment, model, **options)).traces


def test_an_episodes_sandbox_is_made_from_what_its_task_says() -> None:
    source = Source()
    traces = evaluate(Named(source))
    assert [trace.reward for trace in traces] == [1.0] * 3
    assert sorted(map(str, source.opened)) == ["a", "b", "c"]


def test_the_sandbox_for_grading_is_made_from_the_same() -> None:
    source = Source()

    class Graded(Named):
        async def step(self, reply: vf.Message) -> vf.Step:
            step = await self.run_tools(reply)
            if step.terminated:
                async with self.sandbox.fresh() as box:
                    self.said = (await box.bash("cat /name")).stdout
                async with self.sandbox.fresh(vf.SandboxSpec(image="tests")):
                    pass
            return step

    evaluate(Graded(source, "a"))
    assert source.opened == ["a", "a", "tests"]


def test_an_image_that_comes_late_holds_up_nobody_else() -> None:
    source = Source(late="a")
    done: list[str] = []

    def on_trace(trace: vf.Trace) -> None:
        done.append(trace.task.id)
        if len(done) == 2:
            source.came.set()

    traces = evaluate(Named(source), max_concurrent=1, on_trace=on_trace)
    assert done == ["b", "c", "a"]
    assert [trace.reward for trace in traces] == [1.0] * 3


def test_an_image_that_cannot_be_built_is_the_error_of_its_task() -> None:
    bad, *others = evaluate(Named(Source(missing="a")))
    assert bad.reward is None
    assert bad.error is not None
    assert bad.error.boundary == "sandbox"
    assert "its log: /tmp/a.log" in bad.error.message
    assert [trace.reward for trace in others] == [1.0] * 2


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        (lambda: Named(Source(), user="x"), "task 'a': sandbox_spec.user: there are no users here"),
        (lambda: Named(vf.ScriptedSandbox), "task 'a': .*has image = 'a', but a function"),
        (
            lambda: Named(vf.sandbox_source({"backend": "local", "unsafe_local": True})),
            "has image = 'a', but backend = \"local\" runs on this machine as it is",
        ),
    ],
)
def test_a_spec_that_its_source_cannot_make_ends_the_run_before_it_begins(
    environment: Callable[[], Named], said: str
) -> None:
    with pytest.raises(vf.ConfigError, match=said):
        evaluate(environment())


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        (lambda self, task: "image", "sandbox_spec of task 'a' must be|must return a vf.Sand"),
        (lambda self, task: task.info["no"], "sandbox_spec of task 'a' failed:\n(.|\n)*KeyError"),
    ],
)
def test_an_authors_mistake_in_a_spec_is_named(spec: Any, said: str) -> None:
    class Wrong(Named):
        sandbox_spec = spec

    with pytest.raises(vf.ConfigError, match=said):
        evaluate(Wrong(Source()))


def test_images_are_built_while_the_tasks_before_them_run(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(builds, "REPOSITORY", REPOSITORY)
    monkeypatch.setattr(builds, "FOLDER", tmp_path)

    class Built(Named):
        def sandbox_spec(self, task: vf.Task) -> vf.SandboxSpec:
            place = tmp_path / task.id
            place.mkdir(exist_ok=True)
            last = "false" if task.id == "b" else "true"
            lines = ["FROM vf-sandbox:latest", f"RUN printf {task.id} > /name && {last}"]
            (place / "Dockerfile").write_text("\n".join(lines))
            return vf.SandboxSpec(build=vf.Build(place))

    environment = Built(vf.sandbox_source({"backend": "docker", "pool": 1, "lifetime": 300}))
    failed: list[int] = []

    def on_trace(trace: vf.Trace) -> None:
        failed.append(image_stats(environment)[0].failed)

    try:
        good, bad, other = evaluate(environment, on_trace=on_trace)
    finally:
        remove_images(engine)
    assert (good.reward, other.reward) == (1.0, 1.0)
    assert bad.error is not None
    assert f"the image of {tmp_path / 'b'} cannot be built" in bad.error.message
    assert "The whole log: " in bad.error.message
    assert failed[-1] == 1

"""Where sandboxes come from: settings checked at once, containers ready ahead, none left behind."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest

import vf
from vf.environments.bundled.code_contest import CodeContest, problems
from vf.sandbox.container.docker_engine import Engine
from vf.sandbox.container.reaper import find
from vf.sandbox.contract import ExecResult
from vf.sandbox.hosting.docker_source import DockerSource
from vf.sandbox.hosting.source import sandbox_source
from vf.sandbox.local import UnsafeLocalSandbox
from vf.sandbox.scripted_sandbox import ScriptedSandbox
from vf.sandbox.source import SandboxSource
from vf.sandbox.stats import HostStats

SMALL = {"backend": "docker", "pool": 2, "concurrency": 2, "lifetime": 300}
LOCAL = {"backend": "local", "unsafe_local": True}


def ours(engine: Engine) -> set[str]:
    """The names of this process's containers."""
    return {item.name for item in asyncio.run(find(engine)) if item.mine}


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("dokcer", "no sandbox 'dokcer'. Did you mean 'docker'"),
        ("", "there is no sandbox ''"),
        (3, 'must be a name, such as "auto" or "docker", or a table of settings, got 3'),
        (None, "or a table of settings, got None"),
        (["docker"], "or a table of settings, got ['docker']"),
        ({"backend": "podman"}, "there is no sandbox 'podman'"),
        ({"backend": 3}, "there is no sandbox 3"),
        ({"memroy": 1}, "no setting 'memroy'. Did you mean 'memory'"),
        ({"pool": 0}, "sandbox.pool must be a whole number, at least 1, got 0"),
        ({"pool": 2.5}, "sandbox.pool must be a whole number"),
        ({"pool": True}, "sandbox.pool must be a whole number"),
        ({"concurrency": -1}, "sandbox.concurrency must be a whole number"),
        ({"memory": 0}, "memory must be positive, got 0"),
        ({"memory": -1}, "memory must be positive, got -1"),
        ({"cpus": 0}, "cpus must be positive"),
        ({"pids": -5}, "pids must be positive"),
        ({"lifetime": 0}, "lifetime must be positive"),
        ({"lifetime": float("nan")}, "lifetime must be positive"),
        ({"memory": "512m"}, "sandbox.memory must be a number, got '512m'"),
        ({"memory": 2**24}, "memory"),
        ({"network": "host"}, 'network must be "none" or "bridge"'),
        ({"network": True}, "sandbox.network must be a name"),
        ({"image": ""}, "sandbox.image must be a name"),
        ({"writable": 1}, "sandbox.writable must be true or false, got 1"),
        ({"user": ""}, "sandbox.user must be a name"),
        ({"workdir": "app"}, "sandbox: workdir must be an absolute path"),
        ({"env": {"A": 1}}, "sandbox.env must be a table of texts"),
        ({"env": ["A"]}, "sandbox.env must be a table of texts"),
        ({"disk": 0}, "disk must be positive"),
        ({"max_containers": 0}, "sandbox.max_containers must be a whole number, at least 1"),
        ({"build_concurrency": 1.5}, "sandbox.build_concurrency must be a whole number"),
        ({"image_disk": 0}, "sandbox.image_disk must be a positive number, got 0"),
        ({"pull": "always"}, 'sandbox.pull must be "missing" or "never", got \'always\''),
        ({"allow": "pypi.org"}, "sandbox.allow must be a list of hosts"),
        ({"allow": ["a b"]}, "sandbox.allow: 'a b' is no host"),
        ({"compose": "/none.yaml"}, "sandbox.compose: /none.yaml cannot be read"),
        ({"build": "/none"}, "sandbox.build.folder: there is no folder /none"),
        (
            {"build": {"dockerfile": "D"}},
            "sandbox.build must be a folder, or a table with folder =",
        ),
        ({"build": {"folder": "x", "arg": {}}}, "no setting 'arg'. Did you mean 'args'"),
        ({"build": {"folder": "x", "args": 1}}, "sandbox.build.args must be a table of texts"),
        ({"build": {"folder": "x", "timeout": -1}}, "sandbox.build: timeout must be positive"),
        ({"build": "x", "image": "y"}, "sandbox.image and sandbox.build exclude each other"),
        ({"build": "x", "packages": []}, "sandbox.build and sandbox.packages exclude each other"),
        ({"backend": "local"}, "unprotected"),
        ({"backend": "local", "unsafe_local": 1}, "unprotected"),
        ({**LOCAL, "memory": 2**30}, "the local sandbox has no setting 'memory'"),
    ],
)
def test_a_wrong_setting_is_named_at_once(setting: Any, said: str) -> None:
    with pytest.raises(vf.ConfigError) as raised:
        sandbox_source(setting)
    assert said in str(raised.value)
    with pytest.raises(vf.ConfigError, match="environment 'code-contest': "):
        vf.make("code-contest", sandbox=setting)


def test_settings_reach_the_profile() -> None:
    source = sandbox_source({**SMALL, "memory": 2**29, "cpus": 0.5, "pids": 40, "image": "i"})
    assert isinstance(source, DockerSource)
    profile, bounds = source.settings.profile, source.settings.bounds
    assert (bounds.pool, bounds.concurrency, profile.image) == (2, 2, "i")
    limits = profile.limits
    assert (limits.memory, limits.cpus, limits.pids, limits.lifetime) == (2**29, 0.5, 40, 300)
    open_ended = {"writable": True, "user": "root", "env": {"A": "1"}, "disk": 2**30}
    made = sandbox_source({**open_ended, "allow": ["pypi.org"], "pull": "never"})
    assert isinstance(made, DockerSource)
    assert (made.settings.profile.writable, made.settings.profile.user) == (True, "root")
    assert (made.settings.spec.allow, made.settings.bounds.pull) == (("pypi.org",), "never")
    default = sandbox_source("docker")
    assert isinstance(default, DockerSource)
    assert default.settings.profile.network == "none"


def test_a_function_or_a_source_is_taken_as_it_is() -> None:
    source = sandbox_source(ScriptedSandbox)
    assert isinstance(source.open(), ScriptedSandbox)
    assert source == sandbox_source(ScriptedSandbox)
    assert sandbox_source(source) is source
    asyncio.run(source.check())


def test_the_local_one_has_to_be_asked_for_by_its_name() -> None:
    source = sandbox_source(LOCAL)

    async def run() -> ExecResult:
        await source.check()
        await source.start()
        async with source.open() as sandbox:
            assert isinstance(sandbox, UnsafeLocalSandbox)
            return await sandbox.exec("echo hi")

    assert asyncio.run(run()).stdout == "hi\n"


def test_one_sandbox_takes_the_same_settings() -> None:
    async def echo(sandbox: Any) -> str:
        async with vf.open_sandbox(sandbox) as box:
            return (await box.exec("echo hi")).stdout

    assert asyncio.run(echo(LOCAL)) == "hi\n"
    assert asyncio.run(echo(lambda: ScriptedSandbox(exec=["scripted"]))) == "scripted"
    with pytest.raises(vf.ConfigError, match="no setting 'memroy'"):
        asyncio.run(echo({"memroy": 1}))


def test_one_docker_sandbox_needs_no_pool(engine: Engine) -> None:
    async def run() -> set[str]:
        async with vf.open_sandbox({**SMALL, "pids": 60}) as box:
            assert (await box.python("1 + 1")).stdout == "2\n"
            return {item.name for item in await find(engine) if item.mine}

    assert len(asyncio.run(run())) == 1
    assert ours(engine) == set()


@pytest.mark.parametrize("address", ["unix:///no/such/docker.sock", "tcp://127.0.0.1:9"])
def test_without_an_engine_nothing_begins(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", address)
    traces: list[vf.Trace] = []
    model = vf.ScriptedModel(["Done."])
    with pytest.raises(vf.ConfigError, match="engine"):
        asyncio.run(vf.evaluate(CodeContest("docker"), model, tasks=2, on_trace=traces.append))
    assert traces == []


@pytest.mark.parametrize(
    ("settings", "said"),
    [({"image": "no-such:image"}, "no-such:image"), ({"runtime": "no-such"}, "no-such")],
)
def test_what_the_engine_lacks_is_found_before_anything_begins(
    engine: Engine, settings: dict[str, Any], said: str
) -> None:
    traces: list[vf.Trace] = []
    model = vf.ScriptedModel(["Done."])
    env = CodeContest(sandbox={**SMALL, **settings})
    with pytest.raises(vf.ConfigError, match=said):
        asyncio.run(vf.evaluate(env, model, tasks=2, on_trace=traces.append))
    assert traces == []
    assert ours(engine) == set()


def test_an_environment_asks_what_its_tools_need_once_each() -> None:
    said: list[str] = []

    class Source:
        def open(self, spec: vf.SandboxSpec | None = None) -> ScriptedSandbox:
            return ScriptedSandbox()

        def check_spec(self, spec: vf.SandboxSpec | None) -> None: ...

        async def prefetch(self, specs: Iterable[vf.SandboxSpec | None]) -> None: ...

        def stats(self) -> Sequence[HostStats]:
            return ()

        async def check(self) -> None:
            said.append("check")

        async def start(self) -> None:
            said.append("start")

    source: SandboxSource = Source()
    env = vf.Environment()
    env.tools = [vf.PythonTool(source), vf.FileTools(source)]
    model = vf.ScriptedModel(["Done."])
    task = vf.Task("t", "Go.")
    asyncio.run(vf.evaluate(env, model, tasks=[task]))
    assert said == ["check", "start"]
    asyncio.run(vf.evaluate(env, model, tasks=[task], check=False))
    assert said == ["check", "start"]


def test_the_pool_fills_ahead_and_is_gone_with_its_loop(engine: Engine) -> None:
    source = sandbox_source(SMALL)
    assert isinstance(source, DockerSource)

    async def run() -> set[str]:
        await source.start()
        host = (await source._all()).hosts[0]
        await host.filled(timeout=60)
        names = {item.name for item in await find(engine) if item.mine}
        async with source.open() as sandbox:
            assert (await sandbox.exec("id -u")).stdout != "0\n"
        return names

    for _ in range(2):  # each loop gets a pool of its own
        assert len(asyncio.run(run())) >= 2
        assert ours(engine) == set()
    assert source._hosts == {}


def test_a_container_that_is_killed_ends_the_rollout_without_a_reward(engine: Engine) -> None:
    env = CodeContest(sandbox=SMALL)
    task = next(iter(env.tasks("eval")))

    class Killer(vf.ScriptedModel):
        """Kills the container between its first and its second answer."""

        async def respond(self, conversation: Any, sampling: Any) -> Any:
            if conversation.turn == 1:
                for item in await find(engine):
                    if item.mine:
                        await engine.call("kill", item.name)
            return await super().respond(conversation, sampling)

    call = {"python": {"code": "1"}}
    trace = asyncio.run(vf.rollout(env, task, Killer([call, call, "Done."])))
    assert trace.error is not None
    assert trace.error.boundary == "sandbox"
    assert trace.reward is None
    assert trace.score is None
    assert ours(engine) == set()


def solver(messages: list[vf.Message]) -> Any:
    """Solve any problem of code-contest, after trying it out."""
    prompt = messages[1].content
    problem = next(p for p in problems("eval") if f" {p.signature}\n" in prompt)
    if len(messages) == 2:
        return {"python": {"code": f"{problem.solution}\n6 * 7"}}
    assert messages[-1].content == "42"
    return f"```python\n{problem.solution}\n```"


def test_more_episodes_than_the_pool_holds_run_at_once(engine: Engine) -> None:
    env = CodeContest(sandbox=SMALL)
    model = vf.ScriptedModel(solver)
    evaluation = asyncio.run(vf.evaluate(env, model, tasks=5, max_concurrent=5))
    assert [trace.error for trace in evaluation.traces] == [None] * 5
    assert evaluation.rewards == [1.0] * 5
    assert all(trace.timing["sandbox"] > 0 for trace in evaluation.traces)
    assert ours(engine) == set()


def test_no_episode_sees_another_ones_sandbox(engine: Engine) -> None:
    env = vf.Environment()
    env.tools = [vf.BashTool(sandbox_source(SMALL))]
    look = {"bash": {"command": "ls /workspace /tmp; echo mine > /workspace/a; echo b > /tmp/b"}}
    tasks = [vf.Task(str(n), "Go.") for n in range(3)]
    model = vf.ScriptedModel([look, "Done."])
    evaluation = asyncio.run(vf.evaluate(env, model, tasks=tasks, max_concurrent=2))
    said = {trace.messages[2].content for trace in evaluation.traces}
    assert said == {"/tmp:\n\n/workspace:"}


def test_the_sources_are_found_by_name(open_local: Callable[..., Any]) -> None:
    for name in ("code-contest", "math-python", "repo-fix"):
        env = vf.make(name, sandbox=open_local)
        assert env.id == name
        assert len(env.services) == 1

"""Bounds on containers are the run's: its worker processes divide them."""

from __future__ import annotations

import pytest

import vf
from vf.environments.sandboxes import most_containers
from vf.runtime.errors import ConfigError
from vf.runtime.share import Share
from vf.sandbox.bounds import Bounds
from vf.sandbox.hosting.source import sandbox_source

FILES = 1000


def test_the_parts_of_all_workers_are_the_bounds_of_the_run() -> None:
    whole = Bounds(pool=6, concurrency=8, max_containers=30, build_concurrency=4, image_disk=1e9)
    parts = [whole.divided(Share(index, 4), FILES) for index in range(4)]
    assert [part.max_containers for part in parts] == [8, 8, 7, 7]
    assert [part.pool for part in parts] == [2, 2, 1, 1]
    assert {(part.concurrency, part.build_concurrency) for part in parts} == {(2, 1)}
    assert {(part.pull, part.image_disk) for part in parts} == {("missing", 1e9)}
    assert whole.divided(Share(), FILES) == whole


def test_a_worker_makes_one_at_a_time_however_many_there_are() -> None:
    last = Bounds(pool=2, concurrency=2, max_containers=None).divided(Share(7, 8), FILES)
    assert (last.pool, last.concurrency, last.build_concurrency) == (0, 1, 1)


def test_no_more_are_made_than_open_files_allow() -> None:
    assert Bounds().divided(Share(), 50).max_containers == 50
    assert Bounds(max_containers=200).divided(Share(0, 2), 50).max_containers == 50


def test_fewer_containers_than_workers_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"sandbox.max_containers = 3 is less than the 4 worker"):
        Bounds(max_containers=3).divided(Share(0, 4), FILES)


def test_the_least_of_an_environments_bounds_holds_for_its_workers() -> None:
    env = vf.Environment()
    env.tools = [vf.PythonTool(sandbox_source("docker")), vf.FileTools(vf.ScriptedSandbox)]
    assert most_containers(env) is None
    few, many = (sandbox_source({"backend": "docker", "max_containers": n}) for n in (3, 9))
    env.tools = [vf.PythonTool(many), vf.BashTool(few)]
    assert most_containers(env) == 3

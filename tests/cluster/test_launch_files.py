"""Launch files do what they say: the scripts run in bash, beside programs that write down calls."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from tests.waiting import wait_until
from vf.cluster.capacity import Demand
from vf.cluster.fleet import Resources
from vf.cluster.launch_files import (
    Job,
    NodeSize,
    Pods,
    job_name,
    kuberay,
    nodes_needed,
    roles,
    slurm,
)
from vf.runtime.errors import ConfigError
from vf.runtime.toml import override

JOB = Job("a model in a place", "run", "", 1, NodeSize(0, 2, 16), False, ["all on CPUs"])


@pytest.mark.parametrize(
    ("demand", "gpus", "cpus", "nodes"),
    [
        ([("rank", 1, Resources(1, 1))], 8, 16, 1),
        ([("rank", 6, Resources(1, 1)), ("server", 2, Resources(1, 1))], 8, 16, 1),
        ([("rank", 6, Resources(1, 1)), ("server", 3, Resources(1, 1))], 8, 16, 2),
        # Two servers of four do not share a node with a rank of the eighth GPU.
        ([("rank", 1, Resources(1, 1)), ("server", 2, Resources(1, 4))], 8, 16, 2),
        ([("server", 3, Resources(1, 5))], 8, 16, 3),
        ([("rank", 1, Resources(1, 1)), ("worker", 40, Resources(1))], 8, 16, 3),
        ([("rank", 0, Resources(1, 9)), ("worker", 1, Resources(1))], 0, 1, 1),
    ],
)
def test_nodes_are_as_many_as_the_processes_fill(
    demand: Demand, gpus: int, cpus: int, nodes: int
) -> None:
    assert nodes_needed(demand, NodeSize(gpus, cpus, 64)) == nodes


def test_a_process_larger_than_a_node_is_refused_with_both_sizes() -> None:
    demand: Demand = [("rank", 1, Resources(1, 1)), ("server", 1, Resources(1, 16))]
    with pytest.raises(ConfigError, match=r"one inference server with 1 CPU, 16 GPUs: a node has "):
        nodes_needed(demand, NodeSize(8, 64, 512))


@pytest.mark.parametrize(
    ("needed", "said", "size"),
    [
        (1, (None, None, None), NodeSize(1, 16, 128, whole=False)),
        (0, (None, None, None), NodeSize(0, 16, 128, whole=False)),
        (6, (None, 12, 100), NodeSize(6, 12, 100, whole=False)),
        (8, (None, None, None), NodeSize(8, 64, 512)),
        (20, (None, None, None), NodeSize(8, 64, 512)),
        (1, (4, None, None), NodeSize(4, 32, 256)),
    ],
)
def test_a_small_run_asks_for_a_part_of_a_node(
    needed: int, said: tuple[int | None, ...], size: NodeSize
) -> None:
    assert NodeSize.of(needed, *said) == size


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("gpu-8x80gb_qwen3.1", "gpu-8x80gb-qwen3-1"),
        ("8 GPUs", "run-8-gpus"),
        ("x" * 80, "x" * 40),
        ("ä", "run"),
    ],
)
def test_a_name_is_one_that_kubernetes_takes(text: str, name: str) -> None:
    assert job_name(text) == name


def test_roles_are_named_in_words() -> None:
    demand: Demand = [
        ("rank", 2, Resources(4, 1)),
        ("worker", 0, Resources()),
        ("server", 1, Resources()),
    ]
    assert roles(demand) == [
        "2 trainer ranks, each with 4 CPUs, 1 GPU",
        "1 inference server, each with 1 CPU",
    ]


# The batch script, in bash


class Site:
    """A machine with SLURM's programs, `ray` and `vf-rl`, which write down how they are called."""

    def __init__(self, folder: Path) -> None:
        self.runs, self.calls = folder / "runs", folder / "calls"
        self.programs = folder / "a bin"
        self.programs.mkdir()
        self.calls.touch()
        self.jobs: list[subprocess.Popen[bytes]] = []
        self.program("scontrol", "")
        self.program("hostname", "echo 127.0.0.1 10.0.0.1")
        self.program("ray", "exec sleep 60")
        # On "both nodes": the second is started first.
        self.program(
            "srun",
            'while [ "${1#--}" != "$1" ]; do shift; done\n'
            "trap 'kill $(jobs -p)' TERM\n"
            'for node in 1 0; do SLURM_NODEID=$node SLURM_CPUS_ON_NODE=2 "$@" & done\nwait',
        )

    def program(self, name: str, text: str, before: str = "") -> None:
        """Make a program that writes its call down, and then does something."""
        file = self.programs / name
        call = f'calls="{self.calls}"\n{before}\necho "{name} $*" >>"$calls"'
        file.write_text(f"#!/bin/bash\n{call}\n{text}\n")
        file.chmod(0o755)

    def script(self, job: Job) -> str:
        return slurm(job, Path("/a b/run.toml"), self.runs, self.programs, Path("/"))

    def start(self, job: Job) -> subprocess.Popen[bytes]:
        started = subprocess.Popen(
            ["bash", "-c", self.script(job)],
            env={**os.environ, "SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "2"},
            start_new_session=True,
        )
        self.jobs.append(started)
        return started

    def called(self, name: str) -> list[str]:
        lines = self.calls.read_text().splitlines()
        return [line.partition(" ")[2] for line in lines if line.split(" ")[0] == name]

    def wait_for(self, name: str) -> str:
        return wait_until(lambda: self.called(name))[0]


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    yield made
    for job in made.jobs:  # as SLURM does, with what it left
        with contextlib.suppress(ProcessLookupError):
            os.killpg(job.pid, signal.SIGKILL)


def test_a_job_begins_a_run_of_its_own_with_the_settings_that_were_given(site: Site) -> None:
    site.program("vf-rl", "exit 3")
    job = replace(JOB, settings=['env.args={say = "it\'s $5"}', "max_steps=2"])
    assert site.start(job).wait(60) == 3
    assert site.called("vf-rl") == [
        f"/a b/run.toml --set run_name='run-7' --set output_dir={site.runs} "
        '--set env.args={say = "it\'s $5"} --set max_steps=2'
    ]
    assert site.called("scontrol") == []
    assert site.called("ray") == []


def test_a_name_of_digits_stays_a_name(site: Site) -> None:
    site.program("vf-rl", "exit 0")
    assert site.start(replace(JOB, run_name="2024")).wait(60) == 0
    _, setting, _ = site.called("vf-rl")[0].split(" --set ")
    override(found := dict[str, object](), setting, lambda key: [key])
    assert found == {"run_name": "2024"}


def test_a_job_that_was_queued_again_resumes_its_run(site: Site) -> None:
    site.program("vf-rl", "exit 0")
    (site.runs / "run-7").mkdir(parents=True)
    (site.runs / "run-7" / "config.toml").touch()
    assert site.start(JOB).wait(60) == 0
    assert site.called("vf-rl") == [f"--resume {site.runs}/run-7"]


@pytest.mark.parametrize(
    ("number", "requeued"), [(signal.SIGUSR1, ["requeue 7"]), (signal.SIGTERM, [])]
)
def test_a_run_ends_in_order_and_is_queued_again_only_before_the_time_limit(
    site: Site, number: signal.Signals, requeued: list[str]
) -> None:
    site.program("vf-rl", "sleep 60 & wait", "trap 'echo ended >>\"$calls\"; exit 143' TERM")
    job = site.start(JOB)
    site.wait_for("vf-rl")
    job.send_signal(number)
    assert job.wait(60) == 143
    assert "ended" in site.calls.read_text().splitlines()
    assert site.called("scontrol") == requeued


def test_a_run_that_ends_well_just_before_the_time_limit_is_not_queued_again(site: Site) -> None:
    site.program("vf-rl", "sleep 60 & wait", "trap 'exit 0' TERM")
    job = site.start(JOB)
    site.wait_for("vf-rl")
    job.send_signal(signal.SIGUSR1)
    assert job.wait(60) == 0
    assert site.called("scontrol") == []


def test_several_nodes_have_a_ray_each_which_ends_with_the_run(site: Site) -> None:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 6379 + 7))
        listening.listen()
        site.program("vf-rl", 'until (($(grep -c ^ray "$calls") == 2)); do sleep 0.01; done')
        job = replace(JOB, nodes=2, ray=True, node=NodeSize(4, 32, 256))
        assert site.start(job).wait(60) == 0
    common = f"--block --disable-usage-stats --num-cpus 2 --num-gpus 4 --memory {256 * 2**30}"
    assert sorted(site.called("ray")) == [
        f"start --address 127.0.0.1:6386 {common}",
        f"start --head --node-ip-address 127.0.0.1 --port 6386 {common}",
    ]
    [call] = site.called("vf-rl")
    ray = "--set cluster.backend=ray --set cluster.address=127.0.0.1:6386 --set cluster.wait=300"
    assert call.endswith(ray)
    assert "ACCELERATE_USE_CPU" not in site.script(job)
    without = replace(job, node=NodeSize(0, 32, 256))
    assert "export ACCELERATE_USE_CPU=true" in site.script(without)


def directives(text: str) -> list[str]:
    return [line.removeprefix("#SBATCH ") for line in text.splitlines() if line.startswith("#SBA")]


def test_whole_nodes_are_asked_for_whole_and_a_part_by_its_size(site: Site) -> None:
    whole = directives(site.script(replace(JOB, nodes=3, ray=True, node=NodeSize(8, 64, 512))))
    assert {"--nodes=3", "--gpus-per-node=8", "--exclusive", "--mem=0", "--requeue"} <= {*whole}
    part = directives(site.script(replace(JOB, node=NodeSize(1, 16, 128, whole=False))))
    assert {"--nodes=1", "--gpus-per-node=1", "--cpus-per-task=16", "--mem=128G"} <= {*part}
    assert "--exclusive" not in part
    assert "--no-kill" not in {*whole, *part}, "or no node takes the place of one that is lost"
    without = directives(site.script(JOB))
    assert not any(line.startswith("--gpus") for line in without)


# The manifest

TOML = 'model = "tiny"\n\n[env]\nid = "x" # "quoted": and, {odd}\n'
PODS = Pods("registry/image:1", "2.50.0", {"run.toml": TOML, "my_env.py": "  indented\n"})


def documents(job: Job, pods: Pods = PODS) -> Sequence[dict[str, object]]:
    return list(yaml.safe_load_all(kuberay(job, pods)))


def test_a_manifest_has_the_files_and_as_many_pods_as_nodes() -> None:
    config, rayjob = documents(replace(JOB, nodes=3, node=NodeSize(8, 64, 512)))
    assert config["kind"] == "ConfigMap"
    data = config["data"]
    assert isinstance(data, dict)
    assert {name: data[name] for name in PODS.files} == PODS.files
    spec = rayjob["spec"]
    assert isinstance(spec, dict)
    assert spec["entrypoint"] == "bash /etc/vf-rl/start.sh"
    cluster = spec["rayClusterSpec"]
    assert cluster["rayVersion"] == "2.50.0"
    [workers] = cluster["workerGroupSpecs"]
    assert workers["replicas"] == workers["minReplicas"] == workers["maxReplicas"] == 2
    assert workers["template"] == cluster["headGroupSpec"]["template"]
    [container] = workers["template"]["spec"]["containers"]
    size = {"cpu": "64", "memory": "512Gi", "nvidia.com/gpu": "8"}
    assert container["resources"] == {"limits": size, "requests": size}
    mounted = {each["name"] for each in container["volumeMounts"]}
    assert mounted == {each["name"] for each in workers["template"]["spec"]["volumes"]}


def test_one_node_is_the_head_alone_and_may_have_no_gpu() -> None:
    _, rayjob = documents(JOB, replace(PODS, ray_version=""))
    spec = rayjob["spec"]
    assert isinstance(spec, dict)
    cluster = spec["rayClusterSpec"]
    assert not {"workerGroupSpecs", "rayVersion"} & cluster.keys()
    [container] = cluster["headGroupSpec"]["template"]["spec"]["containers"]
    assert container["resources"]["limits"] == {"cpu": "2", "memory": "16Gi"}


def test_a_retry_resumes_the_run(site: Site, tmp_path: Path) -> None:
    site.program("vf-rl", "exit 0")
    job, pods = (
        replace(JOB, settings=["env.args={a = 1}"]),
        replace(PODS, settings=["env.id=/x.py"]),
    )
    config, _ = documents(job, pods)
    data = config["data"]
    assert isinstance(data, dict)
    script = str(data["start.sh"]).replace("/runs", str(tmp_path))
    environ = {**os.environ, "PATH": f"{site.programs}:{os.environ['PATH']}"}
    ray = "--set cluster.backend=ray --set cluster.address=auto --set cluster.wait=300"
    settings = f"--set env.args={{a = 1}} --set env.id=/x.py {ray}"
    subprocess.run(["bash", "-c", script], env=environ, check=True)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.toml").touch()
    subprocess.run(["bash", "-c", script], env=environ, check=True)
    assert site.called("vf-rl") == [
        f"/etc/vf-rl/run.toml --set run_name='run' --set output_dir={tmp_path} {settings}",
        f"--resume {tmp_path}/run {settings}",
    ]

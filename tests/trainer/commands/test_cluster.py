"""``vf-rl cluster`` as a user types it."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.trainer.conftest import VfRl

TOML = 'model = "tiny"\nenv.id = "calculator"\n'
SERVED = TOML + 'inference.engine = "vllm"\n'


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path / "My run.toml"


def test_slurm_gets_a_script_that_bash_takes(written: Path, vf_rl: VfRl) -> None:
    written.write_text(SERVED + "trainer.gpus = 12\n")
    code, out, err = vf_rl("cluster", "slurm", str(written), "--set", 'env.args={a = "b c"}')
    assert (code, err) == (0, "")
    assert "#SBATCH --job-name=my-run\n#SBATCH --nodes=2\n" in out
    assert "#   12 trainer ranks, each with 1 CPU, 1 GPU\n" in out
    assert f"config={shlex.quote(str(written))}\nruns={written.parent}/runs\n" in out
    assert "run+=(--set 'env.args={a = \"b c\"}')" in out
    subprocess.run(["bash", "-n"], input=out, text=True, check=True)


@pytest.mark.parametrize(
    ("settings", "options", "words"),
    [
        ("", [], "#   all on one GPU\n"),
        ("", ["--gpus-per-node", "0"], "#   all on CPUs\n"),
        ('inference.engine = "vllm"\n', [], "#   GPUs: of 2, 0 train in 1 process, 1 serve 1 copy"),
        (
            'inference.engine = "vllm"\ntrainer.gpus = 6\n',
            ["--gpus-per-node", "8"],
            "#   GPUs: of 8, 0–5 train in 6 processes, 6–7 serve 2 copies of the model",
        ),
        (
            'inference = { engine = "vllm", gpus = [0, 1] }\ntrainer.gpus = [7]\n',
            [],
            "#SBATCH --gpus-per-node=8\n",
        ),
    ],
)
def test_on_one_node_of_slurm_nothing_needs_ray(
    settings: str,
    options: list[str],
    words: str,
    written: Path,
    vf_rl: VfRl,
) -> None:
    written.write_text(TOML + settings)
    code, out, err = vf_rl("cluster", "slurm", str(written), *options)
    assert (code, err) == (0, "")
    assert words in out
    assert "ray start" not in out
    assert "cluster.backend" not in out


def test_one_node_has_a_ray_where_the_toml_asks_for_one(written: Path, vf_rl: VfRl) -> None:
    written.write_text(TOML + 'cluster.backend = "ray"\n')
    _, out, _ = vf_rl("cluster", "slurm", str(written))
    assert "ray start" in out
    assert "#   1 trainer rank, each with 1 CPU, 1 GPU\n" in out


def test_workers_are_counted_for_the_nodes_and_not_for_this_machine(
    written: Path, vf_rl: VfRl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1}, raising=False)
    written.write_text(SERVED + "trainer.args.max_concurrent = 256\n")
    _, out, _ = vf_rl("cluster", "kuberay", str(written))
    assert "#   8 rollout workers, each with 1 CPU\n" in out
    _, out, _ = vf_rl("cluster", "slurm", str(written), "--set", "trainer.gpus=12")
    assert "#   8 rollout workers, each with 1 CPU\n" in out
    # Two workers of sixteen cores do not fit beside a rank of fourteen and a server.
    tight = ["--gpus-per-node", "2", "--cpus-per-node", "16", "--set", "cluster.rank.cpus=14"]
    tight += ["--set", "cluster.backend=local"]
    _, out, _ = vf_rl("cluster", "slurm", str(written), *tight)
    assert "#SBATCH --nodes=2\n" in out


def test_a_run_with_a_name_keeps_it(written: Path, vf_rl: VfRl) -> None:
    written.write_text(TOML)
    named = ["--set", "run_name=first_try", "--set", "output_dir=/shared/runs"]
    _, out, _ = vf_rl("cluster", "slurm", str(written), *named)
    assert "--job-name=first-try\n" in out
    assert "runs=/shared/runs\nname=first_try\n" in out
    assert "run+=" not in out


def test_pods_get_the_files_that_the_toml_names(written: Path, vf_rl: VfRl) -> None:
    loss = written.parent / "losses" / "my loss.py"
    loss.parent.mkdir()
    loss.write_text("def loss(): ...\n")
    (written.parent / "my_env.py").write_text("environment = 1\n")
    settings = 'loss_fn = "custom"\nimport_path = "losses/my loss.py:loss"\n'
    toml = TOML.replace("calculator", "my_env.py:environment") + f"[trainer.args]\n{settings}"
    written.write_text(toml)
    code, out, err = vf_rl("cluster", "kuberay", str(written), "--image", "me/vf-rl:1")
    assert (code, err) == (0, "")
    config, job = yaml.safe_load_all(out)
    data = dict(config["data"])
    script = data.pop("start.sh")
    assert data == {
        "My-run.toml": toml,
        "my_env.py": "environment = 1\n",
        "my-loss.py": "def loss(): ...\n",
    }
    assert "--set env.id=/etc/vf-rl/my_env.py:environment" in script
    assert "--set trainer.args.import_path=/etc/vf-rl/my-loss.py:loss" in script
    head = job["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]
    assert head["containers"][0]["image"] == "me/vf-rl:1"


LOSS = '[trainer.args]\nloss_fn = "custom"\nimport_path = "losses/mine.py:loss"\n'


@pytest.mark.parametrize(
    ("toml", "files", "argv", "words"),
    [
        (
            SERVED + "inference.args.tensor_parallel_size = 16\n",
            {},
            "slurm {} --gpus-per-node 8",
            "no node has room for one inference server with 1 CPU, 16 GPUs",
        ),
        (
            SERVED + "trainer.gpus = [0, 1]\n",
            {},
            "kuberay {}",
            "trainer.gpus = [0, 1] numbers the devices of one machine",
        ),
        (
            TOML.replace("calculator", "mine.py:environment") + LOSS,
            {"losses/mine.py": "def loss(): ...\n", "mine.py": "environment = 1\n"},
            "kuberay {}",
            "names another file, too, that pods would get as mine.py",
        ),
        (
            TOML.replace("calculator", "my_env.py"),
            {"my_env.py": "#" * 10**6},
            "kuberay {}",
            "My-run.toml, my_env.py are 1,000,036 bytes together, and a ConfigMap holds",
        ),
    ],
)
def test_what_cannot_run_is_reported_before_anything_is_printed(
    toml: str, files: dict[str, str], argv: str, words: str, written: Path, vf_rl: VfRl
) -> None:
    (written.parent / "losses").mkdir()
    for name, text in files.items():
        (written.parent / name).write_text(text)
    written.write_text(toml)
    code, out, err = vf_rl("cluster", *(word.format(written) for word in argv.split()))
    assert (code, out) == (2, "")
    assert words in err

"""``vf-rl doctor`` as a user types it, and every shipped TOML for a GPU on the GPU it names."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.trainer.conftest import VfRl
from tests.trainer.qwen3 import SIZES, qwen3_folder

CONFIGS = Path(__file__).parents[3] / "configs"
MODELS = {path: tomllib.loads(path.read_text())["model"] for path in sorted(CONFIGS.glob("*.toml"))}
FOR_GPUS = [path for path, model in MODELS.items() if model.startswith("Qwen/")]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    place = tmp_path_factory.mktemp("models")
    return {f"Qwen/{name}": qwen3_folder(name, place) for name in SIZES}


@pytest.fixture(autouse=True)
def at_the_top(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(CONFIGS.parent)


@pytest.mark.slow
@pytest.mark.parametrize("path", FOR_GPUS, ids=lambda path: path.stem)
def test_a_shipped_toml_fits_the_gpus_that_its_first_lines_name(
    path: Path, models: dict[str, Path], vf_rl: VfRl
) -> None:
    head = path.read_text().split("\nmodel")[0].replace("\n#", "")
    size = re.search(r"GPUs? of (\d+) GB", head)
    assert size is not None, f"{path.name} does not say which GPU it is for"
    assert "Not run on such a" in head
    command = [str(path.relative_to(CONFIGS.parent)), "--set", f"model={models[MODELS[path]]}"]
    code, out, err = vf_rl("doctor", *command, "--gpu-memory", size[1])
    assert (code, err) == (0, ""), out
    assert "GiB" in out
    # A sixth of the GPU does not do.
    assert vf_rl("doctor", *command, "--gpu-memory", str(int(size[1]) / 6))[0] == 1


@pytest.mark.slow
@pytest.mark.parametrize("path", [each for each in FOR_GPUS if each.stem.startswith("gpu-")])
def test_the_page_about_gpus_has_the_figures(
    path: Path, models: dict[str, Path], vf_rl: VfRl
) -> None:
    lines = (CONFIGS.parent / "docs" / "gpus.md").read_text().splitlines()
    [row] = [line for line in lines if f"| `{path.stem}` |" in line]
    [gigabytes] = re.findall(r"(\d+) GB \|", row)
    settings = ["--set", f"model={models[MODELS[path]]}", "--gpu-memory", gigabytes]
    _, out, _ = vf_rl("doctor", str(path), *settings)
    words = re.sub(r"\s+", " ", out)
    figures = re.findall(r"about ([\d.]+) GiB", words) + re.findall(r"holds (\d+) contexts", words)
    assert figures
    assert [figure for figure in figures if f"| {figure}" not in row] == []


def test_there_are_tomls_for_one_small_one_large_and_eight_gpus() -> None:
    names = " ".join(path.stem for path in FOR_GPUS)
    assert {"24gb", "80gb", "8x80gb"} <= set(re.findall(r"gpu-(\w+)-", names))


@pytest.mark.slow
def test_a_machine_is_described_in_80_columns() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "vf.trainer.commands.main", "doctor"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    lines = [line.rstrip() for line in done.stdout.splitlines()]
    for name in ("Python", "CPU", "disk", "packages", "torch", "vLLM", "containers"):
        assert [line.split()[1] for line in lines if line[:1].strip()].count(name) == 1
    # Only a command that is to be copied is as long as it is.
    assert all(len(line) <= 80 for line in lines if not line.startswith(" " * 22))


def test_a_toml_for_this_machine_can_run(vf_rl: VfRl) -> None:
    code, out, _ = vf_rl("doctor", "configs/quickstart.toml")
    assert code == 0, out
    assert "configs/quickstart.toml can run" in out
    assert "key-value" in out


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (["inference.args.max_requests=10000000"], "lower inference.args.max_requests"),
        (["inference.engine=vllm", "inference.python=/no/python"], "there is no such program"),
        (["env.id=calculater"], "'calculater'"),
        (["model=/no/model"], "there is no such folder"),
    ],
)
def test_what_a_toml_needs_and_is_missing_is_an_error(
    settings: list[str], words: str, vf_rl: VfRl
) -> None:
    overrides = [part for each in settings for part in ("--set", each)]
    code, out, _ = vf_rl("doctor", "configs/quickstart.toml", *overrides)
    assert code == 1
    assert words in re.sub(r"\s+", " ", out)


def test_gpus_that_are_missing_are_an_error(vf_rl: VfRl) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    code, out, _ = vf_rl("doctor", "configs/quickstart.toml", "--set", "trainer.gpus=[0]")
    assert code == 1
    assert "torch finds no CUDA device" in re.sub(r"\s+", " ", out)

"""A machine's GPUs are split between trainer and servers by one line, or by none."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest

from tests.trainer.configs import configured
from vf.inference.settings import VllmSettings
from vf.runtime.errors import ConfigError
from vf.trainer.commands.main import main
from vf.trainer.processes.devices import narrow_devices
from vf.trainer.processes.gpus import as_given, count_gpus, note_given, overrides, split_gpus
from vf.trainer.processes.launch import GIVEN_GPUS, OUTER_DEVICES
from vf.trainer.processes.placement import gpus_of_server
from vf.trainer.settings.config import Config
from vf.trainer.settings.load_config import load_config

FSDP = str(Path(__file__).parents[3] / "configs" / "accelerate" / "fsdp2.yaml")  # 2 processes
ALL = [*range(8)]


def served(
    inference: dict[str, Any] | None = None, trainer: dict[str, Any] | None = None
) -> Config:
    return configured(inference={"engine": "vllm", **(inference or {})}, trainer=trainer or {})


@pytest.mark.parametrize(
    ("inference", "trainer", "training", "serving", "why"),
    [
        ({}, {}, ALL[:4], ALL[4:], "half of them by default; trainer.gpus = 6"),
        ({}, {"gpus": 6}, ALL[:6], ALL[6:], "the servers have what trainer.gpus leaves"),
        ({}, {"gpus": 4}, ALL[:4], ALL[4:], "what trainer.gpus leaves"),
        ({}, {"gpus": [7, 5]}, [7, 5], [0, 1, 2, 3, 4, 6], "0, 1, 2, 3, 4, 6 serve 6 copies"),
        ({"gpus": [0, 1]}, {}, ALL[2:], [0, 1], "the trainer has what inference.gpus leaves"),
        ({"gpus": [1]}, {"gpus": [0]}, [0], [1], "1 serve 1 copy of the model, 6 idle: as"),
        ({}, {"accelerate_config": FSDP}, ALL[:2], ALL[2:], "trainer.accelerate_config says"),
        ({"gpus": [0]}, {"accelerate_config": FSDP}, [1, 2], [0], "5 idle"),
        ({"gpus_per_replica": 2}, {"accelerate_config": FSDP}, [0, 1], [6, 7], "4 idle"),
        # A copy of the model takes several.
        ({"args": {"tensor_parallel_size": 4}}, {}, ALL[:4], ALL[4:], "serve 1 copy"),
        ({"args": {"tensor-parallel-size": 2}}, {"gpus": 3}, ALL[:3], ALL[4:], "1 idle"),
        (
            {"args": {"data_parallel_size": 2}},
            {},
            ALL[:6],
            ALL[6:],
            "data_parallel_size = 2 asks for",
        ),
        ({"args": {"pipeline_parallel_size": 3}}, {}, ALL[:2], ALL[2:], "serve 2 copies"),
        # Several servers have equal parts.
        ({"replicas": 3}, {}, ALL[:2], ALL[2:], "serve 6 copies"),
        ({"replicas": 2}, {"gpus": 3}, ALL[:3], ALL[4:], "1 idle: the servers have what"),
        ({"replicas": 2, "gpus_per_replica": 1}, {}, ALL[:6], ALL[6:], "as many to serve"),
        ({"replicas": 2, "gpus_per_replica": 1}, {"gpus": 4}, ALL[:4], ALL[6:], "2 idle"),
        ({"gpus": 2}, {}, ALL[:6], ALL[6:], "inference.gpus_per_replica = 2 asks for as many"),
        ({"gpus": 4, "replicas": 2}, {}, ALL[:4], ALL[4:], "serve 4 copies"),
    ],
)
def test_what_one_side_does_not_name_the_other_has(
    inference: dict[str, Any],
    trainer: dict[str, Any],
    training: list[int],
    serving: list[int],
    why: str,
) -> None:
    filled, said = split_gpus(served(inference, trainer), 8)
    assert filled.trainer.devices == training
    assert getattr(filled.inference, "gpus", None) == serving
    assert why in said
    assert said.startswith("of 8, ")


@pytest.mark.parametrize(("total", "training"), [(2, [0]), (3, [0]), (4, [0, 1]), (5, [0, 1])])
def test_without_a_word_the_servers_have_half_rounded_up(total: int, training: list[int]) -> None:
    filled, _ = split_gpus(served(), total)
    assert filled.trainer.devices == training
    assert getattr(filled.inference, "gpus", None) == [*range(len(training), total)]


@pytest.mark.parametrize(
    ("inference", "trainer", "total", "why"),
    [
        ({}, {}, 0, ""),
        ({}, {}, 1, ""),
        ({}, {"gpus": 8}, 8, "of 8, none are left for a server alone: it has the trainer's"),
        ({"args": {"tensor_parallel_size": 8}}, {}, 8, "it has the trainer's"),
        ({"args": {"tensor_parallel_size": 4}}, {"gpus": 6}, 8, "it has the trainer's"),
        ({"sleep": True}, {}, 8, ""),  # they take turns, on the same ones
        ({"base_url": "http://127.0.0.1:1/v1"}, {}, 8, "of 8, 1 trains: trainer.gpus says how"),
        ({"base_urls": ["http://a/v1", "http://b/v1"]}, {}, 8, "of 8, 1 trains"),
        ({"engine": "embedded"}, {}, 8, 'and inference.engine = "vllm" lets the others serve'),
        ({"engine": "embedded"}, {"gpus": 8}, 8, ""),
    ],
)
def test_where_nothing_can_be_split_nothing_changes(
    inference: dict[str, Any], trainer: dict[str, Any], total: int, why: str
) -> None:
    config = served(inference, trainer)
    filled, said = split_gpus(config, total)
    assert filled == config
    assert said == why or (why and why in said)


@pytest.mark.parametrize(
    ("inference", "trainer", "words"),
    [
        (
            {"replicas": 4, "gpus_per_replica": 2},
            {},
            "inference.gpus_per_replica = 2 with inference.replicas = 4 asks for 8 GPUs for the "
            "servers, and 7 of 8 are left",
        ),
        ({"gpus": 3}, {"gpus": 6}, "inference.gpus_per_replica = 3 asks for 3 GPUs"),
        ({"replicas": 3}, {"gpus": 6}, "inference.replicas = 3 asks for 3 GPUs"),
        ({"args": {"data_parallel_size": 9}}, {}, "data_parallel_size = 9 asks for 9 GPUs"),
        ({"gpus": [9]}, {}, "inference.gpus = [9] names device 9, but there are 8, numbered from"),
        ({}, {"gpus": [0, 8]}, "trainer.gpus = [0, 8] names device 8, but there are 8"),
        ({}, {"gpus": 9}, "trainer.gpus = 9 names device 8, but there are 8"),
        ({"args": {"tensor_parallel_size": "two"}}, {}, "tensor_parallel_size = 'two' is not a"),
        (
            {"gpus_per_replica": 3, "args": {"tensor_parallel_size": 2}},
            {},
            "inference.gpus_per_replica = 3, but the server would use 2",
        ),
        ({"replicas": 9, "sleep": True}, {}, "inference.replicas = 9 asks for 9 GPUs for the serv"),
    ],
)
def test_servers_that_do_not_fit_are_an_error(
    inference: dict[str, Any], trainer: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=re.escape(words)):
        split_gpus(served(inference, trainer), 8)


@pytest.mark.parametrize(
    ("inference", "serving"),
    [
        ({"replicas": 2}, ALL),
        ({"replicas": 3}, ALL[:6]),
        ({"gpus_per_replica": 2}, ALL[:2]),
        ({"replicas": 2, "gpus_per_replica": 2}, ALL[:4]),
        ({"replicas": 2, "gpus": [6, 7]}, [6, 7]),
        ({}, None),
    ],
)
def test_servers_that_sleep_divide_all_gpus(
    inference: dict[str, Any], serving: list[int] | None
) -> None:
    filled, said = split_gpus(served(inference | {"sleep": True}), 8)
    assert getattr(filled.inference, "gpus", None) == serving
    assert filled.trainer.gpus is None, "it shares them"
    assert ("which sleep while the model is trained" in said) == (serving not in (None, [6, 7]))


@pytest.mark.parametrize(
    ("inference", "cpu", "each"),
    [
        ({}, False, 1),
        ({}, True, 0),
        ({"args": {"tensor_parallel_size": 2}}, False, 2),
        ({"args": {"data_parallel_size": 3}, "replicas": 2}, False, 3),
        ({"args": {"data_parallel_size": 3, "tensor_parallel_size": 2}}, False, 6),
        ({"gpus_per_replica": 2}, True, 2),
    ],
)
def test_a_cluster_gives_each_server_what_its_sizes_ask_for(
    inference: dict[str, Any], cpu: bool, each: int
) -> None:
    assert gpus_of_server(VllmSettings(**inference), cpu=cpu) == each


def test_the_processes_of_a_launcher_leave_the_split_as_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert split_gpus(served(), 8) == (served(), "")


def test_on_a_cluster_nothing_is_numbered() -> None:
    config = served(trainer={"gpus": 6})
    cluster = config.cluster.model_copy(update={"backend": "ray"})
    config = config.model_copy(update={"cluster": cluster})
    assert split_gpus(config, 8) == (config, "")


def test_the_split_travels_to_other_processes_as_settings(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text('model = "tiny"\nenv.id = "calculator"\ninference.engine = "vllm"\n')
    given, _ = load_config(file)
    filled, _ = split_gpus(given, 4)
    assert overrides(given, filled) == ["trainer.gpus=[0, 1]", "inference.gpus=[2, 3]"]
    assert load_config(file, overrides(given, filled))[0] == filled
    assert overrides(filled, filled) == []


@pytest.mark.parametrize("launched", [False, True])
def test_what_the_split_filled_in_is_not_written_down(
    launched: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = served({"gpus": [7]}, {"gpus": 6})
    for each in (served(), served({"engine": "embedded"}), given):
        filled, _ = split_gpus(each, 8)
        monkeypatch.setenv(GIVEN_GPUS, "")
        note_given(each)
        with monkeypatch.context() as patch:
            if launched:
                patch.setenv("WORLD_SIZE", "4")
            written = as_given(filled, filled if launched else each)
        assert written == each
        assert overrides(written, filled) == overrides(each, filled)


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine on which NVIDIA's driver lists three GPUs."""
    program = tmp_path / "nvidia-smi"
    program.write_text(
        '#!/bin/sh\n[ "$1" = --list-gpus ] && for n in 0 1 2; do echo "GPU $n: L4"; done\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    for name in ("CUDA_VISIBLE_DEVICES", OUTER_DEVICES):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("driver")
def test_gpus_are_counted_before_the_trainer_s_are_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    # What narrowing writes is undone at the end.
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv(OUTER_DEVICES, "")
    monkeypatch.delenv(OUTER_DEVICES)
    assert count_gpus() == 0  # empty: all are hidden
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4, 2")
    assert count_gpus() == 2
    narrow_devices(served(trainer={"gpus": 1}))
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "4"
    assert count_gpus() == 2
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    monkeypatch.delenv(OUTER_DEVICES)
    assert count_gpus() == 3
    narrow_devices(served(trainer={"gpus": 1}))
    assert count_gpus() == 3


def test_a_machine_without_a_driver_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert count_gpus() == 0


def test_the_doctor_explains_the_split_of_a_machine_that_is_elsewhere(
    capsys: pytest.CaptureFixture[str],
) -> None:
    toml = str(Path(FSDP).parents[1] / "quickstart-vllm.toml")
    assert main(["doctor", toml, "--gpu-memory", "80", "--gpus", "8"]) == 0
    said = re.sub(r"\s+", " ", capsys.readouterr().out)
    assert "of 8, 0–3 train in 4 processes, 4–7 serve 4 copies of the model: half of them" in said
    assert "on each of its GPUs" in said

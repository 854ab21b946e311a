"""Metrics at TensorBoard, W&B and trackio: what their own libraries read back."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from vf.runtime.errors import ConfigError
from vf.trainer.run.metrics import Metrics
from vf.trainer.run.run_folder import RunFolder
from vf.trainer.settings.load_config import parse_config
from vf.trainer.settings.write_config import without_secrets
from vf.trainer.watching.trackers import check_trackers, open_trackers

RAW: dict[str, Any] = {
    "model": "tiny",
    "env": {"id": "calculator", "args": {"judge": {"api_key": "hush-1", "api_key_env": "KEY"}}},
    "inference": {
        "engine": "vllm",
        "env": {"HF_TOKEN": "hush-2"},
        "args": {"max_num_seqs": 8, "api-key": "hush-3"},
    },
}

# What a run does: it opens the trackers, gives them the lines of some steps, and closes them.
RUN = """
import json, logging, sys
from pathlib import Path
from vf.trainer.run.run_folder import RunFolder
from vf.trainer.settings.load_config import parse_config
from vf.trainer.watching.trackers import open_trackers
logging.basicConfig()
names, path, step, steps, raw = json.load(sys.stdin)
folder = RunFolder(Path(path))
tracker = open_trackers(names, folder, parse_config(raw)[0], step=step)
for step in range(*steps):
    tracker.log({"step": step, "reward/mean": step / 8, "eval/reward/mean": 0.5})
"""
CLOSE = "\ntracker.close()\ntracker.close()\n"


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    made = RunFolder(tmp_path / "the-run")
    made.path.mkdir()
    return made


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """Return an environment in which nothing of this user's accounts is known."""
    kept = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
    return kept | {
        "HOME": str(tmp_path),
        "HF_HOME": str(tmp_path / "hf"),
        "HF_HUB_OFFLINE": "1",
        "TRACKIO_DIR": str(tmp_path / "trackio"),
        "WANDB_MODE": "offline",
    }


def run(script: str, argument: object, environ: Mapping[str, str]) -> str:
    """Run a script to completion; returns what it wrote."""
    done = subprocess.run(
        [sys.executable, "-c", script],
        input=json.dumps(argument),
        env=environ,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def line(step: int, **more: float) -> Metrics:
    return {"step": step, "reward/mean": step / 8, **more}


def scalars(folder: RunFolder, tag: str) -> list[tuple[int, float]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder.path / "tensorboard"))
    events.Reload()
    return [(event.step, event.value) for event in events.Scalars(tag)]


def test_tensorboard_has_every_step_once_also_after_a_kill(folder: RunFolder) -> None:
    config, _ = parse_config(RAW)
    killed = open_trackers(["tensorboard"], folder, config, step=0)
    for step in range(5):
        killed.log(line(step))
    resumed = open_trackers(["tensorboard"], folder, config, step=2)  # the first was never closed
    for step in range(3, 6):
        resumed.log(line(step, **{"eval/reward/mean": 0.75}))
    assert scalars(folder, "reward/mean") == [(step, step / 8) for step in range(6)]
    assert scalars(folder, "eval/reward/mean") == [(step, 0.75) for step in range(3, 6)]
    resumed.close()
    killed.close()
    held = b"".join(file.read_bytes() for file in (folder.path / "tensorboard").iterdir())
    assert b'model = "tiny"' in held
    assert b"hush" not in held


def wandb_records(folder: RunFolder) -> Iterator[Any]:
    """Yield the records of W&B's offline files: protobuf in LevelDB's log format."""
    from wandb.proto.wandb_internal_pb2 import Record

    for file in sorted(folder.path.glob("wandb/offline-run-*/*.wandb")):
        data, place, whole = file.read_bytes(), 7, b""
        while place + 7 <= len(data):
            if 32768 - place % 32768 < 7:  # too little of the block is left for a header
                place += 32768 - place % 32768
                continue
            _, length, kind = struct.unpack_from("<IHB", data, place)
            whole += data[place + 7 : place + 7 + length]
            place += 7 + length
            if kind in (1, 4):  # whole, or the last part
                record = Record()
                record.ParseFromString(whole)
                yield record
                whole = b""


@pytest.mark.slow
def test_wandb_and_trackio_resume_the_same_run(folder: RunFolder, environ: Any) -> None:
    names = ["wandb", "trackio"]
    first = [names, str(folder.path), 0, [0, 5], RAW]
    run(RUN + CLOSE, first, environ)
    said = run(RUN + CLOSE, [names, str(folder.path), 2, [3, 7], RAW], environ)
    assert "failed" not in said

    records = list(wandb_records(folder))
    runs = [record.run for record in records if record.HasField("run")]
    assert len({each.run_id for each in runs}) == 1
    assert {(each.project, each.display_name) for each in runs} == {("vf-rl", "the-run")}
    told = [
        {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in h.item}
        for h in (record.history for record in records if record.HasField("history"))
    ]
    assert [(t["_step"], t["reward/mean"]) for t in told] == [(s, s / 8) for s in range(7)]
    assert {t["eval/reward/mean"] for t in told} == {0.5}
    assert "step" not in told[0]
    held = b"".join(file.read_bytes() for file in folder.path.glob("wandb/**/*") if file.is_file())
    assert b"calculator" in held
    assert b"hush" not in held
    assert not any(record.HasField("output_raw") for record in records)
    assert not any(record.environment.HasField("git") for record in records)

    read = "from trackio.sqlite_storage import SQLiteStorage as S; import json, sys\n"
    read += "runs = S.get_runs('vf-rl'); print(json.dumps([runs, S.get_logs('vf-rl', runs[0])]))"
    runs_there, logs = json.loads(run(read, None, environ).splitlines()[-1])
    assert len(runs_there) == 1
    assert runs_there[0].startswith("the-run-")
    assert [(log["step"], log["reward/mean"]) for log in logs] == [(s, s / 8) for s in range(7)]


@pytest.mark.slow
def test_a_tracker_that_fails_is_reported_once_and_stops_nothing(
    folder: RunFolder, environ: Any
) -> None:
    # The disk is full from the first step on, and for the event file alone: a limit that holds
    # during imports cuts the bytecode files that Python writes.
    full = "import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n"
    script = RUN.replace("for step in", full + "for step in")
    after = "print('steps went on to', step)\n"
    argument = [["tensorboard"], str(folder.path), 0, [0, 300], RAW]
    said = run(script + after + CLOSE, argument, environ | {"PYTHONDONTWRITEBYTECODE": "1"})
    assert "steps went on to 299" in said
    assert said.count("tensorboard failed (") == 1
    assert "File too large" in said


@pytest.mark.slow
def test_what_does_not_start_says_what_to_do(folder: RunFolder, environ: Any) -> None:
    online = {**environ, "WANDB_MODE": "online", "WANDB_SILENT": "true"}
    caught = RUN.replace("tracker = ", "try:\n    tracker = ").split("for step")[0]
    caught += "except Exception as error:\n    print(type(error).__name__, error)\n"
    said = run(caught, [["tensorboard", "wandb"], str(folder.path), 0, [0, 1], RAW], online)
    assert "ConfigError trainer.args.report_to: wandb does not start: No API key" in said
    assert "WANDB_MODE=offline" in said


def test_a_missing_library_is_named_before_the_run(
    folder: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_trackers(["tensorboard", "wandb", "trackio"])
    config, _ = parse_config(RAW)
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ConfigError, match=r"'wandb'.*pip install 'vf-rl\[track\]'"):
        open_trackers(["tensorboard", "wandb"], folder, config, step=0)
    assert list(folder.path.iterdir()) == []
    (tmp_path / "vf_only_a_folder").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match="not installed"):
        check_trackers(["vf_only_a_folder"])


def test_without_names_nothing_is_written(folder: RunFolder) -> None:
    config, _ = parse_config(RAW)
    tracker = open_trackers([], folder, config, step=0)
    tracker.log(line(1))
    tracker.close()
    assert list(folder.path.iterdir()) == []


def test_secrets_are_hidden_and_the_rest_is_not() -> None:
    config, _ = parse_config(RAW)
    shown = without_secrets(config).model_dump(mode="json")
    assert "hush" not in json.dumps(shown)
    assert shown["env"]["args"]["judge"]["api_key_env"] == "KEY"
    assert shown["inference"]["args"]["max_num_seqs"] == 8
    assert config.env[0].args["judge"]["api_key"] == "hush-1"

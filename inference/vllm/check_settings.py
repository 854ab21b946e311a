"""What can be found wrong with the settings of vLLM servers before any is started."""

from __future__ import annotations

import os
from collections.abc import Mapping

from vf.inference.ports import choose_port
from vf.inference.settings import VllmSettings
from vf.inference.vllm.launch import check_args, drafts, launcher, server_env
from vf.inference.vllm.server_args import each_server, parallel_args
from vf.runtime.api_keys import read_key
from vf.runtime.errors import ConfigError

MOST_TEMPERATURE = 2.0  # of vLLM; its ranges of the other sampling settings are ours


def check_settings(
    settings: VllmSettings, environ: Mapping[str, str] = os.environ, *, here: bool = True
) -> None:
    """Find out, before anything is started, what the settings get wrong on this machine.

    Args:
        settings: ``[inference]``.
        environ: The environment that the server's is made from.
        here: Whether the servers will be on this machine.

    Raises:
        ConfigError: If vLLM cannot be found, a flag is vf-rl's, the port is in use, a GPU or key
            is missing, or the GPUs do not fit the parallel sizes.
    """
    check_args(settings.args)
    api_key(settings)
    for server in each_server(settings):
        parallel_args(server)
        if server.gpus is None and server.gpus_per_replica is not None:
            parallel_args(server.model_copy(update={"gpus": [*range(server.gpus_per_replica)]}))
        if here and not server.base_url:
            launcher(server)
            choose_port(server.host, server.port)
            server_env(server, environ, lora=False, cpu=False)


def check_sampling(
    settings: VllmSettings,
    temperatures: Mapping[str, float | None],
    min_ps: Mapping[str, float | None],
) -> None:
    """Check that vLLM samples as the run's requests will ask: else it refuses the first of them.

    Args:
        settings: ``[inference]``.
        temperatures: By the name of the setting, None if it is not set.
        min_ps: The same for min-p.

    Raises:
        ConfigError: If a temperature is too high, or min-p is set beside speculative decoding.
    """
    for name, temperature in temperatures.items():
        if temperature is not None and temperature > MOST_TEMPERATURE:
            raise ConfigError(
                f"{name} = {temperature:g}, but vLLM samples at {MOST_TEMPERATURE:g} at most; "
                "lower it, or use the embedded engine"
            )
    for name, min_p in min_ps.items():
        if min_p and drafts(settings.args):
            raise ConfigError(
                f"{name} = {min_p:g}, but vLLM has no min_p with speculative decoding; set it to "
                "0, or leave speculative_config out of inference.args"
            )


def check_divided(settings: VllmSettings, *, cpu: bool) -> None:
    """Check that each of several servers has GPUs of its own.

    Args:
        settings: ``[inference]``, of a run whose servers are on this machine.
        cpu: Whether there is no GPU.

    Raises:
        ConfigError: If each would use all of them.
    """
    if cpu or settings.urls or settings.gpus is not None:
        return
    if settings.replicas > 1 or settings.gpus_per_replica is not None:
        count = settings.replicas * (settings.gpus_per_replica or 1)
        size = f", gpus_per_replica = {settings.gpus_per_replica}" * bool(settings.gpus_per_replica)
        raise ConfigError(
            f"inference.replicas = {settings.replicas}{size}: the GPUs were not divided between "
            f"the servers, of which each would use all; name {count} or more with inference.gpus"
        )


def api_key(settings: VllmSettings) -> str | None:
    """Return the key for servers that are running already, if they need one.

    Raises:
        ConfigError: If the environment variable that is to hold it is not set.
    """
    if settings.api_key_env is None:
        return None
    key = read_key(settings.api_key_env, "inference.api_key_env: ")
    if not key:
        raise ConfigError(
            f"inference.api_key_env names {settings.api_key_env}, which is not set; export it"
        )
    return key

"""What ``trainer.args.router_replay`` asks of a server."""

from __future__ import annotations

from vf.inference.settings import VllmSettings
from vf.runtime.errors import ConfigError

RUNNER = "VLLM_USE_V2_MODEL_RUNNER"


def returning_experts(settings: VllmSettings, *, cpu: bool) -> VllmSettings:
    """Return a server's settings with which it says which experts it used.

    A server that is already running must have been started so; its first answer shows that.

    Args:
        settings: ``[inference]``.
        cpu: Whether the server runs on a CPU.

    Raises:
        ConfigError: It does: vLLM's Model Runner V2, which alone records experts, needs Triton.
    """
    if settings.urls:
        return settings
    if cpu:
        raise ConfigError(
            "trainer.args.router_replay: vLLM records experts in its Model Runner V2 alone, which "
            'needs a GPU; on a CPU, set inference.engine = "embedded", or router_replay = "off"'
        )
    told = {"args": {"enable_return_routed_experts": True} | settings.args}
    return settings.model_copy(update=told | {"env": {RUNNER: "1"} | settings.env})

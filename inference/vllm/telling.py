"""What a server has to tell about a token: the experts that it used, what filters left."""

from __future__ import annotations

from collections.abc import Iterable

from vf.inference.settings import VllmSettings
from vf.inference.supports import TIES
from vf.runtime.errors import ConfigError

RUNNER = "VLLM_USE_V2_MODEL_RUNNER"
VLLM_MOST_LOGPROBS = 20  # log-probabilities of a token that vLLM tells at most by itself


def returning_experts(settings: VllmSettings, *, cpu: bool) -> VllmSettings:
    """Return a server's settings with which it says which experts it used.

    A server that is already running must have been started so; its first answer shows that.

    Args:
        settings: ``[inference]``.
        cpu: Whether the server runs on a CPU.

    Raises:
        ConfigError: If it does: vLLM's Model Runner V2, which alone records experts, needs Triton.
    """
    if settings.urls:
        return settings
    if cpu:
        raise ConfigError(
            "trainer.args.router_replay: vLLM records experts in its Model Runner V2 alone, which "
            'needs a GPU; on a CPU, set inference.engine = "embedded", or router_replay = "off"'
        )
    update = {"args": {"enable_return_routed_experts": True} | settings.args}
    return settings.model_copy(update=update | {"env": {RUNNER: "1"} | settings.env})


def returning_supports(settings: VllmSettings, top_ks: Iterable[int]) -> VllmSettings:
    """Return a server's settings with which it tells as many log-probabilities as ``top_k`` needs.

    A server that is already running must have been started so; it refuses a request otherwise.

    Args:
        settings: ``[inference]``.
        top_ks: The ``top_k`` of all environments; 0 is none.
    """
    most = max(top_ks, default=0)
    if settings.urls or most + TIES <= VLLM_MOST_LOGPROBS or not most:
        return settings
    limit = {"max_logprobs": most + TIES}
    return settings.model_copy(update={"args": limit | settings.args})

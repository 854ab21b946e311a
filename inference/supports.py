"""The tokens that a vLLM server's filters left, read from its log-probabilities.

A token that was filtered out has log-probability −∞ among those of what was sampled
(``--logprobs-mode processed_logprobs``). So where ``top_k`` bounds how many are left, that many
log-probabilities show the whole support, in every version of vLLM.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from vf.inference.model import Sampling
from vf.runtime.errors import ModelError

TIES = 8  # tokens that may be as likely as the k-th, and are kept too; bfloat16 has such
FILTERED = -9999.0  # how vLLM writes −∞
MISSING = 0.01  # of the probability, beyond which a support is not the whole one


def logprobs_to_ask(sampling: Sampling) -> int:
    """Return how many likeliest tokens a vLLM server is asked for; 0 unless all can be told."""
    filters = sampling.top_k > 0 and sampling.temperature > 0  # a greedy choice is not filtered
    return sampling.top_k + TIES if sampling.trained and filters else 0


def read_supports(tokens: Iterable[Mapping[int, float]]) -> list[list[int]]:
    """Return the ascending ids that each token was sampled from.

    Args:
        tokens: For each sampled token the log-probabilities, in nats, of the likeliest ids and of
            its own.

    Raises:
        ModelError: If the ids of a token have together another probability than 1: the server tells
            the model's log-probabilities, not those of what was sampled.
    """
    supports = []
    for logprobs in tokens:
        kept = {token: value for token, value in logprobs.items() if value > FILTERED}
        share = math.fsum(map(math.exp, kept.values()))
        if abs(share - 1.0) > MISSING:
            raise ModelError(
                f"top_k: the server's {len(kept)} likeliest tokens have together a probability of "
                f"{share:.3f}, and they are all that can be sampled. Start vLLM with "
                "--logprobs-mode processed_logprobs"
            )
        supports.append(sorted(kept))
    return supports

"""Whether generation and training overlap, if the settings leave it open."""

from __future__ import annotations

from vf.trainer.settings.config import Config

# Losses whose ratio no engine makes large: it is bounded, there is none, or it is the user's own.
_OWN_BOUNDS = ("cispo", "dro", "custom")


def streams(config: Config) -> bool:
    """Return whether groups are trained on while others are still under way."""
    args = config.args
    if args.stream_minibatches is not None:
        return args.stream_minibatches
    if config.trainer.backend == "tinker":  # a token's weight is known with the last group
        return False
    if args.deterministic:  # gradients are added up in the order of the groups
        return False
    return config.inference.generates_while_training and args.kl_penalty_type != "advantage"


def steps_ahead(config: Config) -> int:
    """Return how many steps generation may run ahead of training.

    Where nothing is generated meanwhile, old tokens would buy nothing. And where it does, timing
    decides which weights sample a token, which ``deterministic`` rules out.
    """
    args = config.args
    if args.max_steps_off_policy is not None:
        return args.max_steps_off_policy
    return int(config.inference.generates_while_training and not args.deterministic)


def bounded(config: Config) -> Config:
    """Return the config with bounded weights for tokens of older weights, unless it says otherwise.

    Where generation runs ahead of training, the ratio of learner and sampler has no bound, and a
    single token could carry a step.
    """
    args = config.args
    if args.importance_sampling_mode is not None or args.loss_fn in _OWN_BOUNDS:
        return config
    if not steps_ahead(config):
        return config
    return config.with_args(importance_sampling_mode="token_truncate")

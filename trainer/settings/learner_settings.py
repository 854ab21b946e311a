"""The settings of a :class:`~vf.trainer.learner.Learner`: those of a run that are not the loop's.

Importing this module loads no torch.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from vf.runtime.errors import ConfigError, did_you_mean
from vf.trainer.settings.config import Config, TrainerArgs
from vf.trainer.settings.load_config import SYNONYMS, parse_config
from vf.trainer.settings.loop_args import LoopArgs

log = logging.getLogger(__name__)

_OF_ROLLOUTS = "is an argument of vf.rollouts"
_OF_SAMPLES = "is an argument of vf.samples"
_OF_RUNS = "is for runs of `vf-rl`: in your own loop it is up to you"
# Settings of a run that are an argument of another function here, or a matter of the loop.
ELSEWHERE = {
    **dict.fromkeys(LoopArgs.model_fields, _OF_RUNS),
    **dict.fromkeys(
        ["run_name", "output_dir", "save_steps", "save_minutes", "report_to"], _OF_RUNS
    ),
    **dict.fromkeys(["lr_scheduler_type", "warmup_steps"], _OF_RUNS),
    **dict.fromkeys(["overlong_buffer", "overlong_penalty", "teacher_privileged"], _OF_RUNS),
    "learning_rate": "is an argument of Learner.optim_step",
    "advantage": "is the argument `advantages` of vf.samples",
    **dict.fromkeys(["credit", "credit_discount", "mask_truncated"], _OF_SAMPLES),
    **dict.fromkeys(["rollouts_per_example", "max_concurrent", "max_error_rate"], _OF_ROLLOUTS),
}
OF_TRAINER = ("backend", "tinker")  # of [trainer] itself
KNOWN = [name for name in TrainerArgs.model_fields if name not in ELSEWHERE]


def learner_config(
    model: str, inference: str | Mapping[str, Any] | None, settings: Mapping[str, Any]
) -> Config:
    """Return the config of a learner.

    Args:
        model: A local folder or a hub name; ``tiny`` is the model that ships with the library.
        inference: ``embedded`` (the default), ``vllm``, the URL of a server, or ``[inference]``.
        settings: The settings of ``[trainer.args]``, and ``backend`` and ``tinker`` of
            ``[trainer]``.

    Raises:
        ConfigError: If a name or a value is wrong, or a setting is not the learner's.
    """
    trainer = {name: settings[name] for name in OF_TRAINER if name in settings}
    settings = {name: value for name, value in settings.items() if name not in trainer}
    for name in settings:
        ours = SYNONYMS.get(name, name)
        if ours in ELSEWHERE:
            raise ConfigError(f"vf.Learner: {name} {ELSEWHERE[ours]}")
        if ours not in KNOWN:
            raise ConfigError(
                f"vf.Learner: there is no setting {name!r}.{did_you_mean(name, KNOWN)} Its "
                "settings are those of [trainer.args], see docs/reference.md"
            )
    table: dict[str, Any]
    if inference is None or isinstance(inference, str):
        is_url = inference is not None and inference.startswith(("http://", "https://"))
        table = {} if inference is None else {"engine": inference}
        table = {"engine": "vllm", "base_url": inference} if is_url else table
    else:
        table = dict(inference)
    env = {"id": "your own loop"}  # a learner has none, and nothing of it reads this
    args = dict(settings)
    config, notes = parse_config(
        {"model": model, "env": env, "inference": table, "trainer": {"args": args} | trainer}
    )
    for note in notes:
        log.warning("%s", note)
    return config

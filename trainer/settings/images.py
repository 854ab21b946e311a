"""Which settings go with training on images."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from vf.inference.settings import STRICT, VllmSettings

_NEEDED = (
    "training on images needs the whole model in each trainer process, and rollouts in the first"
)


class ImageArgs(BaseModel):
    """The part of ``[trainer.args]`` about images."""

    model_config = STRICT

    images: bool = False
    """Load the vision tower, and train on tasks with images. Sequences are not packed then, and one
    with images is a micro-batch of its own."""
    train_vision: bool = False
    """Train the vision tower, too, which otherwise stays as it was loaded."""


def check_images(config: Any) -> None:
    """Refuse settings under which no image could be trained on.

    Args:
        config: A run's :class:`~vf.trainer.settings.config.Config`.

    Raises:
        ValueError: If there is one; names all of them.
    """
    args = config.args
    if not args.images:
        if args.train_vision:
            raise ValueError(
                "trainer.args.train_vision = true trains the vision tower, which is loaded only "
                "with images = true: set both"
            )
        return
    served = config.inference if isinstance(config.inference, VllmSettings) else None
    tower_adapted = served is not None and args.train_vision and args.use_lora
    tower_kept = served is not None and args.train_vision and served.keep_cache
    wrong = [
        (
            tower_adapted,
            "train_vision must be false or use_lora false (vLLM applies no adapter to the vision "
            "tower)",
        ),
        (tower_kept, "train_vision or inference.keep_cache must be false"),
        (config.rollouts.workers not in (0, "auto"), "rollouts.workers must be 0"),
        (config.cluster.backend != "local", 'cluster.backend must be "local"'),
        (config.trainer.accelerate_config is not None, "accelerate_config must be left out"),
        (args.deterministic, "deterministic must be false"),
        (args.load_in_4bit, "load_in_4bit must be false"),
        (args.router_replay != "off", 'router_replay must be "off"'),
        (args.teacher_model is not None, "teacher_model must be left out"),
        (args.observation_loss_coef > 0, "observation_loss_coef must be 0"),
        (args.long_sequences == "truncate", 'long_sequences must not be "truncate"'),
    ]
    problems = [problem for holds, problem in wrong if holds]
    if problems:
        raise ValueError(f"trainer.args.images = true, but {'; '.join(problems)}: {_NEEDED}")

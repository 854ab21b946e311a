"""Models that are held beside the policy and only answer: the reference of a KL, and a teacher."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from vf.inference.model_files import load_module, resolve_model
from vf.inference.rotary import fix_rotary
from vf.runtime.errors import ConfigError
from vf.trainer.learning.batches.overlong import longest_taught
from vf.trainer.learning.batches.top_tokens import likeliest_asked
from vf.trainer.learning.model.dropout import disable_dropout
from vf.trainer.learning.model.forward import Forward
from vf.trainer.learning.model.precision import compute_dtype, exact_ends
from vf.trainer.learning.model.reference import (
    AdapterReference,
    FrozenReference,
    Reference,
    check_vocabulary,
)
from vf.trainer.learning.sharding.copies import Copies
from vf.trainer.settings.config import TrainerArgs


@dataclass(frozen=True, slots=True)
class Frozen:
    """Loads what is held beside a policy, as the trainer processes hold the policy itself.

    Attributes:
        args: ``[trainer.args]``.
        policy: The module that learns.
        sharding: How the trainer processes hold models.
        device: This process's.
        empty: Make models on the meta device, without reading weights: another process sends them.
    """

    args: TrainerArgs
    policy: Any
    sharding: Copies
    device: torch.device
    empty: bool

    def reference(self) -> tuple[Reference | None, Any]:
        """Return the reference that the settings ask for, and its model if it has one of its own.

        Raises:
            ConfigError: If it cannot be loaded, or does not go with the policy.
        """
        args, rate = self.args, self.args.reference_update_rate
        if not args.kl_penalty_coef:
            return None, None
        if args.reference_model is None:
            return AdapterReference(self.policy, self.sharding, rate), None
        dtype = torch.float32 if rate < 1.0 else compute_dtype(args)
        setting = "trainer.args.reference_model"
        model = self._load(args.reference_model, setting, dtype, args.max_seq_len)
        follows = args.reference_update_steps is not None
        rate_or_none = rate if follows else None
        return FrozenReference(model, self.policy, self.sharding, rate=rate_or_none), model

    def teacher(self, way: Callable[[Any, int], Forward]) -> Forward | None:
        """Return the way to the teacher's, if the settings name one that is not behind a server.

        Args:
            way: Returns that of a model, for sequences of at most so many tokens.

        Raises:
            ConfigError: If it cannot be loaded, or its vocabulary is of another size.
        """
        args, setting = self.args, "trainer.args.teacher_model"
        if args.teacher_model is None or args.teacher_base_url is not None:
            return None
        longest = longest_taught(args)
        model = self._load(args.teacher_model, setting, compute_dtype(args), longest)
        check_vocabulary(model, self.policy, setting)
        forward = way(model.requires_grad_(False).eval(), longest)
        forward.likeliest = likeliest_asked(args)
        return forward

    def _load(self, name: str, setting: str, dtype: torch.dtype, longest: int) -> Any:
        options: dict[str, Any] = {"device_map": "meta"} if self.empty else {}
        model = load_module(name, dtype, setting, sees=self.args.images, **options)
        fix_rotary(model, longest)
        disable_dropout(model)
        if dtype != torch.float32:
            exact_ends(model)
        self.sharding.spread(model, self.device, trained=False)
        return model


def check_tokenizer(args: TrainerArgs, tokenizer: Any) -> None:
    """Check that a teacher that is loaded here numbers tokens as the policy does.

    Args:
        args: ``[trainer.args]``.
        tokenizer: The policy's.

    Raises:
        ConfigError: If the teacher numbers tokens otherwise, or has no tokenizer.
    """
    if args.teacher_model is None or args.teacher_base_url is not None:
        return
    from transformers import AutoTokenizer

    setting = f"trainer.args.teacher_model = {args.teacher_model!r}"
    try:
        theirs = AutoTokenizer.from_pretrained(resolve_model(args.teacher_model)).get_vocab()
    except (OSError, ValueError) as error:
        raise ConfigError(f"{setting}: its tokenizer cannot be read: {error}") from error
    if theirs != (ours := tokenizer.get_vocab()):
        different = len(dict.items(theirs) ^ ours.items())
        raise ConfigError(
            f"{setting} has another tokenizer than model: {different:,} entries of their "
            "vocabularies differ; a teacher must share the policy's tokenizer"
        )

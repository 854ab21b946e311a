"""Layers that carry a state along the sequence, in a model that runs on packed tokens.

Linear attention, state-space layers and short convolutions read the tokens before one as they
stand, whichever sequence those are of. So these modules alone get sequences as rows: the packed
tokens are gathered into rows, and the results go back to where the tokens stand. Rows are padded
behind their ends, where a causal layer does not look. What sequences share is computed once for
each of them here, and once for all in the rest of the model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from vf.trainer.learning.attention.prefix_tree import PrefixTree
from vf.trainer.learning.model.head import layers_of

# What transformers calls layers that carry a state, in a config's ``layer_types``.
STATEFUL = frozenset({"linear_attention", "conv"})


class RowsApart:
    """The modules of one model that carry a state along the sequence.

    Args:
        model: A causal language model of transformers'.

    Attributes:
        mixers: The modules.
        tree: How the tokens of the next forward pass are packed; its backward pass must be done
            when this changes. None if the pass is on rows already.
    """

    def __init__(self, model: Any) -> None:
        self.mixers = find_mixers(model)
        self.tree: PrefixTree | None = None

    @contextmanager
    def active(self) -> Iterator[None]:
        """Give the modules rows until the block ends."""
        with ExitStack() as stack:
            for mixer in self.mixers:
                before = vars(mixer).get("forward")
                mixer.forward = self._by_rows(mixer.forward)
                if before is None:
                    stack.callback(delattr, mixer, "forward")
                else:
                    stack.callback(setattr, mixer, "forward", before)
            yield

    def _by_rows(self, run: Callable[..., Any]) -> Callable[..., Any]:
        def forward(*args: Any, **options: Any) -> Any:
            tree = self.tree
            if tree is None:
                return run(*args, **options)
            options = {name: given for name, given in options.items() if name[:3] != "vf_"}
            results = []
            for rows in tree.rows_apart:
                given = _spread((args, options), rows, len(tree))
                results.append(run(*given[0], **given[1]))
            return _gather(results, tree)

        return forward


def find_mixers(model: Any) -> list[Any]:
    """Return the modules that carry a state along the sequence, none within another.

    Nearly all begin with a causal convolution over the tokens; of the others, the config says which
    layers they are in. A module that is missing here shows in the self-test.

    Args:
        model: A causal language model of transformers'.
    """
    kinds = getattr(model.config.get_text_config(), "layer_types", None) or ()
    mixers: dict[str, Any] = {}
    for name, module in layers_of(model).named_modules():
        within = any(name.startswith(f"{outer}.") for outer in mixers)
        if not within and (_convolves(module) or _is_linear_attention(module, kinds)):
            mixers[name] = module
    return list(mixers.values())


def _convolves(module: torch.nn.Module) -> bool:
    return any(isinstance(child, torch.nn.Conv1d) for child in module.children())


def _is_linear_attention(module: torch.nn.Module, kinds: Any) -> bool:
    """Return whether a module has a place in a cache, and that is for a state."""
    own, *parts = (getattr(part, "layer_idx", None) for part in module.modules())
    if own is None or own >= len(kinds) or any(part is not None for part in parts):
        return False
    return kinds[own] in STATEFUL


def _spread(given: Any, rows: torch.Tensor, tokens: int) -> Any:
    """Return arguments with rows ``[B, L, ...]`` in place of packed tokens ``[1, T, ...]``."""
    if isinstance(given, torch.Tensor):
        return given[0][rows] if given.shape[:2] == (1, tokens) else given
    if isinstance(given, dict):
        return {name: _spread(value, rows, tokens) for name, value in given.items()}
    if type(given) in (tuple, list):
        return type(given)(_spread(value, rows, tokens) for value in given)
    return given


def _gather(results: list[Any], tree: PrefixTree) -> Any:
    """Return results with packed tokens in place of rows; of anything else, the first group's."""
    first = results[0]
    if isinstance(first, torch.Tensor):
        if first.shape[:2] != tree.rows_apart[0].shape:
            return first
        return torch.cat([result.flatten(0, 1) for result in results])[tree.homes][None]
    if type(first) in (tuple, list):
        return type(first)(_gather(list(parts), tree) for parts in zip(*results, strict=True))
    return first

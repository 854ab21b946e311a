"""The policy's parameters, read and written whole, however they are sharded."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from vf.inference.composite import original_names
from vf.inference.model_files import save_module
from vf.runtime.errors import ConfigError
from vf.trainer.learning.sharding.master_weights import Masters
from vf.trainer.learning.sharding.ranks import Ranks, together


class Weights:
    """The trained module's parameters.

    Where they are spread, what reads them is done by all ranks at once, when rank 0 calls it.

    Args:
        model: The module as :func:`~vf.trainer.learning.model.building.build_model` made it, on the
            CPU. Its parameters become rank 0's, and it is moved to the device of this process.
            Where :attr:`~vf.trainer.learning.sharding.copies.Copies.one_loads`, other ranks' are on
            the meta device.
        ranks: The trainer processes.
        adapter: Whether an adapter is what is trained.
        offload: Keep what the optimizer steps in the host's memory.

    Attributes:
        masters: What the optimizer steps, where that is not the module's own.
        fingerprint: A short hash of what is not trained: another base model has another. Empty on
            a rank that got its weights from rank 0.

    Raises:
        ConfigError: If another rank has another model, or the launcher's settings do not fit it.
        TrainingError: If another trainer process is gone.
    """

    def __init__(self, model: Any, ranks: Ranks, *, adapter: bool, offload: bool = False) -> None:
        self.model = model
        self.ranks = ranks
        self._adapter = adapter
        given = ranks.rank and ranks.sharding.one_loads
        self.fingerprint = "" if given else fingerprint(model)
        ranks.agree(self.fingerprint, model)
        if not ranks.sharding.together:
            model.to(ranks.accelerator.device)
        ranks.align([parameter for parameter in model.parameters() if parameter.requires_grad])
        ranks.sharding.spread(self.module, ranks.accelerator.device)
        self.masters = Masters(model, offload=offload)

    @property
    def module(self) -> Any:
        """The model as it was loaded, with the adapter inside its layers if there is one."""
        return self.model.get_base_model() if self._adapter else self.model

    @property
    def trained(self) -> list[torch.nn.Parameter]:
        """What the optimizer steps, as this process holds it."""
        return [master for _, master in self.masters.named()]

    def snapshot(self) -> dict[str, torch.Tensor]:
        """Return a copy of what :meth:`save` writes, on the CPU; tied tensors stay tied."""
        if self._adapter:
            return self.served_state()
        state, first = self.state(), dict[int, str]()
        for name, tensor in self.module.state_dict(keep_vars=True).items():
            if name in state:
                state[name] = state[first.setdefault(id(tensor), name)]
        return state

    def save(
        self,
        folder: Path,
        *,
        untied: bool = False,
        state: dict[str, torch.Tensor] | None = None,
    ) -> None:
        """Save the adapter or the model in Hugging Face's format.

        Args:
            folder: The folder to write to.
            untied: Write tied tensors of a whole model as if they were several.
            state: The result of :meth:`snapshot`, to be written instead of the present weights.
                Nothing else is read then that training changes, so another thread may write.
        """
        sharding = self.ranks.sharding
        if state is None and (untied or sharding.together):
            state = self.state() if untied else self.snapshot()
        if self._adapter:
            self.model.save_pretrained(folder, state_dict=state)
            return
        dtype = sharding.dtype if sharding.together else None
        save_module(self.model, folder, state, dtype=dtype, untied=untied)

    @together("weights.state")
    def state(self) -> dict[str, torch.Tensor]:
        """Return the module's tensors by name, on the CPU, as it computes with them.

        Tied ones are there twice. Nothing is kept on the other ranks, which only take part.
        """
        sharding = self.ranks.sharding
        return self._gathered(
            (name, (sharding.served if tensor.requires_grad else sharding.whole)(tensor))
            for name, tensor in self.module.state_dict(keep_vars=True).items()
        )

    def named_tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the module's parameters, on this process's device, as it computes with them.

        They have the names and shapes of the checkpoint that the module is from.
        """
        served, named = self.ranks.sharding.served, original_names(self.module)
        with self.ranks.together("weights.named_tensors"):
            left = self.module.named_parameters()
            try:
                for name, parameter in left:
                    yield from named({name: served(parameter)}).items()
            finally:  # if the reader stops early, the other ranks continue
                for _, parameter in left:
                    served(parameter)

    @together("weights.served_state")
    def served_state(self) -> dict[str, torch.Tensor]:
        """Return the trained parameters by name, on the CPU, as the model computes with them.

        Nothing is kept on the other ranks.
        """
        return self._gathered(
            (name, self.ranks.sharding.served(parameter))
            for name, parameter in self.model.named_parameters()
            if parameter.requires_grad
        )

    @together("weights.trainable_state")
    def trainable_state(self) -> dict[str, torch.Tensor]:
        """Return what the optimizer steps by the parameters' names, float32, on the CPU.

        Nothing is kept on the other ranks.
        """
        return self._gathered(
            (name, self.ranks.sharding.whole(master)) for name, master in self.masters.named()
        )

    def _gathered(self, tensors: Iterable[tuple[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
        """Return copies on the CPU, on rank 0; other ranks gather too, and keep nothing."""
        keep = not self.ranks.rank
        return {name: tensor.to("cpu", copy=True) for name, tensor in tensors if keep}

    def load_trainable_state(self, state: Mapping[str, torch.Tensor]) -> None:
        """Copy saved parameters back in place, so that an engine on this module sees them.

        Every rank does so for itself.

        Raises:
            ConfigError: If the names or shapes are those of another model.
        """
        self.check_shapes({name: tensor.shape for name, tensor in state.items()})
        for name, parameter in self.masters.named():
            self.ranks.sharding.put(parameter, state[name])
        self.masters.write()

    def check_shapes(self, saved: Mapping[str, Sequence[int]]) -> None:
        """See that a checkpoint's parameters are those that are trained here.

        Args:
            saved: Their shapes by name.

        Raises:
            ConfigError: If the names or shapes are those of another model.
        """
        mine = {name: list(self.ranks.sharding.shape(p)) for name, p in self.masters.named()}
        other = {name: list(shape) for name, shape in saved.items()}
        for name in sorted({*mine, *other}):
            if mine.get(name) != other.get(name):
                there, here = (shapes.get(name, "missing") for shapes in (other, mine))
                raise ConfigError(
                    "the checkpoint's trained parameters are those of another model or adapter: "
                    f"{name} is {there} there and {here} here"
                )


def fingerprint(model: Any) -> str:
    """Return a short hash of a model's frozen parameters: their names, shapes and first values."""
    digest = hashlib.sha256()
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            head = parameter.detach().reshape(-1)[:64].float().cpu()
            digest.update(f"{name} {tuple(parameter.shape)}".encode())
            digest.update(head.numpy().tobytes())
    return digest.hexdigest()[:16]

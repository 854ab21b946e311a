"""Weights from GPU to GPU, through vLLM's own weight-transfer API."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from typing import Any

from vf.inference.engine import Weights
from vf.inference.ports import choose_port
from vf.inference.serving import Serving
from vf.inference.vllm.admin import Admin
from vf.inference.vllm.publishers import swapped

# What the server must be started with.
SERVER_ARGS = {"weight_transfer_config": {"backend": "nccl"}}


def available() -> bool:
    """Return whether weights can be sent by NCCL from this process: its side is vLLM's code."""
    return importlib.util.find_spec("vllm") is not None


class NcclPublisher:
    """Broadcasts all parameters to the server's workers, packed into large buffers.

    The rendezvous, the packing and the requests are vLLM's (``vllm.distributed.weight_transfer``).

    Args:
        admin: The server.
        serving: Told what is served.
        weights: The model.
    """

    def __init__(self, admin: Admin, serving: Serving, weights: Weights) -> None:
        self._admin = admin
        self._serving = serving
        self._weights = weights
        self._transfer: Any = None

    def publish(self, version: int) -> None:
        """Send the weights as they are now; see :class:`.publishers.Publisher`."""
        if self._transfer is None:
            self._transfer = self._connect()
        with swapped(self._admin, version):
            self._transfer.send_weights()
            self._serving.switch(self._serving.served.model, version)

    def restore(self) -> None:
        """Meet a server that has just started, and send it the newest weights."""
        self._transfer = None
        self.publish(self._serving.served.version)

    def _connect(self) -> Any:
        from vllm.distributed.weight_transfer.base import ParamMeta, WeightSource
        from vllm.distributed.weight_transfer.clients import HTTPVLLMWeightSyncClient
        from vllm.distributed.weight_transfer.nccl_engine import (
            NCCLTrainerInitInfo,
            NCCLTrainerWeightTransferEngine,
        )

        weights = self._weights

        class Source(WeightSource):  # type: ignore[misc, unused-ignore]
            def metadata(self) -> list[Any]:
                return [
                    ParamMeta(name=name, dtype=tensor.dtype, shape=tuple(tensor.shape))
                    for name, tensor in weights.named_tensors()
                ]

            def __iter__(self) -> Iterator[tuple[str, Any]]:
                return weights.named_tensors()

        workers = int(self._admin.get("/get_world_size")["world_size"])
        return NCCLTrainerWeightTransferEngine.trainer_init(
            NCCLTrainerInitInfo(
                master_address="127.0.0.1",
                master_port=choose_port("127.0.0.1", 0),
                world_size=workers + 1,
            ),
            client=HTTPVLLMWeightSyncClient(self._admin.root),
            source=Source(),
        )

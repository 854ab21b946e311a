"""Weights from GPU to GPU, by vLLM's weight-transfer API."""

from __future__ import annotations

from concurrent.futures import FIRST_EXCEPTION, wait
from contextlib import suppress
from typing import Any

from vf.inference.engine import Weights
from vf.inference.ports import choose_port
from vf.inference.serving import Serving
from vf.inference.vllm.admin import Admin, swapped
from vf.runtime.errors import EngineError, VfError
from vf.runtime.uninterruptible import in_daemon_thread

JOIN_SECONDS = 360.0  # a worker waits 300 s for the trainer
BUFFER_BYTES = 2**30  # tensors are sent in buffers that are flushed beyond this size
BUFFERS = 2  # one is filled while the other is sent


class NcclPublisher:
    """Broadcasts all parameters to the server's workers, packed into large buffers.

    The trainer's side of vLLM's transfer engine changes with every release, so this is one level
    below it: the process group, the communicator and the packed broadcast that the engine itself
    is made of, and the server's routes. ``scripts/check_vllm_calls.py`` holds each of these calls
    against the supported versions.

    Args:
        admin: The server.
        serving: Told what is served.
        weights: The model, on this process's GPU.
        host: This machine's address, as the server reaches it.

    Attributes:
        sent: Whether weights have arrived before.
    """

    def __init__(self, admin: Admin, serving: Serving, weights: Weights, host: str) -> None:
        self.sent = False
        self._host = host
        self._admin = admin
        self._serving = serving
        self._weights = weights
        self._group: Any = None  # a PyNcclCommunicator, once the server's workers have been met
        self._stale = False  # these workers are no more
        self._layout: dict[str, list[Any]] = {}

    def publish(self, version: int) -> None:
        """Send the weights as they are now; see :class:`.publishers.Publisher`.

        Raises:
            EngineError: If vLLM or NCCL cannot be used here, or the server failed.
        """
        try:
            if self._stale:
                self._part()
            if self._group is None:
                self._connect()
            with swapped(self._admin, self._serving, version):
                self._send()
                self._serving.switch(self._serving.served.model, version)
        except VfError:
            self._part()
            raise
        except Exception as error:  # vLLM's, torch's or NCCL's: their kinds are not documented
            self._part()
            raise EngineError(f"NCCL publishing: {type(error).__name__}: {error}") from error
        self.sent = True

    def restore(self) -> None:
        """Meet a server that has just started, and send it the newest weights."""
        self.forget()
        self.publish(self._serving.served.version)

    def forget(self) -> None:
        """Have the workers met again before anything is sent: the server has new ones.

        In any thread: the group itself is left in the one that sends.
        """
        self._stale = True

    def _connect(self) -> None:
        """Form a group of this process, rank 0, and all workers of the server."""
        from vllm.distributed.device_communicators.pynccl import PyNcclCommunicator
        from vllm.distributed.utils import StatelessProcessGroup

        tensors = [(name, t.dtype, t.shape, t.device) for name, t in self._weights.named_tensors()]
        self._layout = {
            "names": [name for name, *_ in tensors],
            "dtype_names": [str(dtype).removeprefix("torch.") for _, dtype, _, _ in tensors],
            "shapes": [list(shape) for _, _, shape, _ in tensors],
        }
        device = tensors[0][-1]
        port = choose_port(self._host, 0)
        size = 1 + int(self._admin.get("/get_world_size")["world_size"])

        def join() -> Any:
            meeting = StatelessProcessGroup.create(
                host=self._host, port=port, rank=0, world_size=size
            )
            group = PyNcclCommunicator(meeting, device=device)
            if group.disabled:
                raise EngineError("vLLM cannot load NCCL in the trainer's process")
            return group

        init_info = {
            "master_address": self._host,
            "master_port": port,
            "rank_offset": 1,
            "world_size": size,
            "packed": True,
            "packed_buffer_size_bytes": BUFFER_BYTES,
            "packed_num_buffers": BUFFERS,
        }
        invited = in_daemon_thread(
            lambda: self._admin.post("/init_weight_transfer_engine", {"init_info": init_info}),
            "vf-nccl",
        )
        joined = in_daemon_thread(join, "vf-nccl")
        done, late = wait([invited, joined], JOIN_SECONDS, return_when=FIRST_EXCEPTION)
        for ended in done:
            ended.result()
        if late:
            raise EngineError(f"trainer and server did not meet by NCCL within {JOIN_SECONDS:g} s")
        self._group = joined.result()

    def _send(self) -> None:
        """Broadcast every tensor while the server's workers receive it."""
        import torch
        from vllm.distributed.weight_transfer.packed_tensor import packed_nccl_broadcast_producer

        self._admin.post("/start_weight_update")
        received = in_daemon_thread(self._receive, "vf-nccl")
        with torch.cuda.device(self._group.device):
            torch.cuda.synchronize()  # the packing streams do not wait for the optimizer's
            packed_nccl_broadcast_producer(
                iterator=self._weights.named_tensors(),
                group=self._group,
                src=0,
                post_iter_func=lambda named: named[1].detach(),
                buffer_size_bytes=BUFFER_BYTES,
                num_buffers=BUFFERS,
            )
        received.result()
        self._admin.post("/finish_weight_update")

    def _receive(self) -> None:
        """Let the workers receive, which ends with the broadcast, or ends it by failing."""
        try:
            self._admin.post("/update_weights", {"update_info": self._layout})
        except BaseException:
            self._group.destroy()  # the broadcast would wait for ever for those who failed
            raise

    def _part(self) -> None:
        """Leave the group: what failed in it cannot be used again."""
        group, self._group, self._stale = self._group, None, False
        if group is not None:
            with suppress(Exception):  # it may be gone already
                group.destroy()

"""Replay in host memory that is learned from elsewhere: sampled and gathered on the host, and copied over once a batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from rl_training.data.fronts import ReplayFront
from rl_training.data.replay import Replay

if TYPE_CHECKING:
    from rl_training.types import Batch


class Buffer(Replay, Protocol):
    """The four replay buffers."""

    @property
    def bytes_per_transition(self) -> float: ...

    def page_lock_batches(self) -> None: ...


class TransferredReplay(ReplayFront[Buffer]):
    """A buffer whose batches come out on another device.

    Fields that share their memory (a chunk's `obs` and `next_obs`, a transition's two stacks) go over together and share it there.
    Towards CUDA the way is page-locked, so that nobody waits for the copy.
    """

    packs = False

    def __init__(self, replay: Buffer, device: torch.device) -> None:
        super().__init__(replay)
        self._device, self._pinned = device, device.type == "cuda"
        if self._pinned:
            replay.page_lock_batches()

    def sample(self, batch_size: int, beta: float | Tensor = 0.0, *, packed: bool = False) -> Batch:
        batch = self._replay.sample(batch_size, beta)
        sent: dict[int, Tensor] = {}
        moved = {}
        for name, tensor in batch.items():
            storage = tensor.untyped_storage()
            key = storage.data_ptr()
            if key not in sent:
                sent[key] = self._send(torch.empty(0, dtype=torch.uint8).set_(storage))
            there = torch.empty(0, dtype=tensor.dtype, device=self._device)
            moved[name] = there.set_(sent[key].untyped_storage(), tensor.storage_offset(), tensor.shape, tensor.stride())
        return moved

    def _send(self, flat: Tensor) -> Tensor:
        if self._pinned and not flat.is_pinned():
            flat = torch.empty(len(flat), dtype=torch.uint8, pin_memory=True).copy_(flat)
        return flat.to(self._device, non_blocking=True, copy=True)

    def unpack(self, batch: Batch) -> Batch:
        return batch

    @property
    def bytes_per_transition(self) -> float:
        return self._replay.bytes_per_transition

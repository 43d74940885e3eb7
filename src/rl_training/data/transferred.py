"""Replay in host memory that is learned from elsewhere: sampled and gathered on the host, and copied over once a batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from rl_training.data.replay import Replay

if TYPE_CHECKING:
    from rl_training.data.generators import Generator
    from rl_training.types import Batch, Items, State


class Buffer(Replay, Protocol):
    """The four replay buffers."""

    @property
    def bytes_per_transition(self) -> float: ...

    def page_lock_batches(self) -> None: ...


class TransferredReplay:
    """A buffer whose batches come out on another device.

    Fields that share their memory (a chunk's `obs` and `next_obs`, a transition's two stacks) go over together and share it there.
    Towards CUDA the way is page-locked, so that nobody waits for the copy.
    """

    packs = False

    def __init__(self, replay: Buffer, device: torch.device) -> None:
        self._replay, self._device, self._pinned = replay, device, device.type == "cuda"
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

    # The rest is the buffer's own.

    @property
    def generator(self) -> Generator:
        return self._replay.generator

    @property
    def num_transitions(self) -> int:
        return self._replay.num_transitions

    @property
    def bytes_per_transition(self) -> float:
        return self._replay.bytes_per_transition

    def __len__(self) -> int:
        return len(self._replay)

    def add_items(self, items: Items) -> None:
        self._replay.add_items(items)

    def unpack(self, batch: Batch) -> Batch:
        return batch

    def update_priorities(self, indices: Any, priorities: Any) -> None:
        self._replay.update_priorities(indices, priorities)

    def state_dict(self, *, copy: bool = True) -> State:
        return self._replay.state_dict(copy=copy)

    def load_state_dict(self, state: State) -> None:
        self._replay.load_state_dict(state)

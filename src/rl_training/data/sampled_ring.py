"""Storage + sampler: what all four replay buffers are made of. An item is a transition or a chunk of an episode."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from rl_training.data.generators import Generator
from rl_training.data.samplers import FlatSampler, Sampler, SumTreeSampler, UniformSampler, require_priorities
from rl_training.data.storage import Field, RingStorage, uses_numpy

if TYPE_CHECKING:
    from rl_training.types import Array, Batch, State


class Priorities(NamedTuple):
    """P(i) ∝ (|priority_i| + eps)^alpha (arXiv:1511.05952, eq. 1)."""

    alpha: float
    eps: float


class SampledRing:
    """A ring of items, drawn uniformly or (with `priorities`) in proportion to priority."""

    def __init__(
        self,
        capacity: int,
        fields: Mapping[str, Field],
        *,
        device: str | torch.device,
        seed: int,
        priorities: Priorities | None,
        reserve: int = 0,
    ) -> None:
        """reserve: bytes that the caller will allocate beside it, for the memory check."""
        on_cpu = uses_numpy(torch.device(device))
        # a tree has a seventh more nodes than leaves; the flat sampler holds priorities and their cumulative sum
        self._sampler_bytes = 0 if priorities is None else (8 * capacity * 8 // 7 if on_cpu else 16 * capacity)
        self.storage = RingStorage(capacity, fields, device, reserve=reserve + self._sampler_bytes)
        self.prioritized = priorities is not None
        self.sampler: Sampler
        if priorities is None:
            self.sampler = UniformSampler(self.storage.device, seed)
        elif priorities.alpha < 0 or priorities.eps < 0:
            raise ValueError(f"alpha and priority_eps must not be negative, got {priorities.alpha} and {priorities.eps}")
        elif on_cpu:
            self.sampler = SumTreeSampler(capacity, alpha=priorities.alpha, eps=priorities.eps, seed=seed)
        else:
            self.sampler = FlatSampler(capacity, alpha=priorities.alpha, eps=priorities.eps, seed=seed, device=self.storage.device)

    def __len__(self) -> int:
        """Items that can be drawn."""
        return self.storage.size

    @property
    def nbytes(self) -> int:
        """Bytes allocated for items."""
        return self.storage.nbytes

    @property
    def all_bytes(self) -> int:
        """`nbytes`, and what sampling by priority takes."""
        return self.nbytes + self._sampler_bytes

    @property
    def priorities(self) -> Priorities:
        """What items are drawn by: after `load_state_dict`, what the saved ring was made with."""
        if not isinstance(self.sampler, (SumTreeSampler, FlatSampler)):
            raise TypeError("a uniform buffer has no priorities")
        return Priorities(self.sampler.alpha, self.sampler.eps)

    def add(self, values: Mapping[str, Array], count: int) -> None:
        """Write items with a leading axis. More than fit: the last ones stay, in the slots they would have had one by one.

        `priorities`, where the items bring them, are their first ones; without, each begins at the largest seen so far.
        """
        capacity = self.storage.capacity
        if count > capacity:
            self.storage.skip(count - capacity)
            values, count = {name: value[-capacity:] for name, value in values.items()}, capacity
        start = self.storage.add(values, count)
        priorities = values.get("priorities") if self.prioritized else None
        head = min(count, capacity - start)
        self.sampler.insert(start, start + head, None if priorities is None else priorities[:head])
        if head < count:
            self.sampler.insert(0, count - head, None if priorities is None else priorities[head:])

    def sample(self, batch_size: int, beta: float | Tensor = 0.0, *, packed: bool = False) -> Batch:
        """Fields `[B, *shape]`, or (`packed`) the rows they lie in; + `indices` [B] int64 and `weights` [B] float32 when prioritized."""
        storage = self.storage
        if storage.size == 0:
            raise ValueError("cannot sample from an empty buffer")
        indices, batch = self.sampler.sample(batch_size, storage.live_size, beta)
        if packed:
            storage.gather_rows(indices, batch)
        else:
            storage.gather(indices, batch)
        return batch

    def page_lock_batches(self) -> None:
        pass  # rows are small

    def update_priorities(self, indices: Any, priorities: Any) -> None:
        self.sampler.update(indices, priorities, self.storage.size)

    def state_dict(self, *, copy: bool) -> State:
        return {"storage": self.storage.state_dict(copy=copy), "sampler": self.sampler.state_dict(self.storage.size)}

    def load_state_dict(self, state: State) -> None:
        self.storage.load_state_dict(state["storage"])
        if self.prioritized:
            require_priorities(state["sampler"], self.storage.size)
        self.sampler.load_state_dict(state["sampler"])


class SampledBuffer:
    """What the four buffers have in common, whatever an item is."""

    packs = False
    _ring: SampledRing

    def __len__(self) -> int:
        """Items held: transitions or chunks."""
        return len(self._ring)

    @property
    def device(self) -> torch.device:
        return self._ring.storage.device

    @property
    def nbytes(self) -> int:
        """Bytes allocated for items."""
        return self._ring.nbytes

    @property
    def generator(self) -> Generator:
        """What sampling draws from: a NumPy generator on the CPU, a torch one elsewhere (a CUDA graph must register it)."""
        return self._ring.sampler.generator

    @property
    def mass(self) -> float:
        """What its items are drawn in proportion to, in all: the sum of their leaves, or their number."""
        sampler = self._ring.sampler
        return sampler.tree.total if isinstance(sampler, SumTreeSampler) else float(len(self))

    def page_lock_batches(self) -> None:
        """Let stacks of frames be gathered in page-locked host memory, from which they are copied to a GPU."""
        self._ring.page_lock_batches()

    def unpack(self, batch: Batch) -> Batch:
        """A batch that was sampled `packed` as it would have been without."""
        return self._ring.storage.unpack(batch)

    def update_priorities(self, indices: Any, priorities: Any) -> None:
        """Raw magnitudes [B], such as |TD error|, for the items a sample named. One that is not finite is a RunError (on the CPU)."""
        self._ring.update_priorities(indices, priorities)


class PrioritizedBuffer(SampledBuffer):
    """What the two prioritized ones have in common beside."""

    @property
    def alpha(self) -> float:
        """How much priorities count; 0 is uniform."""
        return self._ring.priorities.alpha

    def leaves(self, indices: Array) -> Array:
        """(|priority| + eps)^alpha of these items, [B] float64, on the CPU."""
        sampler = self._ring.sampler
        assert isinstance(sampler, SumTreeSampler)
        return sampler.tree.leaves(len(self))[indices]

    @property
    def priority_eps(self) -> float:
        """What is added to a raw priority, so that every item can be drawn."""
        return self._ring.priorities.eps

"""A ring of items that name their observations by frames (frames.py), which leave with the first frame they need."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from rl_training.data.frames import FRAMES, STACKS, FrameStore, require_rows
from rl_training.data.sampled_ring import Priorities, SampledRing
from rl_training.data.samplers import FlatSampler, require_priorities
from rl_training.data.storage import Field, as_array

if TYPE_CHECKING:
    from rl_training.types import Array, Batch, Items, State

NAMES_FRAMES = "this buffer stores frames once: its items name observations by ids, which FrameNumbers gives, and go in by add_items"
NAMED = ("obs", "next_obs")
"""The fields that hold the row of an observation's newest frame."""
ROW = Field((), torch.int64)


class FramedRing(SampledRing):
    """`SampledRing` whose fields `obs` and `next_obs` are rows of a `FrameStore`; of the items in it, the newest `len` can be drawn.

    An item needs its frames from the oldest one on, and the store overwrites the oldest first. Items nearly come in the order of what they
    need, but not quite: a window of n steps comes n − 1 steps after its first frame, at an episode's end at once, and each environment's
    in turn; a chunk comes when it closes, whatever its length. So `_needs` has for each slot the oldest frame that its item *or a newer
    one* needs. Along the ring that never falls, and the items to drop before a frame is overwritten are those up to the last one that
    needs it: a few still good ones go with them, no more than lie between two items in each other's place.
    """

    def __init__(
        self,
        capacity: int,
        fields: Mapping[str, Field],
        *,
        obs: Field,
        stack: int,
        num_frames: int,
        device: str | torch.device,
        seed: int,
        priorities: Priorities | None,
    ) -> None:
        """obs: a whole, stacked observation. num_frames: how many frames are held."""
        reserve = FrameStore.bytes_of(num_frames, obs, stack) + 8 * capacity
        super().__init__(capacity, fields, device=device, seed=seed, priorities=priorities, reserve=reserve)
        self.frames = FrameStore(num_frames, obs, stack, self.storage.device)
        self._needs = np.zeros(capacity, np.int64)
        self._live = 0
        self._range = torch.zeros(2, dtype=torch.int64, device=self.storage.device)  # first slot and number, for sampling off the CPU

    def __len__(self) -> int:
        return self._live

    @property
    def nbytes(self) -> int:
        """Bytes allocated for items and frames."""
        return self.storage.nbytes + self.frames.nbytes + self._needs.nbytes

    @property
    def _first(self) -> int:
        """The slot of the oldest item."""
        return (self.storage.position - self._live) % self.storage.capacity

    def live_slots(self) -> Array:
        """The slots of the items that are there, oldest first."""
        return (self._first + np.arange(self._live)) % self.storage.capacity

    # Adding

    def take_frames(self, items: Items) -> Items:
        """Stores the frames that `items` bring, and gives rows in the place of ids. Items whose frames are gone already are left out."""
        items = dict(items)
        frames, stacks = items.pop(FRAMES, None), items.pop(STACKS, None)
        if frames is not None and stacks is not None and len(frames):
            self._drop_before(self.frames.first_after(stacks))
            self.frames.add(frames, stacks)
        if "obs" not in items:
            return items
        if items["obs"].dtype != np.int64:
            raise TypeError(NAMES_FRAMES)
        needs = self.frames.oldest_of(items["obs"])
        held = needs >= self.frames.first
        if not held.all():
            items, needs = {name: value[held] for name, value in items.items()}, needs[held]
        return items | {name: self.frames.rows_of(items[name]) for name in NAMED if name in items} | {"needs": needs}

    def add(self, values: Mapping[str, Array], count: int) -> None:
        """Items as `take_frames` gave them."""
        capacity = self.storage.capacity
        needs = np.minimum.accumulate(values["needs"][::-1])[::-1][-capacity:]
        super().add(values, count)
        newest = self.storage.position
        self._needs[np.arange(newest - len(needs), newest) % capacity] = needs
        self._live = min(self._live + count, capacity)
        slot = (newest - len(needs) - 1) % capacity
        for _ in range(self._live - len(needs)):  # usually none
            if self._needs[slot] <= needs[0]:
                break
            self._needs[slot] = needs[0]
            slot = (slot - 1) % capacity
        self._tell_range()

    def _drop_before(self, frame: int) -> None:
        """Drop the items that need a frame older than this one."""
        while self._live and self._needs[self._first] < frame:
            slots = (self._first + np.arange(min(self._live, 4096))) % self.storage.capacity  # usually a few of them go
            self._forget(int(np.searchsorted(self._needs[slots], frame)))

    def _forget(self, count: int) -> None:
        first, capacity = self._first, self.storage.capacity
        head = min(count, capacity - first)
        self.sampler.clear(first, first + head)
        if head < count:
            self.sampler.clear(0, count - head)
        self._live -= count
        self._tell_range()

    def _tell_range(self) -> None:
        if not self.storage.on_cpu:
            self._range.copy_(torch.tensor([self._first, self._live]), non_blocking=True)  # not page-locked: copied when this returns

    # Sampling

    def sample(self, batch_size: int, beta: float | Tensor = 0.0, *, packed: bool = False) -> Batch:
        if self._live == 0:
            raise ValueError("cannot sample from an empty buffer")
        capacity = self.storage.capacity
        if self.storage.on_cpu:
            slots, batch = self.sampler.sample(batch_size, self._live, beta)
            if not self.prioritized:
                slots = (slots + self._first) % capacity
        else:
            first, live = self._range.unbind()
            slots, batch = self.sampler.sample(batch_size, live, beta)
            if not self.prioritized:
                slots = (slots + first) % capacity
            else:
                # Where items were dropped, a parallel sum may differ by an ulp and a draw may fall there: it is the newest item's.
                slots = batch["indices"] = ((batch["indices"] - first) % capacity).minimum(live - 1).add(first) % capacity
        self.storage.gather(slots, batch)
        return batch

    def page_lock_batches(self) -> None:
        self.frames.page_locked = True

    def update_priorities(self, indices: Any, priorities: Any) -> None:
        """Those of items that are gone are passed over."""
        capacity = self.storage.capacity
        if isinstance(self.sampler, FlatSampler):
            first, live = self._range.unbind()
            slots = torch.as_tensor(indices, device=self.storage.device)
            self.sampler.update(slots, priorities, self.storage.size, (slots - first) % capacity < live)
            return
        there = (as_array(indices).reshape(-1) - self._first) % capacity < self._live
        if not there.all():
            indices, priorities = as_array(indices).reshape(-1)[there], as_array(priorities).reshape(-1)[there]
        self.sampler.update(indices, priorities, self.storage.size)

    # State

    def state_dict(self, *, copy: bool) -> State:
        framed = {"live": self._live, "needs": self._needs[: self.storage.size].copy(), "frames": self.frames.state_dict(copy=copy)}
        return super().state_dict(copy=copy) | framed

    def load_state_dict(self, state: State) -> None:
        live, needs = int(state["live"]), as_array(state["needs"])
        size = int(state["storage"]["size"])
        if not 0 <= live <= size or needs.shape != (size,):
            raise ValueError(f"{live:,} of {size:,} saved items are there, and what {needs.shape} of them need is known")
        self.storage.load_state_dict(state["storage"])
        for name in NAMED:
            if name in self.storage.fields:
                require_rows(self.storage.values(name), self.frames.capacity)
        self._live = live
        if (np.diff(needs[self.live_slots()]) < 0).any():  # what is dropped would not be found
            raise ValueError("what the saved items need does not grow from the oldest to the newest")
        if self.prioritized:
            there = np.zeros(size, bool)
            there[self.live_slots()] = True
            require_priorities(state["sampler"], size, there)
        self.sampler.load_state_dict(state["sampler"])
        self.frames.load_state_dict(state["frames"])
        self._needs[:size] = needs
        self._tell_range()

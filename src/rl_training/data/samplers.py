"""Which slots the next batch comes from. Each sampler owns the generator it draws from and saves it.

Uniform, or proportional to priority (arXiv:1511.05952): by a sum tree on the CPU (`SumTreeSampler`, numba) and by a flat cumulative
sum elsewhere (`FlatSampler`, torch only, no host synchronisation, static shapes: it can live in a CUDA graph).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from torch import Tensor

from rl_training.data.generators import Generator, generator_state, load_generator_state
from rl_training.data.storage import as_array, uses_numpy
from rl_training.data.sum_tree import MAX_LEAF, MIN_LEAF, SumTree
from rl_training.errors import RunError
from rl_training.resources import speed_is_on

if TYPE_CHECKING:
    from rl_training.types import Array, Batch, State


_FLOAT32 = np.dtype(np.float32)


class Sampler(Protocol):
    """Chooses slots. `size` is the number of slots in use: a number on the CPU, a device tensor elsewhere (see `RingStorage.live_size`)."""

    @property
    def generator(self) -> Generator: ...

    def insert(self, start: int, stop: int, priorities: Array | None = None) -> None:
        """Slots `start … stop-1` hold new items, with these raw priorities or, without, the largest one so far."""
        ...

    def sample(self, batch_size: int, size: int | Tensor, beta: float | Tensor) -> tuple[Array | Tensor, Batch]:
        """Slots [B], with replacement, and what the batch carries about the draw: if not uniform, `indices` and `weights` [B]."""
        ...

    def clear(self, start: int, stop: int) -> None:
        """The items in slots `start … stop-1` are gone: they are never drawn."""
        ...

    def update(self, indices: Any, priorities: Any, size: int) -> None:
        """Raw priorities [B] for the slots [B]."""
        ...

    def state_dict(self, size: int) -> State: ...

    def load_state_dict(self, state: State) -> None: ...


class UniformSampler:
    """Every slot in use with equal probability."""

    def __init__(self, device: torch.device, seed: int) -> None:
        self.generator: Generator = np.random.default_rng(seed) if uses_numpy(device) else torch.Generator(device).manual_seed(seed)

    def insert(self, start: int, stop: int, priorities: Array | None = None) -> None:
        pass  # nothing to remember about an item

    def sample(self, batch_size: int, size: int | Tensor, beta: float | Tensor) -> tuple[Array | Tensor, Batch]:
        # a float64 uniform below 1 times `size` never rounds up to it: the slot is always in use
        if isinstance(self.generator, np.random.Generator):
            slots: Array = (self.generator.random(batch_size) * size).astype(np.int64)
            return slots, {}
        return (torch.rand(batch_size, generator=self.generator, device=self.generator.device, dtype=torch.float64) * size).long(), {}

    def clear(self, start: int, stop: int) -> None:
        pass  # whoever drops items says among how many is drawn

    def update(self, indices: Any, priorities: Any, size: int) -> None:
        raise TypeError("a uniform buffer has no priorities")

    def state_dict(self, size: int) -> State:
        return {"generator": generator_state(self.generator)}

    def load_state_dict(self, state: State) -> None:
        load_generator_state(self.generator, state["generator"])


class SumTreeSampler:
    """P(i) ∝ (|priority_i| + eps)^alpha, one draw from each of B equal strata, w_i = (N·P(i))^-β over their maximum in the batch.

    New items get the largest raw priority seen so far (1 at the start).
    """

    def __init__(self, capacity: int, *, alpha: float, eps: float, seed: int) -> None:
        self.alpha, self.eps = alpha, eps
        self.max_priority = 1.0
        self.generator = np.random.default_rng(seed)
        self.tree = _sum_tree(capacity)
        self._last: tuple[Tensor | None, Array] = (None, np.empty(0, np.int64))  # the last batch's indices, twice in the same memory

    def insert(self, start: int, stop: int, priorities: Array | None = None) -> None:
        if priorities is None:
            self.tree.fill(start, stop, self.max_priority, self.alpha, self.eps)
        else:
            self.update(np.arange(start, stop), priorities, stop)

    def clear(self, start: int, stop: int) -> None:
        self.tree.clear(start, stop)

    def sample(self, batch_size: int, size: int | Tensor, beta: float | Tensor) -> tuple[Array | Tensor, Batch]:
        slots, weights = self.tree.sample(self.generator.random(batch_size), float(beta))
        indices = torch.from_numpy(slots)
        self._last = (indices, slots)
        return slots, {"indices": indices, "weights": torch.from_numpy(weights)}

    def update(self, indices: Any, priorities: Any, size: int) -> None:
        tensor, slots = self._last
        if indices is not tensor:
            slots = np.ascontiguousarray(as_array(indices), np.int64).reshape(-1)
        raw = as_array(priorities)
        if raw.dtype is not _FLOAT32 or raw.ndim != 1 or not raw.flags.c_contiguous:  # those go to numba as they are
            raw = np.ascontiguousarray(raw, np.float64).reshape(-1)
        if slots.shape != raw.shape:
            raise ValueError(f"{len(slots)} indices but {len(raw)} priorities")
        largest = self.tree.update(slots, raw, size, self.alpha, self.eps)
        if largest > self.max_priority:
            self.max_priority = largest
        elif largest < 0:
            if not np.isfinite(raw).all():
                raise RunError(f"a priority is not finite ({raw[~np.isfinite(raw)][0]}): the loss has diverged")
            raise IndexError(f"indices must lie in 0 … {size - 1}, got {slots.min()} … {slots.max()}")

    def state_dict(self, size: int) -> State:
        return {
            "alpha": self.alpha,
            "eps": self.eps,
            "max_priority": self.max_priority,
            "priorities": self.tree.leaves(size).copy(),
            "generator": generator_state(self.generator),
        }

    def load_state_dict(self, state: State) -> None:
        self.alpha, self.eps = float(state["alpha"]), float(state["eps"])
        self.max_priority = float(state["max_priority"])
        self.tree.load(as_array(state["priorities"]))
        load_generator_state(self.generator, state["generator"])


def require_priorities(state: State, size: int, live: Array | None = None) -> None:
    """Raises ValueError unless `size` items can be drawn by a saved sampler's priorities: the kernels do not look.

    live: [size] bool, those that are still there (all, unless given); the others must have none.
    """
    leaves = as_array(state["priorities"])
    in_use = np.ones(size, bool) if live is None else live
    if leaves.shape != (size,) or not np.where(in_use, (leaves >= MIN_LEAF) & (leaves <= MAX_LEAF), leaves == 0).all():
        gone = "" if in_use.all() else ", or 0 where the item is gone"
        raise ValueError(f"the saved priorities are not {size:,} numbers from {MIN_LEAF} to {MAX_LEAF}{gone}")
    for name in ("alpha", "eps", "max_priority"):
        if not 0 <= float(state[name]) < np.inf:
            raise ValueError(f"the saved {name} is {state[name]}")


def _sum_tree(capacity: int) -> SumTree:
    """In numba, which is imported when one is made; in NumPy with `RL_TRAINING_SPEED=0`."""
    if not speed_is_on():
        return SumTree(capacity)
    from rl_training.data.numba_sum_tree import NumbaSumTree

    return NumbaSumTree(capacity)


class FlatSampler:
    """`SumTreeSampler`'s meaning in plain torch: O(capacity) work per sample, which a GPU does faster than it walks a tree."""

    def __init__(self, capacity: int, *, alpha: float, eps: float, seed: int, device: torch.device) -> None:
        self.alpha, self.eps = alpha, eps
        self.generator = torch.Generator(device).manual_seed(seed)
        self.max_priority = torch.ones((), dtype=torch.float64, device=device)
        self.priorities = torch.zeros(capacity, dtype=torch.float64, device=device)
        self._strata = torch.zeros(0, dtype=torch.float64, device=device)
        self._of_new = self._leaf(self.max_priority)

    def _leaf(self, priorities: Tensor) -> Tensor:
        # in use is never 0, and sums stay finite
        return ((priorities + self.eps) ** self.alpha).clamp(MIN_LEAF, MAX_LEAF)

    def insert(self, start: int, stop: int, priorities: Array | None = None) -> None:
        if priorities is None:
            self.priorities[start:stop] = self._of_new
        else:
            self.update(torch.arange(start, stop), priorities, stop)

    def clear(self, start: int, stop: int) -> None:
        self.priorities[start:stop] = 0.0

    def sample(self, batch_size: int, size: int | Tensor, beta: float | Tensor) -> tuple[Array | Tensor, Batch]:
        device = self.priorities.device
        sums = self.priorities.cumsum(0)
        total = sums[-1]
        uniforms = torch.rand(batch_size, generator=self.generator, device=device, dtype=torch.float64)
        if len(self._strata) != batch_size:
            self._strata = torch.arange(batch_size, device=device, dtype=torch.float64)
        # A stratum's end may round up to the total, and a parallel scan may round its empty tail up by an ulp: the values stay a trillionth
        # below the total, which only slots in use reach.
        values = (self._strata + uniforms) * (total * ((1 - 1e-12) / batch_size))
        indices = torch.searchsorted(sums, values, right=True)
        drawn = self.priorities[indices]
        return indices, {"indices": indices, "weights": ((drawn.min() / drawn) ** beta).float()}

    def update(self, indices: Any, priorities: Any, size: int, live: Tensor | None = None) -> None:
        """live: [B] bool, False where the item is gone and stays so."""
        device = self.priorities.device
        slots = torch.as_tensor(indices, device=device)
        # no host check here: what is not finite counts as 0 rather than spoil every sum
        raw = torch.as_tensor(priorities, device=device).detach().double().abs().nan_to_num(0.0, 0.0, 0.0)
        if live is not None:
            raw = raw * live
        # The largest one so far rides along, so that its leaf comes out of the same few operations as the batch's.
        raw = torch.cat([raw, self.max_priority.view(1)])
        leaves = self._leaf(raw)
        self.priorities[slots] = leaves[:-1] if live is None else leaves[:-1] * live
        torch.amax(raw, 0, out=self.max_priority)
        torch.amax(leaves, 0, out=self._of_new)

    def state_dict(self, size: int) -> State:
        return {
            "alpha": self.alpha,
            "eps": self.eps,
            "max_priority": float(self.max_priority),
            "priorities": self.priorities[:size].clone(),
            "generator": generator_state(self.generator),
        }

    def load_state_dict(self, state: State) -> None:
        self.alpha, self.eps = float(state["alpha"]), float(state["eps"])
        self.max_priority.fill_(float(state["max_priority"]))
        self._of_new.copy_(self._leaf(self.max_priority))
        leaves = torch.as_tensor(state["priorities"])
        self.priorities.zero_()
        self.priorities[: len(leaves)] = leaves.to(self.priorities.device)
        load_generator_state(self.generator, state["generator"])

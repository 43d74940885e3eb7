"""A sum tree: weighted sampling and priority updates in O(log n).

Every node is one 64-byte cache line of eight float64 children, so a million leaves are seven lines away from the root. Here it is NumPy;
numba_sum_tree.py has the same in numba, which a run uses.

Sums are recomputed from the children, never changed by a difference: they cannot drift, and a tree rebuilt from its leaves
is the same to the last bit. An empty slot's leaf is 0 and one in use lies in `[MIN_LEAF, MAX_LEAF]`, so the descent can always
tell them apart, also where rounding carries it past the last child.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from rl_training.types import Array

FANOUT = 8
SHIFT = 3
MIN_LEAF = 1e-150  # a raw priority of 0 with eps 0: practically never drawn, yet not empty
MAX_LEAF = 1e150  # keeps the sums finite


class SumTree:
    """`capacity` leaves, all empty at first. A leaf holds (|priority| + eps)^alpha (arXiv:1511.05952, eq. 1)."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        widths = [capacity]
        while widths[-1] > 1 or len(widths) == 1:
            widths.append(-(-widths[-1] // FANOUT))
        padded = [-(-width // FANOUT) * FANOUT for width in widths]
        self._offsets = np.concatenate(([0], np.cumsum(padded)[:-1])).astype(np.int64)  # leaves first, root last
        memory = np.zeros(sum(padded) + FANOUT)
        skip = (-memory.ctypes.data % 64) // memory.itemsize  # nodes start on cache lines
        self._tree = memory[skip : skip + sum(padded)]

    @property
    def total(self) -> float:
        return float(self._tree[self._offsets[-1]])

    def leaves(self, size: int) -> Array:
        """The first `size` leaves, [size] float64: a view."""
        return self._tree[:size]

    def load(self, leaves: Array) -> None:
        """Hold exactly these leaves in the first slots and nothing in the others."""
        self._tree[:] = 0.0
        self._tree[: len(leaves)] = leaves
        for level in range(1, len(self._offsets)):
            start, stop = self._offsets[level - 1 : level + 1]
            children = self._tree[start:stop].reshape(-1, FANOUT)
            sums = self._tree[stop : stop + len(children)]
            for child in range(FANOUT):  # the kernels' order
                sums += children[:, child]

    def fill(self, start: int, stop: int, priority: float, alpha: float, eps: float) -> None:
        """Give the leaves `start … stop-1` one raw priority."""
        self._set(start, stop, _leaves(np.float64(priority), alpha, eps))

    def clear(self, start: int, stop: int) -> None:
        """Empty the leaves `start … stop-1`."""
        self._set(start, stop, 0.0)

    def update(self, indices: Array, priorities: Array, size: int, alpha: float, eps: float) -> float:
        """Set leaves from raw priorities [B]; indices: [B] int64 below `size`. Returns the largest |priority|, or -1 (nothing changed) if
        one is not finite or out of range."""
        if not (np.isfinite(priorities).all() and (indices >= 0).all() and (indices < size).all()):
            return -1.0
        self._tree[indices] = _leaves(priorities, alpha, eps)
        for level in range(1, len(self._offsets)):
            self._add_up(level, np.unique(indices >> (SHIFT * level)))
        return float(np.abs(priorities).max(initial=0.0))

    def sample(self, uniforms: Array, beta: float) -> tuple[Array, Array]:
        """Stratified draw. uniforms: [B] float64 in [0, 1), overwritten. Returns indices [B] int64 (ascending) and weights [B] float32."""
        count, indices = len(uniforms), np.zeros(len(uniforms), np.int64)
        uniforms += np.arange(count)
        uniforms *= self.total / count
        for level in range(len(self._offsets) - 2, -1, -1):
            children = self._children(level, indices)
            sums = children.cumsum(1)
            child = (sums[:, :-1] <= uniforms[:, None]).sum(1)
            uniforms -= np.where(child > 0, np.take_along_axis(sums, np.maximum(child - 1, 0)[:, None], 1)[:, 0], 0.0)
            here = np.take_along_axis(children, child[:, None], 1)[:, 0]
            while (past := (here == 0) & (child > 0)).any():  # rounding carried us past the last weight: step back to its end
                child -= past
                here = np.take_along_axis(children, child[:, None], 1)[:, 0]
                uniforms[past] = here[past]
            indices = indices * FANOUT + child
        drawn = self._tree[indices]
        # (N·P_i)^-β / max_j (N·P_j)^-β = (min_j p_j / p_i)^β: N and the total cancel. 1e-37 is float32's smallest normal number.
        ratio = np.maximum(drawn.min() / drawn, 1e-37).astype(np.float32)
        return indices, np.exp(np.float32(beta) * np.log(ratio))

    def _set(self, start: int, stop: int, leaf: Any) -> None:
        self._tree[start:stop] = leaf
        for level in range(1, len(self._offsets)):
            self._add_up(level, np.arange(start >> (SHIFT * level), ((stop - 1) >> (SHIFT * level)) + 1))

    def _children(self, level: int, nodes: Array) -> Array:
        """The children [n, 8] that `nodes` of the level above have on this one."""
        children: Array = self._tree[self._offsets[level] + nodes[:, None] * FANOUT + np.arange(FANOUT)]
        return children

    def _add_up(self, level: int, nodes: Array) -> None:
        # a cumulative sum adds in the order of the descent, so that both round alike
        self._tree[self._offsets[level] + nodes] = self._children(level - 1, nodes).cumsum(1)[:, -1]


def _leaves(priorities: Any, alpha: float, eps: float) -> Any:
    return np.clip((np.abs(np.asarray(priorities, np.float64)) + eps) ** alpha, MIN_LEAF, MAX_LEAF)

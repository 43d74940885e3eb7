"""A sum tree in numba: weighted sampling and priority updates in O(log n).

Every node is one 64-byte cache line of eight float64 children, so a million leaves are seven lines away from the root. Batches go
through the tree level by level: the cache misses of one level overlap instead of following one another.

Sums are recomputed from the children, never changed by a difference: they cannot drift, and a tree rebuilt from its leaves
is the same to the last bit. An empty slot's leaf is 0 and one in use lies in `[MIN_LEAF, MAX_LEAF]`, so the descent can always
tell them apart, also where rounding carries it past the last child.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar, cast

import numpy as np
from numba import njit

if TYPE_CHECKING:
    from rl_training.types import Array

FANOUT = 8
_SHIFT = 3
MIN_LEAF = 1e-150  # a raw priority of 0 with eps 0: practically never drawn, yet not empty
MAX_LEAF = 1e150  # keeps the sums finite

_Kernel = TypeVar("_Kernel", bound=Callable[..., object])


def _compiled(function: _Kernel) -> _Kernel:
    return cast("_Kernel", njit(cache=True, nogil=True)(function))


@_compiled
def _leaf(priority: float, alpha: float, eps: float) -> float:
    leaf: float = (abs(priority) + eps) ** alpha
    return min(max(leaf, MIN_LEAF), MAX_LEAF)


@_compiled
def _node_sum(tree: Array, first: int) -> float:
    total = 0.0
    for child in range(FANOUT):  # in the order of the descent's prefix sums, so that both round alike
        total += tree[first + child]
    return total


@_compiled
def _update(tree: Array, offsets: Array, indices: Array, priorities: Array, size: int, alpha: float, eps: float) -> float:
    """Set leaves from raw priorities; return the largest |priority|, or -1 (nothing changed) if one is not finite or out of range."""
    count = indices.shape[0]
    largest = 0.0
    for k in range(count):
        if not (np.isfinite(priorities[k]) and 0 <= indices[k] < size):
            return -1.0
        largest = max(largest, abs(priorities[k]))
    for k in range(count):
        tree[indices[k]] = _leaf(priorities[k], alpha, eps)
    for level in range(1, offsets.shape[0]):
        last = -1
        for k in range(count):
            node = indices[k] >> (_SHIFT * level)
            if node != last:  # stratified batches come sorted: neighbours share their upper nodes
                tree[offsets[level] + node] = _node_sum(tree, offsets[level - 1] + node * FANOUT)
                last = node
    return largest


@_compiled
def _fill(tree: Array, offsets: Array, start: int, stop: int, priority: float, alpha: float, eps: float) -> None:
    """Give the leaves `start … stop-1` one raw priority."""
    tree[start:stop] = _leaf(priority, alpha, eps)
    for level in range(1, offsets.shape[0]):
        for node in range(start >> (_SHIFT * level), ((stop - 1) >> (_SHIFT * level)) + 1):
            tree[offsets[level] + node] = _node_sum(tree, offsets[level - 1] + node * FANOUT)


@_compiled
def _sample(tree: Array, offsets: Array, values: Array, beta: float, indices: Array, weights: Array) -> float:
    """Stratified draw. values: [B] uniforms (overwritten); indices: [B] int64 and weights: [B] float32 are written.

    What it returns means nothing: it keeps the compiler from dropping the loads that warm the cache.
    """
    count, top, touched = values.shape[0], offsets.shape[0] - 1, 0.0
    stratum = tree[offsets[top]] / count
    for k in range(count):
        values[k] = (k + values[k]) * stratum
        indices[k] = 0
    for level in range(top - 1, -1, -1):
        # The comparisons below are mispredicted half the time, each only known to be when its node has come from memory: ask for all nodes
        # of the level first, so that they come together.
        for k in range(count):
            touched += tree[offsets[level] + indices[k] * FANOUT]
        for k in range(count):
            first = offsets[level] + indices[k] * FANOUT
            value, prefix, below, child = values[k], 0.0, 0.0, 0
            for j in range(FANOUT - 1):
                prefix += tree[first + j]
                if prefix <= value:
                    child = j + 1
                    below = prefix
            value -= below
            while tree[first + child] == 0.0 and child > 0:  # rounding carried us past the last weight: step back to its end
                child -= 1
                value = tree[first + child]
            values[k] = value
            indices[k] = indices[k] * FANOUT + child
    smallest, exponent = np.inf, np.float32(beta)
    for k in range(count):
        values[k] = tree[indices[k]]
        smallest = min(smallest, values[k])
    for k in range(count):  # (N·P_i)^-β / max_j (N·P_j)^-β = (min_j p_j / p_i)^β: N and the total cancel
        ratio = np.float32(max(smallest / values[k], 1e-37))  # float32's smallest normal number: no logarithm of 0
        weights[k] = np.exp(exponent * np.log(ratio))
    return touched


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
        _fill(self._tree, self._offsets, start, stop, priority, alpha, eps)

    def update(self, indices: Array, priorities: Array, size: int, alpha: float, eps: float) -> float:
        """indices: [B] int64 below `size`; priorities: [B] float64, raw. Returns the largest |priority|, or -1 if refused."""
        return _update(self._tree, self._offsets, indices, priorities, size, alpha, eps)

    def sample(self, uniforms: Array, beta: float) -> tuple[Array, Array]:
        """uniforms: [B] float64 in [0, 1), overwritten. Returns indices [B] int64 (ascending) and weights [B] float32."""
        indices, weights = np.empty(len(uniforms), np.int64), np.empty(len(uniforms), np.float32)
        _sample(self._tree, self._offsets, uniforms, beta, indices, weights)
        return indices, weights


def tree_bytes(capacity: int) -> int:
    """About what a SumTree of this capacity allocates (8 bytes a leaf and a seventh for the nodes above)."""
    return 8 * capacity * FANOUT // (FANOUT - 1) + 1024

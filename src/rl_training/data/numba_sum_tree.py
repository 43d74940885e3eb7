"""The sum tree's loops in numba: O(log n) an item, without a Python operation between them.

Batches go through the tree level by level: the cache misses of one level overlap instead of following one another.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar, cast

import numpy as np
from numba import njit

from rl_training.data.sum_tree import FANOUT, MAX_LEAF, MIN_LEAF, SHIFT, SumTree

if TYPE_CHECKING:
    from rl_training.types import Array

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
            node = indices[k] >> (SHIFT * level)
            if node != last:  # stratified batches come sorted: neighbours share their upper nodes
                tree[offsets[level] + node] = _node_sum(tree, offsets[level - 1] + node * FANOUT)
                last = node
    return largest


@_compiled
def _set(tree: Array, offsets: Array, start: int, stop: int, leaf: float) -> None:
    """Set the leaves `start … stop-1`."""
    tree[start:stop] = leaf
    for level in range(1, offsets.shape[0]):
        for node in range(start >> (SHIFT * level), ((stop - 1) >> (SHIFT * level)) + 1):
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


class NumbaSumTree(SumTree):
    """The same tree: sums and draws are NumPy's to the last bit, leaves and weights up to a power's rounding."""

    def fill(self, start: int, stop: int, priority: float, alpha: float, eps: float) -> None:
        _set(self._tree, self._offsets, start, stop, _leaf(priority, alpha, eps))

    def clear(self, start: int, stop: int) -> None:
        _set(self._tree, self._offsets, start, stop, 0.0)

    def update(self, indices: Array, priorities: Array, size: int, alpha: float, eps: float) -> float:
        return _update(self._tree, self._offsets, indices, priorities, size, alpha, eps)

    def sample(self, uniforms: Array, beta: float) -> tuple[Array, Array]:
        indices, weights = np.empty(len(uniforms), np.int64), np.empty(len(uniforms), np.float32)
        _sample(self._tree, self._offsets, uniforms, beta, indices, weights)
        return indices, weights

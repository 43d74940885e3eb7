"""Images made smaller by the mean over each new pixel's area: OpenCV's INTER_AREA, to the bit, without OpenCV.

ALE's own vector environment, Gymnasium's AtariPreprocessing, Dopamine and Stable-Baselines3 all resize so. The sums are made in OpenCV's
order (along a row first, in float32), so that a mean that lies between two grey values is rounded to the same one.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from rl_training.types import Array


class AreaResize:
    """[height, width] or [height, width, channels] uint8 → [size, size, ...]; size must not be above either."""

    def __init__(self, shape: tuple[int, ...], size: int) -> None:
        height, width = shape[:2]
        channels = (1,) * (len(shape) - 2)
        self._columns, weights = _taps(width, size)
        self._column_weights = weights.reshape(*weights.shape, *channels)
        self._rows, weights = _taps(height, size)
        self._row_weights = weights.reshape(*weights.shape, 1, *channels)
        self._narrow = np.zeros((height, size, *shape[2:]), np.float32)
        self._part = np.zeros_like(self._narrow)

    def __call__(self, image: Array) -> Array:
        """A new array."""
        narrow, part = self._narrow, self._part
        np.multiply(image.take(self._columns[0], 1), self._column_weights[0], out=narrow)
        for columns, weights in zip(self._columns[1:], self._column_weights[1:], strict=True):
            np.multiply(image.take(columns, 1), weights, out=part)
            np.add(narrow, part, out=narrow)
        small = narrow.take(self._rows[0], 0) * self._row_weights[0]
        for rows, weights in zip(self._rows[1:], self._row_weights[1:], strict=True):
            small += narrow.take(rows, 0) * weights
        result: Array = np.rint(small, out=small).astype(np.uint8)
        return result


def _taps(source: int, size: int) -> tuple[Array, Array]:
    """Which of `source` pixels each of `size` new ones is made of, and with what weights: two arrays [taps, size], float32 the second.

    A new pixel d covers [d·s, (d + 1)·s) with s = source / size; a pixel on its edge counts with the part of it that is covered. Those
    with fewer taps than others have zero weights at the end, which change no sum.
    """
    scale = source / size
    taps: list[list[tuple[int, float]]] = []
    for d in range(size):
        begin, end = d * scale, d * scale + scale
        cell = min(scale, source - begin)
        last = min(math.floor(end), source - 1)
        first = min(math.ceil(begin), last)
        here = [(first - 1, (first - begin) / cell)] if first - begin > 1e-3 else []
        here += [(pixel, 1.0 / cell) for pixel in range(first, last)]
        if end - last > 1e-3:
            here.append((last, min(end - last, 1.0, cell) / cell))
        taps.append(here)
    most = max(len(here) for here in taps)
    padded = [here + [(here[-1][0], 0.0)] * (most - len(here)) for here in taps]
    pixels = np.array([[pixel for pixel, _ in here] for here in padded], np.intp).T
    weights = np.array([[weight for _, weight in here] for here in padded]).astype(np.float32).T
    return np.ascontiguousarray(pixels), np.ascontiguousarray(weights)

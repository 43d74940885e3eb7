"""The brighter of two frames in colour, turned grey: what wrappers see that pool first and turn grey afterwards.

Stable-Baselines3's does; Dopamine, Gymnasium's AtariPreprocessing and ALE's vector environment pool in grey. The two differ where an object
moves over another of a different hue. The weights are OpenCV's, and ALE's grey is theirs too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from rl_training.types import Array

RED, GREEN, BLUE, SHIFT = 9_798, 19_235, 3_735, 15  # 0.299, 0.587 and 0.114 of 2^15


def pool_in_colour(frames: Array, grey: Array) -> None:
    """frames: [2, height, width, 3], written over; grey: [height, width], of the first of them, which becomes that of their maximum."""
    first, pooled = frames.reshape(2, -1)
    np.maximum(first, pooled, out=pooled)
    changed = np.flatnonzero(pooled != first) // 3  # few: only these are worked out
    red, green, blue = pooled.reshape(-1, 3)[changed].T.astype(np.uint32)
    grey.reshape(-1)[changed] = (red * RED + green * GREEN + blue * BLUE + (1 << SHIFT - 1)) >> SHIFT

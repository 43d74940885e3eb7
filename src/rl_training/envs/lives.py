"""Lost lives, out of `info["lives"]`: terminations for the learner that end no episode.

ALE's own `life_loss_info` reports them as terminations without a reset, and its `episodic_life` resets the whole game: neither is used.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from rl_training.types import Array

KEY = "lives"


class Lives:
    """The lives of E environments."""

    def __init__(self, num_envs: int) -> None:
        self._now = np.zeros(num_envs, np.int64)

    def reset(self, infos: Mapping[str, Any], which: Array | None) -> None:
        """The environments `which` [E] (None: all) begin an episode, or were brought back to where they were."""
        lives = np.array(infos[KEY], np.int64)
        self._now = lives if which is None else np.where(which, lives, self._now)

    def step(self, infos: Mapping[str, Any], ended: Array) -> Array:
        """[E] bool: who lost a life and plays on. One with no life left is at its episode's end, or a few frames before it (Qbert)."""
        lives = np.array(infos[KEY], np.int64)
        lost: Array = (lives < self._now) & (lives > 0) & ~ended
        self._now = lives
        return lost

"""Tasks with action masks: one whose mask can be told from what is observed, and one that fails on a forbidden action."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from rl_training.types import Array

ENDS = {
    0: [(3, "terminated"), (1, "truncated"), (4, "both")],
    1: [(2, "truncated"), (5, "terminated")],
    2: [(1, "terminated"), (6, "truncated")],
}
"""How episodes end, by environment and episode: (length, how), repeated."""


def mask_of(obs: Any) -> Array:
    """What observations [..., 3] of `Told` allow, [..., 3]: some in every one, all of them in some."""
    index, episode, time = (np.asarray(obs)[..., k] for k in range(3))
    return np.stack([time % 2 == 0, (time + episode) % 3 != 0, (time % 2 == 1) | (index == 1)], -1)


class Told(gym.Env[Any, Any]):
    """Observes (environment, episode, time) and allows `mask_of` it; after a termination it allows nothing, as some do."""

    observation_space = spaces.Box(-np.inf, np.inf, (3,), np.float32)
    action_space: gym.Space[Any] = spaces.Discrete(3)

    def __init__(self, index: int, method: bool = False) -> None:
        self._obs = np.array([index, -1, 0], np.float32)
        self._mask, self._tells = np.zeros(3, np.int8), not method
        if method:
            self.action_masks = lambda: self._mask

    def _told(self) -> tuple[Any, dict[str, Any]]:
        self._mask[:] = mask_of(self._obs)  # one array for all, as careless environments do
        return self._obs.copy(), {"action_mask": self._mask} if self._tells else {}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self._obs[1:] = self._obs[1] + 1, 0
        return self._told()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self._mask[action], f"{action} is forbidden in {self._obs}"
        ends = ENDS[int(self._obs[0])]
        length, how = ends[int(self._obs[1]) % len(ends)]
        self._obs[2] += 1
        over = bool(self._obs[2] == length)
        terminated = over and how != "truncated"
        obs, info = self._told()
        self._mask &= not terminated
        return obs, 1.0, terminated, over and how != "terminated", info


class Guarded(gym.Env[Any, Any]):
    """A corridor of five places. 0 goes back, 1 waits on even places, 2 goes on and is the only one that is rewarded, 3 is never allowed.

    A forbidden action raises. Waiting and going back pay −0.1, so the best return is that of going on: 5 − place.
    """

    observation_space = spaces.Box(0, 1, (6,), np.float32)
    action_space: gym.Space[Any] = spaces.Discrete(4)
    place = 0

    def action_masks(self) -> Array:
        return np.array([self.place > 0, self.place % 2 == 0, True, False])

    def _look(self) -> Any:
        return np.eye(6, dtype=np.float32)[self.place]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.place = int(self.np_random.integers(3))
        return self._look(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if not self.action_masks()[action]:
            raise ValueError(f"action {action} is forbidden on place {self.place}")
        self.place += int(action) - 1
        return self._look(), 1.0 if action == 2 else -0.1, self.place == 5, False, {}


def guarded() -> gym.Env[Any, Any]:
    return gym.wrappers.TimeLimit(Guarded(), 8)


class GuardedImage(Guarded):
    """The same as an image of 10 × 10: the row of the place is lit."""

    observation_space = spaces.Box(0, 255, (10, 10, 1), np.uint8)

    def _look(self) -> Any:
        image = np.zeros((10, 10, 1), np.uint8)
        image[self.place] = 255
        return image


def guarded_image() -> gym.Env[Any, Any]:
    return gym.wrappers.TimeLimit(GuardedImage(), 8)


class GuardedPair(Guarded):
    """The same with a second choice of three, of which the one that was not taken last is forbidden; its mask is one after the other."""

    action_space: gym.Space[Any] = spaces.MultiDiscrete([4, 3])
    last = 0

    def action_masks(self) -> Array:
        return np.concatenate([super().action_masks(), np.arange(3) != self.last])

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        masks, first, second = self.action_masks(), int(action[0]), int(action[1])
        if not (masks[first] and masks[4 + second]):
            raise ValueError(f"action {action} is forbidden on place {self.place} after {self.last}")
        self.place, self.last = self.place + first - 1, second
        return self._look(), 1.0 if first == 2 else -0.1, self.place == 5, False, {}

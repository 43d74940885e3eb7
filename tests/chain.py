"""A chain task with a known Q*, for learning tests of seconds."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

LENGTH = 5
GAMMA = 0.9


class Chain(gym.Env[Any, Any]):
    """States 0 … LENGTH−1, one-hot; action 1 moves right, 0 left. Reaching the right end gives 1 and terminates. Starts anywhere else.

    Truncated after 6 steps, so that an agent which takes truncation for termination learns values that are too small.
    """

    observation_space = gym.spaces.Box(0, 1, (LENGTH,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def _obs(self) -> Any:
        return np.eye(LENGTH, dtype=np.float32)[self.state]

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.state, self.t = int(self.np_random.integers(LENGTH - 1)), 0
        return self._obs(), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        self.state = min(self.state + 1, LENGTH - 1) if action == 1 else max(self.state - 1, 0)
        terminated = self.state == LENGTH - 1
        return self._obs(), float(terminated), terminated, self.t >= 6 and not terminated, {}


def optimal_q() -> Any:
    """Q*(s, right) = γ^(d−1) with d steps to the end; going left costs two steps (one at state 0, where it stays): γ^(d+1) (γ^d)."""
    distance = LENGTH - 1 - np.arange(LENGTH - 1)
    right = GAMMA ** (distance - 1.0)
    left = np.where(distance == LENGTH - 1, GAMMA**distance, GAMMA ** (distance + 1.0))
    return np.stack([left, right], 1)

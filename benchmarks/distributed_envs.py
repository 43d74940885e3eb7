"""Environments for measuring and disturbing distributed runs."""

from __future__ import annotations

import time
from typing import Any

import gymnasium as gym
import numpy as np

LENGTH = 97  # of an episode, in steps: blocks and chunks end inside episodes
WAITING, NUMBERED = "bench/Waiting-v0", "bench/Numbered-v0"


class Waiting(gym.Env[Any, Any]):
    """Takes `seconds` a step, without a processor's help, as a simulator on another machine or a game's server does."""

    observation_space = gym.spaces.Box(-1.0, 1.0, (4,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, seconds: float = 0.005) -> None:
        self._seconds = seconds

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._steps = 0
        return np.zeros(4, np.float32), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        time.sleep(self._seconds)
        self._steps += 1
        return np.full(4, self._steps / LENGTH, np.float32), 1.0, False, self._steps >= LENGTH, {}


class Numbered(gym.Env[Any, Any]):
    """Every observation says which one it is: the episode's seed, in two halves that float32 holds, and the step.

    So every item in a replay carries its id, and an item that is torn, doubled or missing shows.
    """

    observation_space = gym.spaces.Box(0.0, 65_536.0, (3,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, seconds: float = 0.0) -> None:
        self._seconds = seconds

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        assert seed is not None
        self._seed, self._steps = seed, 0
        return self._obs(), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self._seconds:
            time.sleep(self._seconds)
        self._steps += 1
        return self._obs(), float(self._steps), False, self._steps >= LENGTH, {}

    def _obs(self) -> Any:
        return np.array([self._seed >> 16, self._seed & 0xFFFF, self._steps], np.float32)


gym.register(WAITING, entry_point="benchmarks.distributed_envs:Waiting")
gym.register(NUMBERED, entry_point="benchmarks.distributed_envs:Numbered")

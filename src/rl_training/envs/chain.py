"""A chain whose Q* is known, and its twin that needs memory: learning shown in seconds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from rl_training.errors import UserError

if TYPE_CHECKING:
    from rl_training.types import Array

TIME_LIMIT = 6  # shorter than a careless walk: an agent that takes truncation for termination learns values that are too small


class Chain(gym.Env[Any, int]):
    """States 0 … length−1. Reaching the right end gives 1 and terminates; every other reward is 0. Starts anywhere else.

    Observation [length]: the state, one-hot. Actions Discrete(2): 1 moves right, 0 left (at state 0 it stays).

    With `cue`, the twin that needs memory: in half of the episodes the two actions are exchanged, and two more entries of the
    episode's first observation (never again) say in which. A greedy policy that sees only the present can use the cue for one step;
    next to the end it then goes the wrong way for one of the two kinds. So it succeeds from the state next to the end, and in half of
    the other episodes at most: (1 + 1/(length−1))/2 of all, 5/8 for 5 states. With the cue remembered Q* is the chain's own, with the
    actions exchanged.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012  (Gymnasium's own declaration)

    def __init__(self, length: int = 5, cue: bool = False) -> None:
        if length not in range(2, TIME_LIMIT + 2):
            raise UserError(
                f"Chain: length must be a whole number from 2 to {TIME_LIMIT + 1} (its time limit is {TIME_LIMIT}), not {length!r}"
            )
        self.length, self.cue = length, cue
        self.observation_space = spaces.Box(0.0, 1.0, (length + 2 * cue,), np.float32)
        self.action_space = spaces.Discrete(2)  # type: ignore[assignment]  # Discrete is a Space[np.int64], which takes ints
        self._state, self._time, self._right = 0, 0, 1

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed)
        self._state, self._time = int(self.np_random.integers(self.length - 1)), 0
        self._right = int(self.np_random.integers(2)) if self.cue else 1
        obs = self._observation()
        if self.cue:
            obs[self.length + self._right] = 1.0
        return obs, {}

    def step(self, action: int) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        self._time += 1
        self._state = min(self._state + 1, self.length - 1) if action == self._right else max(self._state - 1, 0)
        terminated = self._state == self.length - 1
        return self._observation(), float(terminated), terminated, self._time >= TIME_LIMIT and not terminated, {}

    def _observation(self) -> Array:
        obs = np.zeros(self.length + 2 * self.cue, np.float32)
        obs[self._state] = 1.0
        return obs


def optimal_q(gamma: float, length: int = 5) -> Array:
    """Q*(s, right) = γ^(d−1) with d steps to the end; going left costs two steps (one at state 0, where it stays): γ^(d+1) (γ^d).

    [length − 1, 2]: left, right. The time limit cuts episodes off without ending the task, so it does not show here.
    """
    distance = length - 1 - np.arange(length - 1)
    right = gamma ** (distance - 1.0)
    left = np.where(distance == length - 1, gamma**distance, gamma ** (distance + 1.0))
    return np.stack([left, right], 1)


for _name, _kwargs in (("Chain", {}), ("MemoryChain", {"cue": True})):
    if f"rl_training/{_name}-v0" not in gym.registry:  # a reloaded module registers once
        gym.register(f"rl_training/{_name}-v0", entry_point="rl_training.envs.chain:Chain", kwargs=_kwargs)

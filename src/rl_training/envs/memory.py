"""Tasks that need memory: a T-maze of any length, and POPGym (extra `memory`) by its own ids."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from rl_training.errors import UserError

if TYPE_CHECKING:
    from rl_training.types import Array

FORWARD, UP, DOWN = 0, 1, 2
POPGYM_PREFIX = "popgym-"


class TMaze(gym.Env[Any, int]):
    """A cue at the start says which arm of a distant junction pays (Bakker 2001, "Reinforcement learning with long short-term memory").

    `length` steps forward lead from the start to the junction; there UP or DOWN ends the episode, with reward 1 if the cue said so and 0
    otherwise. Every other reward is 0. Solved in length + 1 steps; a return of 1 is success.

    Observation [3]: cue is up, cue is down (in the episode's first observation only), at the junction. Nothing tells time or place in the
    corridor, so a policy without memory succeeds with probability 1/2 at most, whatever it does with the cue.
    Actions Discrete(3): FORWARD 0, UP 1, DOWN 2; those that lead into a wall do nothing.
    Truncated after `time_limit` steps, 5·(length + 1) by default: a uniformly random walk reaches the junction in 3·length on average.

    Departures from the paper: no way back (its fourth action), nothing taken for standing still (0.1 there), 1 and not 4 for the right arm.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012  (Gymnasium's own declaration)

    def __init__(self, length: int = 10, time_limit: int | None = None) -> None:
        if not _is_whole(length, 1):
            raise UserError(f"TMaze: length must be a whole number of at least 1, not {length!r}")
        if time_limit is not None and not _is_whole(time_limit, length + 1):
            raise UserError(f"TMaze: time_limit must be a whole number above length {length}, not {time_limit!r}")
        self.length = length
        self.time_limit = 5 * (length + 1) if time_limit is None else time_limit
        self.observation_space = spaces.Box(0.0, 1.0, (3,), np.float32)
        self.action_space = spaces.Discrete(3)  # type: ignore[assignment]  # Discrete is a Space[np.int64], which takes ints
        self._goal, self._place, self._time = UP, 0, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed)
        self._goal = UP if self.np_random.random() < 0.5 else DOWN
        self._place = self._time = 0
        return np.array([self._goal == UP, self._goal == DOWN, 0.0], np.float32), {}

    def step(self, action: int) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        self._time += 1
        terminated = self._place == self.length and action != FORWARD
        reward = float(terminated and action == self._goal)
        if action == FORWARD:
            self._place = min(self._place + 1, self.length)
        obs = np.array([0.0, 0.0, self._place == self.length], np.float32)
        return obs, reward, terminated, not terminated and self._time >= self.time_limit, {}


def _is_whole(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def import_popgym() -> None:
    """Registers POPGym's environments (arXiv:2303.01859)."""
    try:
        importlib.import_module("popgym")
    except ModuleNotFoundError as error:
        raise UserError('POPGym environments need the extra `memory`: pip install "rl-training[memory]"') from error


if "rl_training/TMaze-v0" not in gym.registry:  # a reloaded module registers once
    gym.register("rl_training/TMaze-v0", entry_point="rl_training.envs.memory:TMaze")

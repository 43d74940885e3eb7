"""The lean in-process backend: one loop over the environments, one buffer, no dispatch on spaces.

Gymnasium's SyncVectorEnv spends more than the step of a classic-control environment on iterating and concatenating general spaces.
This one holds arrays only, which is all our networks read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from rl_training.envs.lives import KEY as LIVES
from rl_training.envs.masks import KEY as MASK
from rl_training.errors import SpaceError

if TYPE_CHECKING:
    from rl_training.types import Array


class SerialVectorEnv(VectorEnv[Any, Any, Any]):
    """SAME_STEP autoreset over environments with array observations.

    The arrays it returns are its own and are overwritten by the next step: the adapter copies them (once, into what it hands out).
    """

    def __init__(self, env_fns: Sequence[Callable[[], gym.Env[Any, Any]]]) -> None:
        self.envs = [make() for make in env_fns]
        first = self.envs[0]
        for i, env in enumerate(self.envs):
            if env.observation_space != first.observation_space or env.action_space != first.action_space:
                raise SpaceError(f"environment {i} has other spaces than environment 0: {env.observation_space}, {env.action_space}")
        self.num_envs = len(self.envs)
        self.metadata = {**first.metadata, "autoreset_mode": AutoresetMode.SAME_STEP}
        self.render_mode = first.render_mode
        self.single_observation_space, self.single_action_space = first.observation_space, first.action_space
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)
        # A Tuple or Dict space has no shape: `require_spaces` refuses it before a step is made.
        self._obs = np.zeros((self.num_envs, *(self.single_observation_space.shape or ())), self.single_observation_space.dtype)
        self._rewards = np.zeros(self.num_envs, np.float64)
        self._terminated = np.zeros(self.num_envs, np.bool_)
        self._truncated = np.zeros(self.num_envs, np.bool_)
        self._some_ended = False  # in the last step
        self._masks: Array | None = None  # [E, A] bool, where the environments give action masks in their infos
        self._has_mask = np.zeros(self.num_envs, np.bool_)
        self._lives: Array | None = None  # [E], where the environments count them in their infos

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        mask = (options or {}).get("reset_mask")
        for i, env in enumerate(self.envs):
            if mask is None or mask[i]:
                self._obs[i], info = env.reset(seed=None if seed is None else seed + i)
                if MASK in info:
                    self._keep_mask(i, info[MASK])
                if LIVES in info:
                    self._lives = np.zeros(self.num_envs, np.int64) if self._lives is None else self._lives
                    self._lives[i] = info[LIVES]
        return self._obs, self._infos()

    def step(self, actions: Any) -> tuple[Array, Array, Array, Array, dict[str, Any]]:
        infos: dict[str, Any] = {}
        held, rewards, masks, lives = self._obs, self._rewards, self._masks, self._lives
        if self._some_ended:  # flags are written where an episode ends, and taken back here
            self._terminated.fill(False)
            self._truncated.fill(False)
            self._some_ended = False
        for i, (env, action) in enumerate(zip(self.envs, actions, strict=True)):
            obs, rewards[i], terminated, truncated, info = env.step(action)
            if terminated or truncated:
                self._some_ended = True
                self._terminated[i], self._truncated[i] = terminated, truncated
                if "final_obs" not in infos:
                    infos["final_obs"] = np.full(self.num_envs, None, dtype=object)
                infos["final_obs"][i] = obs
                if masks is not None:
                    infos.setdefault("final_info", {MASK: np.zeros_like(masks)})[MASK][i] = info[MASK]
                obs, info = env.reset()
            held[i] = obs
            if masks is not None:
                masks[i] = info[MASK]
            if lives is not None:
                lives[i] = info[LIVES]
        if masks is not None or lives is not None:
            infos |= self._infos()
        return held, rewards, self._terminated, self._truncated, infos

    def _keep_mask(self, index: int, mask: Array) -> None:
        if self._masks is None:
            self._masks = np.zeros((self.num_envs, len(mask)), np.bool_)
        self._masks[index], self._has_mask[index] = mask, True

    def _infos(self) -> dict[str, Any]:
        masks = {} if self._masks is None else {MASK: self._masks, f"_{MASK}": self._has_mask}
        return masks if self._lives is None else {**masks, LIVES: self._lives}

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        attributes = [env.get_wrapper_attr(name) for env in self.envs]
        return tuple(attribute(*args, **kwargs) if callable(attribute) else attribute for attribute in attributes)

    def set_attr(self, name: str, values: Sequence[Any]) -> None:
        for env, value in zip(self.envs, values, strict=True):
            env.set_wrapper_attr(name, value)

    def close_extras(self, **kwargs: Any) -> None:
        for env in self.envs:
            env.close()

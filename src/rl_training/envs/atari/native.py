"""ALE's own vector environment (C++ threads), behind the same protocol and with the same observations as single games."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from rl_training.envs.atari.presets import Protocol
from rl_training.errors import UserError

if TYPE_CHECKING:
    from rl_training.types import Array

NEVER = 2**31 - 1  # the largest int of C++: 400 days of play


class NativeAtari(VectorEnv[Any, Any, Any]):
    """One frame an observation, real rewards, SAME_STEP autoreset: stacking, clipping and lives are the adapter's, as they are for others.

    Nothing of `gymnasium.make_vec` is used: it turns ALE's sticky actions and its reward clipping on. Episodes are truncated here, not by
    ALE, which leaves the last frame out of a truncated episode's final observation: what the learner bootstraps from.
    """

    def __init__(self, game: str, protocol: Protocol, num_envs: int) -> None:
        import ale_py
        from ale_py.vector_env import AtariVectorEnv

        ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)  # before the first one greets
        if protocol.mode is not None or protocol.difficulty is not None:
            raise UserError("vectorization: native plays a game's first mode and difficulty: use vectorization auto, sync or async")
        self._env = AtariVectorEnv(
            game,
            num_envs,
            max_num_frames_per_episode=NEVER,
            repeat_action_probability=protocol.sticky_probability,
            full_action_space=protocol.full_action_set,
            autoreset_mode=AutoresetMode.SAME_STEP,
            img_height=protocol.screen_size,
            img_width=protocol.screen_size,
            grayscale=protocol.grayscale,
            stack_num=1,
            frameskip=protocol.frame_skip,
            maxpool=protocol.max_pool and protocol.frame_skip > 1,
            noop_max=protocol.noop_max,
            use_fire_reset=protocol.fire_reset,
            reward_clipping=False,
        )
        self.num_envs = num_envs
        self._left = np.zeros(num_envs, np.int64)  # [E] steps until an episode is truncated
        self._max_steps = protocol.max_steps
        self.metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}
        shape = (protocol.screen_size, protocol.screen_size) if protocol.grayscale else (protocol.screen_size, protocol.screen_size, 3)
        self.single_observation_space = gym.spaces.Box(0, 255, shape, np.uint8)
        self.single_action_space = self._env.single_action_space
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        obs, infos = self._env.reset(seed=seed, options=options)
        self._left[:] = self._max_steps
        return obs[:, 0], infos

    def step(self, actions: Array) -> tuple[Array, Array, Array, Array, dict[str, Any]]:
        obs, rewards, terminated, truncated, infos = self._env.step(actions)
        obs = obs[:, 0]
        if "final_obs" in infos:
            infos["final_obs"] = infos["final_obs"][:, 0]
            self._left[terminated] = self._max_steps + 1
        self._left -= 1
        if not self._left.all():
            obs, infos, truncated = self._truncate(obs, infos, self._left == 0)
        return obs, rewards, terminated, truncated, infos

    def _truncate(self, obs: Array, infos: dict[str, Any], cut: Array) -> tuple[Array, dict[str, Any], Array]:
        """Begins new episodes in the environments `cut` [E]: all observations, infos with the final ones, and `cut`."""
        final = infos.get("final_obs", obs).copy()
        final[cut] = obs[cut]
        first, begun = self._env.reset(options={"reset_mask": cut})
        self._left[cut] = self._max_steps
        shape = cut.reshape(-1, *[1] * (obs.ndim - 1))
        lives = np.where(cut, begun["lives"], infos["lives"])
        return np.where(shape, first[:, 0], obs), {**infos, "final_obs": final, "lives": lives}, cut

    def close_extras(self, **kwargs: Any) -> None:
        self._env.close()


def departures(protocol: Protocol) -> str:
    """What of the protocol ALE's vector environment does in another way; "" where nothing."""
    found = []
    if protocol.noop_max:
        found.append(f"no-ops are 0 … {protocol.noop_max - 1}, not 1 … {protocol.noop_max}")
    if protocol.fire_reset:
        found.append("FIRE is pressed for one frame, before the no-ops, and nothing after it")
        if protocol.terminal_on_life_loss:
            found.append("nothing is played after a lost life")
    if protocol.pool_in_colour and protocol.max_pool and protocol.grayscale:
        found.append("frames are pooled in grey")
    return f"native: {'; '.join(found)}" if found else ""

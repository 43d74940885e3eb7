"""One meaning of a step over any Gymnasium vector environment, whatever its autoreset mode.

    mode        the step that ends an episode gives     the step after it
    NEXT_STEP   the final observation                   is the reset step: not `valid`, `obs` begins the episode
    SAME_STEP   the next episode's first observation,   is an ordinary one
                the final one in infos["final_obs"]
    DISABLED    the final observation; we reset         is an ordinary one

In every mode `final_obs` is what the action led to, termination and truncation stay apart (both at once is a termination), and no reset
step counts.

Lifetime: the arrays of an `EnvStep` (and of `reset`, `obs` and `Restored`) are never written to again, neither by us nor by the backend.
Keep them as long as you like, and do not write to them: `final_obs` *is* `obs` where no episode ended, and the flags are shared.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv

from rl_training.envs.checks import UNSUSPICIOUS, Checks
from rl_training.envs.episodes import FAILURES, episode_seed
from rl_training.envs.images import Channels, image_form
from rl_training.envs.lives import Lives
from rl_training.envs.masks import MaskError, VectorMasks
from rl_training.envs.normalize import ObservationNormalizer, RewardNormalizer
from rl_training.envs.restoring import EpisodeKeeper, Restored, Workers
from rl_training.envs.spaces import as_read, describe_action_space, first_action
from rl_training.envs.stacking import FrameStacker, require_stack
from rl_training.envs.tally import Tally
from rl_training.errors import CheckpointError, RunError, UserError, one_line, warn
from rl_training.types import EnvStep, Episode, RawStep, State

if TYPE_CHECKING:
    from rl_training.types import Array

RESTARTS = "episodes under way restart on resume: this backend cannot play them again"


class VectorEnvs:
    """Steps E environments; counts, checks and restores them.

    `replayable` says that every environment is wrapped in `ReplayableEpisodes`: then `state_dict` holds each episode's number and actions,
    and `load_state_dict` plays them again. Otherwise `seed` seeds each `reset`, and episodes restart on resume (`resume_note` says so).

    Images come out channels first, whatever form the environments give them in (images.py); `image_channels` says which axis that is,
    and `frame_stack` how many of them an observation is (stacking.py).
    `clip_rewards` gives out rewards clipped to ±1; returns stay the environments' own. `life_loss` says which steps lost a life (lives.py).
    `notes` is what a run's metadata says of the environments.
    first_index: the number of the first one, where they are not the only environments of a run.

    What fails before the first step is a UserError: these environments cannot be used. Later it is a RunError.
    """

    def __init__(
        self,
        vector_env: VectorEnv[Any, Any, Any],
        *,
        replayable: bool,
        seed: int = 0,
        seed_stream: str = "train",
        first_index: int = 0,
        observation_normalizer: ObservationNormalizer | None = None,
        reward_normalizer: RewardNormalizer | None = None,
        image_channels: Channels = "auto",
        clip_rewards: bool = False,
        life_loss: bool = False,
        notes: Mapping[str, str] | None = None,
        frame_stack: int = 1,
    ) -> None:
        mode = vector_env.metadata.get("autoreset_mode")
        if not isinstance(mode, AutoresetMode):
            raise UserError(f"{vector_env} does not say its autoreset mode: metadata['autoreset_mode'] must be an AutoresetMode")
        self._env, self._mode = vector_env, mode
        self._workers = cast("Workers", vector_env)  # used where `replayable`: Gymnasium's base class does not declare its methods
        self.num_envs = vector_env.num_envs
        self.single_action_space: gym.Space[Any] = vector_env.single_action_space
        self._first_action = first_action(describe_action_space(self.single_action_space))
        self.image = image_form(vector_env.single_observation_space, image_channels)
        self.single_observation_space = as_read(vector_env.single_observation_space) if self.image is None else self.image.space
        self._dtype = self.single_observation_space.dtype
        self.exact_resume = replayable
        self._episodes = EpisodeKeeper(self._workers, self.single_action_space, first_index) if replayable else None
        self._seed, self._stream, self._first_index, self._resets = seed, seed_stream, first_index, 0
        self.observation_normalizer = observation_normalizer
        self.reward_normalizer = reward_normalizer
        self._lives = Lives(vector_env.num_envs) if life_loss else None
        self._clips, self.notes = clip_rewards, dict(notes or {})
        self.normalizes = observation_normalizer is not None or reward_normalizer is not None

        num = self.num_envs
        self.all_valid, self._none = np.ones(num, np.bool_), np.zeros(num, np.bool_)  # the very `valid` of a step without reset steps
        self.all_valid.flags.writeable = self._none.flags.writeable = False
        self._waiting: Array | None = None  # [E] bool, NEXT_STEP: those whose next step is a reset step
        self._floats = self._dtype is not None and np.issubdtype(self._dtype, np.floating)
        self._shape = (num, *(self.single_observation_space.shape or ()))
        self._finite = np.ones(self._shape if self._floats else 0, np.bool_)  # observations [E, ...]
        self._tally = Tally(num, first_index)
        self._checks = Checks(self._shape, self._tally, first_index)
        self._stacker: FrameStacker | None = None
        self.frame_stack = require_stack(frame_stack, images=self.image is not None)
        if self.image is not None and self.frame_stack > 1:
            self._stacker = FrameStacker(num, self.frame_stack, self.image.space)
            self.single_observation_space = self._stacker.space  # from here on, `_shape` is of what the environments give
        self._raw: Array = np.zeros(0)  # the current observations, single and before normalisation: what a replay must arrive at
        self.obs: Array = self._raw
        self._masks: VectorMasks | None = None
        self._masks_are_known = False  # from the first reset on

    # Stepping

    def begin(self) -> Array:
        """The first observations. Only the first call resets; from then on it is known whether there are action masks."""
        return self.obs if self._resets else self.reset()

    @property
    def action_masks(self) -> Array | None:
        """[E, A] bool, what `obs` allows; None where the environments give no masks."""
        return None if self._masks is None else self._masks.now

    def reset(self, first_episode: int | None = None) -> Array:
        """Begins a new episode everywhere; `first_episode` says which one, so that an evaluation can repeat its own (next one if None)."""
        if first_episode is not None:
            self._resets = first_episode
            if self.exact_resume:
                self._workers.set_attr("next_episode", [first_episode] * self.num_envs)
        self._tally.reset()
        self._waiting = None
        if self.reward_normalizer is not None:
            self.reward_normalizer.reset()
        seed = None if self.exact_resume else episode_seed(self._seed, self._stream, self._first_index, self._resets)
        self._resets += 1
        return self._arrive(self._read(self._guarded_reset(seed=seed)), self.all_valid)

    def step(self, actions: Array) -> EnvStep:
        """actions: [E, ...]; Discrete ones count from 0, whatever the space starts at."""
        if self._first_action:
            actions = actions + self._first_action
        try:
            raw, rewards, terminated, truncated, infos = self._env.step(actions)
            rewards = np.asarray(rewards, np.float64)
        except RunError:
            raise
        except FAILURES as error:  # a backend without our wrapper may raise anything: it is chained, never swallowed
            raise RunError(f"the environments raised {one_line(error)} at vector step {self._tally.tick + 1}") from error
        self._tally.tick += 1
        obs = self._read(raw)
        final_obs, valid, is_first = obs, self.all_valid, self._none
        episodes: tuple[Episode, ...] = ()
        some_ended = np.count_nonzero(terminated) or np.count_nonzero(truncated)
        if some_ended:
            terminated, truncated = np.array(terminated, np.bool_), np.array(truncated, np.bool_)
        else:
            terminated = truncated = self._none

        if self._waiting is not None:
            is_first, valid = self._waiting, ~self._waiting
            self._waiting = None
            rewards = np.where(is_first, 0.0, rewards)
            if some_ended:
                terminated[is_first] = truncated[is_first] = False
            self._tally.begin(is_first)
        self._tally.add(rewards)
        if self._floats:
            np.isfinite(obs, out=self._finite)
        if not rewards.dot(rewards) < UNSUSPICIOUS or np.count_nonzero(self._finite) < self._finite.size:
            self._checks.require_small_enough(rewards)
            self._checks.require_finite(obs)

        if self._masks is not None:  # before any reset of ours
            self._step_masks(infos, terminated, truncated)
        lost_life = None if self._lives is None else self._lives.step(infos, terminated | truncated)
        if self._clips:
            rewards = np.clip(rewards, -1.0, 1.0)
        if some_ended and (ended := terminated | truncated).any():
            truncated &= ~terminated
            if self._mode is AutoresetMode.SAME_STEP:
                final_obs = self._final_obs(obs, ended, infos)
            episodes = self._tally.finish(ended)
            if self._mode is AutoresetMode.NEXT_STEP:
                self._waiting = ended
            else:
                is_first = ended
            if self._mode is AutoresetMode.DISABLED:
                obs = self._reset_some(obs, ended)

        self._raw, raw = obs, None
        if self._stacker is not None:
            obs, final_obs = self._stacker.step(obs, final_obs, is_first)
        if self.normalizes:
            raw = RawStep(obs, final_obs, rewards.astype(np.float32))
        if self.observation_normalizer is not None:
            obs, final_obs = self.observation_normalizer.step(obs, final_obs, is_first, valid)
        self.obs = obs
        if self.reward_normalizer is not None:
            rewards = self.reward_normalizer.step(rewards, terminated | truncated, valid)
        step = EnvStep(obs, final_obs, rewards.astype(np.float32), terminated, truncated, is_first, valid, episodes, raw, lost_life)
        return step if self._masks is None else step._replace(action_masks=self._masks.now, next_action_masks=self._masks.final)

    @property
    def resume_note(self) -> str:
        """What resume cannot promise; "" where it is exact."""
        return RESTARTS if self._episodes is None else self._episodes.note

    @property
    def raw_obs(self) -> Array:
        """`obs` before normalisation."""
        return self.obs if self.observation_normalizer is None else self._raw

    def close(self) -> None:
        """Never raises: whoever closes has done what it came for, or an error of its own to tell."""
        try:
            self._env.close()
        except FAILURES as error:
            warn(f"the environments raised {one_line(error)} in close()", RuntimeWarning)

    def cut_episodes(self) -> tuple[list[int], ...]:
        """For each environment, which of its episodes `max_steps` ended."""
        return self._workers.call("cut_episodes") if self.exact_resume else tuple([] for _ in range(self.num_envs))

    # State

    def state_dict(self) -> State:
        state: State = {
            "obs": self._raw.copy(),
            **self._tally.state_dict(),
            "waiting": self._none.copy() if self._waiting is None else self._waiting.copy(),
            "resets": self._resets,
            "statistics": self.statistics(),
        }
        if self._stacker is not None:
            state["stacks"] = self.obs.copy()
        return state if self._episodes is None else state | self._episodes.state_dict()

    def load_state_dict(self, state: State) -> Restored:
        """Brings every environment back to where it was saved; one that does not arrive there is said and begins a fresh episode."""
        saved = {key: np.asarray(value).copy() for key, value in state.items() if key not in ("resets", "statistics", "states")}
        if len(saved["returns"]) != self.num_envs:
            raise CheckpointError(f"the checkpoint holds {len(saved['returns'])} environments, this run has {self.num_envs}")
        if self._episodes is not None and "episodes" not in saved:
            raise CheckpointError("the checkpoint's environments cannot be played again: it was made with vectorization native")
        self.load_statistics(state["statistics"])
        self._resets = state["resets"]
        self._tally.load_state_dict(saved, self._none)  # what fails from here on fails before the first step
        if self._episodes is None:
            if self.reward_normalizer is not None:
                self.reward_normalizer.reset()
            self._waiting = None
            seed = episode_seed(self._seed, self._stream, self._first_index, self._resets)
            self._resets += 1
            return Restored(self._arrive(self._read(self._guarded_reset(seed=seed)), self.all_valid), self._none)
        states = state.get("states") or ()
        if states and len(states) != self.num_envs:
            raise CheckpointError(f"the checkpoint holds {len(states)} states of environments, this run has {self.num_envs}")
        obs, restored = self._episodes.restore(saved, states, lambda **options: self._read(self._guarded_reset(**options)))
        if self._stacker is not None:
            self._stacker.load(saved["stacks"])
        self._arrive(obs, ~restored)
        self._tally.load_state_dict(saved, restored)
        waiting = saved["waiting"] & restored
        self._waiting = waiting if waiting.any() else None
        if self.reward_normalizer is not None:
            self.reward_normalizer.reset(~restored)
        return Restored(self.obs, restored)

    def statistics(self) -> State:
        """The normalisers' state, apart from the environments': what an evaluation of the same policy needs."""
        parts = {"observation": self.observation_normalizer, "reward": self.reward_normalizer}
        return {name: part.state_dict() for name, part in parts.items() if part is not None}

    def load_statistics(self, state: State) -> None:
        if self.observation_normalizer is not None and "observation" in state:
            self.observation_normalizer.load_state_dict(state["observation"])
        if self.reward_normalizer is not None and "reward" in state:
            self.reward_normalizer.load_state_dict(state["reward"])

    # Parts of a step

    def _guarded_reset(self, **kwargs: Any) -> Any:
        which = (kwargs.get("options") or {}).get("reset_mask")
        try:
            obs, infos = self._env.reset(**kwargs)
            self._reset_masks(infos, which)
            if self._lives is not None:
                self._lives.reset(infos, which)
        except MaskError as error:
            raise self._checks.wrong_mask(error) from error
        except RunError as error:
            raise self._checks.failure(str(error)) from error
        except FAILURES as error:  # as in `step`
            raise self._checks.failure(f"the environments raised {one_line(error)} in a reset") from error
        return obs

    def _reset_masks(self, infos: dict[str, Any], which: Array | None) -> None:
        if not self._masks_are_known:
            self._masks, self._masks_are_known = VectorMasks.found(self._env, infos, self._mode), True
        if self._masks is not None:
            self._masks.reset(infos, which)

    def _step_masks(self, infos: dict[str, Any], terminated: Array, truncated: Array) -> None:
        assert self._masks is not None
        try:
            self._masks.step(infos, terminated, truncated)
        except MaskError as error:
            raise self._checks.wrong_mask(error) from error

    def _read(self, raw: Any) -> Array:
        """The backend's observations as ours: a copy, since it may reuse its arrays."""
        if self.image is not None:
            obs = self.image.read(np.asarray(raw))
        elif getattr(raw, "dtype", None) == self._dtype:
            obs = np.array(raw)
        else:
            with np.errstate(over="ignore"):  # what float32 cannot hold is found and named afterwards
                obs = np.array(raw, self._dtype)
        if obs.shape != self._shape:
            raise self._checks.wrong_shape(obs.shape)
        return obs

    def _arrive(self, obs: Array, new: Array) -> Array:
        """Makes these the current observations, as `_read` gave them; `new` [E] are those the normaliser has not seen, and that begin a
        stack."""
        self._raw = obs
        self._checks.require_finite(obs)
        if self._stacker is not None:
            obs = self._stacker.begin(obs, new)
        if self.observation_normalizer is not None:
            obs, _ = self.observation_normalizer.step(obs, obs, new, self._none)
        self.obs = obs
        return obs

    def _final_obs(self, obs: Array, ended: Array, infos: dict[str, Any]) -> Array:
        if "final_obs" not in infos:
            raise RunError(f"{self._env} resets in the same step but gives no infos['final_obs']: an episode's final observation is lost")
        final_obs = obs.copy()
        for i in np.flatnonzero(ended):
            final = infos["final_obs"][i]
            if self.image is not None:
                final = self.image.read(np.asarray(final))
            self._checks.require_final_shape(final, int(i))
            final_obs[i] = final
        self._checks.require_finite(final_obs)
        return final_obs

    def _reset_some(self, obs: Array, ended: Array) -> Array:
        first = self._read(self._guarded_reset(options={"reset_mask": ended.copy()}))
        obs = obs.copy()
        obs[ended] = first[ended]
        self._checks.require_finite(obs)
        return obs

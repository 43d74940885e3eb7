"""Episodes that can be seeded one by one and played again.

Any deterministic Gymnasium environment is resumed exactly without pickling it: episode k of environment i always begins from the same
seed, so the seed and the actions since the last reset *are* its state. `ReplayableEpisodes` is the outermost wrapper of each environment,
inside the vector environment, so that it sees the resets an autoreset makes, in this process or in a worker.

The record has a bound (`MAX_RECORDED`), since a continuing task never resets: an episode that is longer cannot be played again.

An environment may offer a pair of its own instead, which spares the playing (an Atari game has up to 27,000 steps):

    save_state() -> State | None           everything it goes on from, as a checkpoint can hold it; None: it has none now
    restore_state(state) -> obs, info      called after a reset; raises where that is no state of its own

Where what it arrives at is not the observation that was saved, or it raises, the actions are played. Only the environment itself can offer
the pair: a wrapper around it may hold something that is not in its state.
"""

from __future__ import annotations

import copy
import zlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, SupportsFloat, TypedDict, cast

import gymnasium as gym
import numpy as np

from rl_training.envs.masks import KEY as MASK
from rl_training.envs.masks import EnvMasks, MaskError
from rl_training.errors import RunError, one_line, warn

if TYPE_CHECKING:
    from rl_training.types import Array, State

MAX_RECORDED = 100_000
"""The longest episode, in steps, whose actions are kept: several times the longest of Atari."""

FAILURES = (Exception, SystemExit)
"""What an environment's code may raise when it fails; `sys.exit` in it must not end a run in silence."""


def episode_seed(seed: int, stream: str, env_index: int, episode: int) -> int:
    """The seed of one episode: SeedSequence((run seed, stream, environment, episode)); 31 bits, because some environments keep a C int.

    `stream` ("train", "evaluation", ...) keeps purposes apart: two streams of one run seed share no episodes.
    """
    words = (seed, zlib.crc32(stream.encode()), env_index, episode)
    # The same entropy in half the time, where each is one word of it: NumPy looks at Python's numbers one by one.
    sequence = np.random.SeedSequence(words if max(words) >> 32 else np.array(words, np.uint32))
    return int(sequence.generate_state(1)[0]) >> 1


class SavedEpisode(NamedTuple):
    """An episode under way."""

    number: int
    actions: Array | None  # [t, ...] since its reset; None where it is longer than what is kept
    state: State | None  # `save_state` of the environment with `obs`, where it offers that


class EpisodeRecord(TypedDict):
    """Where an environment is to be brought back to."""

    episode: int
    actions: Array | None  # as in SavedEpisode
    state: State | None
    length: int
    ended: bool  # the episode is over and its reset has not come yet, as between two steps of NEXT_STEP


class Replay(TypedDict):
    """What playing a record again gave, for the adapter to compare with what was saved."""

    episode_return: float | None  # None where the state was restored, and nothing played
    length: int
    ended: bool


class ReplayableEpisodes(gym.Wrapper[Any, Any, Any, Any]):
    """Seeds every episode, records its actions, plays a record again, and names the environment whose code fails.

    A discrete action reaches the environment as a Python int, whatever the backend hands over, so that a replay makes the very same calls.
    Where the environment has action masks (masks.py), every `info` holds the observation's as `action_mask`, checked.
    record: False keeps no actions: nobody resumes an evaluation. max_steps: an episode that goes on after so many steps is cut there.
    """

    def __init__(
        self, env: gym.Env[Any, Any], *, seed: int, stream: str, env_index: int, record: bool = True, max_steps: int | None = None
    ) -> None:
        super().__init__(env)
        self._seed, self._stream, self._env_index = seed, stream, env_index
        self._most, self._max_steps = MAX_RECORDED if record else 0, max_steps
        self._shape, self._dtype = env.observation_space.shape, env.observation_space.dtype  # None for a Tuple or Dict, which no row takes
        self._length = 0  # steps since the reset
        self._obs: Any = None  # the last one
        self._saving = _saving(env) if record else None
        self.cut_episodes: list[int] = []  # those that `max_steps` ended
        self._keep: Callable[[Any], Any] = int if isinstance(env.action_space, gym.spaces.Discrete) else np.array  # np.array copies
        self._actions: list[Any] = []
        self._masks: EnvMasks | None = None
        self._masks_are_known = False  # from the first reset on
        self._reset_due = False  # a restored NEXT_STEP environment: the backend has forgotten that its next step is the reset step
        self.next_episode = 0
        self.resume_from: EpisodeRecord | None = None  # the next reset plays this instead of beginning `next_episode`
        self.replay: Replay | None = None  # what the last such reset found

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begins the next episode from its own seed (`seed` is ignored), or plays `resume_from` again and returns where it arrives."""
        record, self.resume_from = self.resume_from, None
        if record is None:
            return self._begin(options)
        self.next_episode = record["episode"]
        obs, info = self._begin(options)
        if record["state"] is not None and not record["ended"] and (arrived := self._restored(record)) is not None:
            return arrived
        episode_return, ended = 0.0, False
        for action in record["actions"] if record["actions"] is not None else ():
            if ended:  # it ended earlier than when it was recorded: not deterministic, and no step may follow an end
                break
            obs, reward, terminated, truncated, info = self.step(action)
            episode_return += float(reward)
            ended = bool(terminated or truncated)
        self.replay = Replay(episode_return=episode_return, length=self._length, ended=ended)
        self._reset_due = record["ended"]
        return obs, info

    def _restored(self, record: EpisodeRecord) -> tuple[Any, dict[str, Any]] | None:
        """Where the environment's own state brings it, or None: then it has begun the episode again."""
        if self._saving is None:
            return None
        state = dict(record["state"] or {})
        try:
            expected = np.asarray(state.pop("obs"))
            obs, info = self._saving.restore_state(state)
        except FAILURES:  # a state that is not its own: the actions say where it was
            obs, info, expected = None, {}, np.zeros(0)
        if obs is None or not np.array_equal(obs, expected):
            self.next_episode = record["episode"]
            self._begin(None)
            return None
        self._length, self._obs = record["length"], obs
        self._actions = [] if record["actions"] is None else [self._keep(action) for action in record["actions"]]
        self.replay = Replay(episode_return=None, length=self._length, ended=False)
        return obs, self._with_mask(info, False)

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        if self._reset_due:
            obs, info = self._begin(None)
            return obs, 0.0, False, False, info
        action = self._keep(action)
        self._length += 1
        if self._length <= self._most:
            self._actions.append(action)
        try:
            obs, reward, terminated, truncated, info = self.env.step(action)
            reward, ended = float(reward), bool(terminated or truncated)
        except FAILURES as error:  # an environment may raise anything: it is chained, never swallowed
            raise self._failure(error, "step must return (obs, reward, terminated, truncated, info), the reward a number") from error
        if type(obs) is not np.ndarray or obs.shape != self._shape or obs.dtype != self._dtype:
            obs = self._as_its_space(obs)
        if self._length == self._max_steps and not ended:
            truncated = ended = True
            self.cut_episodes.append(self.next_episode - 1)
        if self._masks is not None:
            info = self._with_mask(info, bool(terminated))
        if ended:
            obs = copy.deepcopy(obs)  # the reset that follows may write into the same array
        self._obs = obs
        return obs, reward, terminated, truncated, info

    def close(self) -> None:
        """What fails here is a warning: the run has what it needs, and an error that is on its way must not be hidden by this one."""
        try:
            super().close()
        except FAILURES as error:
            warn(f"environment {self._env_index} raised {one_line(error)} in close()", RuntimeWarning)

    def saved_episode(self) -> SavedEpisode:
        state = None if self._saving is None else self._saving.save_state()
        if state is not None:
            state = {**state, "obs": np.array(self._obs)}
        if self._length > self._most:
            self._actions.clear()
            return SavedEpisode(self.next_episode - 1, None, state)
        actions = np.asarray(self._actions) if self._actions else np.zeros((0, *(self.action_space.shape or ())), self.action_space.dtype)
        return SavedEpisode(self.next_episode - 1, actions, state)

    def _begin(self, options: dict[str, Any] | None) -> tuple[Any, dict[str, Any]]:
        episode = self.next_episode
        self.next_episode += 1
        self._actions, self._length = [], 0
        self._reset_due = False
        try:
            obs, info = self.env.reset(seed=episode_seed(self._seed, self._stream, self._env_index, episode), options=options or None)
        except FAILURES as error:  # as above
            raise self._failure(error, "reset must take seed= and options= and return (obs, info)") from error
        self._obs = self._as_its_space(obs)
        return self._obs, self._with_mask(info, False)

    def _with_mask(self, info: dict[str, Any], terminated: bool) -> dict[str, Any]:
        try:
            if not self._masks_are_known:
                self._masks = EnvMasks.found(self.env, info)
                self._masks_are_known = True
            return info if self._masks is None else {**info, MASK: self._masks.read(info, terminated)}
        except MaskError as error:
            raise RunError(f"environment {self._env_index} gave {error} in {self._when}") from error
        except FAILURES as error:  # `action_masks` is its own code too
            raise self._failure(error) from error

    def _as_its_space(self, obs: Any) -> Any:
        """NumPy would broadcast an observation of another shape into ours in silence, and make 0 of a pixel of 0.9."""
        if self._shape is None:
            return obs
        try:
            if type(obs) is np.ndarray and obs.dtype == self._dtype:
                array = obs
            else:
                with np.errstate(over="ignore", invalid="ignore"):  # what float32 cannot hold becomes infinite, which the adapter sees
                    array = np.asarray(obs, self._dtype)
        except FAILURES as error:  # None, text, or lists of unequal lengths
            what = f"that is no array of numbers ({one_line(error)})"
            raise RunError(f"environment {self._env_index} gave an observation {what}, in {self._when}") from error
        if array.shape != self._shape:
            raise RunError(f"environment {self._env_index} gave an observation of shape {array.shape}, not {self._shape}, in {self._when}")
        if array is not obs and array.dtype.kind in "biu" and (given := np.asarray(obs)).dtype.kind in "iuf" and (given != array).any():
            what = f"{given.dtype}, from {given.min():g} to {given.max():g}, where its space has {array.dtype}"
            raise RunError(f"environment {self._env_index} gave an observation of {what}, in {self._when}")
        return array

    @property
    def _when(self) -> str:
        return f"{f'step {self._length}' if self._length else 'the reset'} of its episode {self.next_episode - 1}"

    def _failure(self, error: BaseException, promise: str | None = None) -> RunError:
        """promise: what the environment owes its caller, said where the error came from the caller and not from its own code."""
        more = f": {promise}" if promise is not None and _raised_by_a_caller(error) else ""
        return RunError(f"environment {self._env_index} raised {one_line(error)} in {self._when}{more}")


class Saving(Protocol):
    """The pair that an environment may offer."""

    def save_state(self) -> State | None: ...

    def restore_state(self, state: State) -> tuple[Any, dict[str, Any]]: ...


def _saving(env: gym.Env[Any, Any]) -> Saving | None:
    """The environment, where it offers the pair, behind nothing but wrappers of Gymnasium's that hold nothing of an episode."""
    while isinstance(env, (gym.wrappers.PassiveEnvChecker, gym.wrappers.OrderEnforcing)):
        env = env.env
    return cast("Saving", env) if hasattr(env, "save_state") and hasattr(env, "restore_state") else None


CALLERS = (__name__, "gymnasium.core", "gymnasium.wrappers", "gymnasium.utils")


def _raised_by_a_caller(error: BaseException) -> bool:
    """Whether the environment's answer was wrong, or the way to ask it, and not what it does inside."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and str(trace.tb_frame.f_globals.get("__name__")).startswith(CALLERS)

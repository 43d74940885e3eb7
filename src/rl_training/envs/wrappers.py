"""The wrappers a config can name: `env_kwargs: {wrappers: [flatten, {keep: {indices: [0, 2]}}]}`, the innermost first.

`normalize_observation` and `normalize_reward` are kept by the adapter (normalize.py), so they come last. `register_wrapper` adds a name.
"""

from __future__ import annotations

import difflib
import inspect
import operator
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, SupportsFloat, TypeAlias, cast

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from rl_training.envs.episodes import FAILURES
from rl_training.envs.images import is_image
from rl_training.envs.masks import KEY as MASK
from rl_training.envs.normalize import ObservationNormalizer, RewardNormalizer
from rl_training.envs.stacking import KEY as FRAME_STACK
from rl_training.errors import SpaceError, UserError, one_line
from rl_training.types import Array

AnyEnv: TypeAlias = gym.Env[Any, Any]
Wrap: TypeAlias = Callable[..., AnyEnv]
MAX_FRAMES = 10_000
UNSEEN = ("time_limit", "ignore_action_masks", "normalize_reward")
"""The wrappers that change no observation."""


class WrapperCall(NamedTuple):
    """One entry of the list, checked: a known name with arguments its wrapper takes."""

    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Wrappers:
    """A parsed list: those that wrap each environment, and the two that the adapter keeps."""

    per_env: tuple[WrapperCall, ...] = ()
    observation: dict[str, Any] | None = None  # arguments of ObservationNormalizer, where asked for
    reward: dict[str, Any] | None = None

    def apply(self, env: AnyEnv) -> AnyEnv:
        for name, arguments in self.per_env:
            try:
                env = _TABLE[name](env, **arguments)
            except UserError:
                raise
            except FAILURES as error:  # a wrapper of the user's own may raise anything
                raise UserError(f"wrapper {name} cannot be used with {arguments}: {one_line(error)}") from error
        return env


def parse_wrappers(entries: Any) -> Wrappers:
    """Reads names and `{name: {argument: value}}`; an unknown name or argument is a UserError with the nearest known one."""
    if not isinstance(entries, Sequence) or isinstance(entries, str):
        raise UserError(f"env_kwargs.wrappers must be a list of names or {{name: {{arguments}}}}, not {entries!r}")
    calls = [_parse_entry(entry) for entry in entries]
    adapter = {call.name: call.arguments for call in calls if call.name in _ADAPTER}
    per_env = tuple(call for call in calls if call.name not in _ADAPTER)
    if any(call.name in _ADAPTER for call in calls[: len(per_env)]) or len(adapter) + len(per_env) < len(calls):
        raise UserError(f"env_kwargs.wrappers: {' and '.join(sorted(_ADAPTER))} come last, each once")
    return Wrappers(per_env, adapter.get("normalize_observation"), adapter.get("normalize_reward"))


def register_wrapper(name: str, wrap: Wrap) -> None:
    """Adds `wrap(env, **arguments) -> gymnasium.Env` under a name configs can use; an undeterministic one costs exact resume."""
    if name in _TABLE or name in _ADAPTER:
        raise UserError(f"there is a wrapper named {name} already")
    _TABLE[name] = wrap


def wrapper_names() -> tuple[str, ...]:
    return tuple(sorted((*_TABLE, *_ADAPTER)))


def _parse_entry(entry: Any) -> WrapperCall:
    if isinstance(entry, str):
        name, arguments = entry, cast("dict[str, Any]", {})
    elif isinstance(entry, Mapping) and len(entry) == 1:
        name, arguments = next(iter(entry.items()))
        arguments = {} if arguments is None else arguments
    else:
        raise UserError(f"env_kwargs.wrappers: an entry is a name or {{name: {{arguments}}}}, not {entry!r}")
    if name not in wrapper_names():
        raise UserError(f"env_kwargs.wrappers: no wrapper is named {name!r}; {_nearest(str(name), wrapper_names())}")
    if not isinstance(arguments, Mapping):
        raise UserError(f"env_kwargs.wrappers: the arguments of {name} must be a mapping, not {arguments!r}")
    target: Callable[..., Any] = _TABLE[name] if name in _TABLE else _ADAPTER[name]
    # The first parameter is the environment (or the adapter's own), `update` belongs to evaluation.
    parameters = [p for p in list(inspect.signature(target).parameters.values())[1:] if p.name != "update"]
    names = tuple(p.name for p in parameters)
    if not any(p.kind is p.VAR_KEYWORD for p in parameters):
        for argument in arguments:
            if argument not in names:
                raise UserError(f"env_kwargs.wrappers: {name} has no argument {argument!r}; {_nearest(str(argument), names)}")
    needed = [p.name for p in parameters if p.default is p.empty and p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
    missing = [needed_name for needed_name in needed if needed_name not in arguments]
    if missing:
        raise UserError(f"env_kwargs.wrappers: {name} needs {', '.join(missing)}")
    if name in _ADAPTER:  # made where a run has begun: too late to refuse
        for argument, value in arguments.items():
            _check_number(name, argument, value)
    return WrapperCall(name, dict(arguments))


def _nearest(name: str, known: Sequence[str]) -> str:
    if not known:
        return "it takes none"
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"


# The wrappers themselves


class _Keep(gym.ObservationWrapper[Any, Any, Any]):
    def __init__(self, env: AnyEnv, indices: Sequence[int]) -> None:
        super().__init__(env)
        space = _vector_space("keep", env)
        size = space.shape[0]
        if not indices or not all(_is_whole(i, 0) and i < size for i in indices):
            raise UserError(f"wrapper keep: indices must be whole numbers from 0 to {size - 1}, not {indices!r}")
        self._indices = np.array(indices)
        self.observation_space = spaces.Box(space.low[self._indices], space.high[self._indices], dtype=space.dtype.type)

    def observation(self, observation: Any) -> Any:
        return observation[self._indices]


class _FrameStack(gym.Wrapper[Any, Any, Any, Any]):
    def __init__(self, env: AnyEnv, size: int) -> None:
        super().__init__(env)
        space = env.observation_space
        if not isinstance(space, spaces.Box):
            raise SpaceError(f"wrapper frame_stack needs a Box observation, not {space}; put `flatten` before it")
        if is_image(space):
            raise UserError(f"wrapper frame_stack is for vectors: for images say env_kwargs.{FRAME_STACK}: {size!r:.60}")
        if not _is_whole(size, 1) or size > MAX_FRAMES:
            raise UserError(f"wrapper frame_stack: size must be a whole number of at least 1 and at most {MAX_FRAMES:,}, not {size!r:.60}")
        self._frames: deque[Any] = deque(maxlen=size)
        self._join: Callable[[Sequence[Any]], Array] = np.concatenate if len(space.shape) == 1 else np.stack
        self.observation_space = spaces.Box(self._join([space.low] * size), self._join([space.high] * size), dtype=space.dtype.type)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        obs, info = self.env.reset(seed=seed, options=options)
        self._frames.extend([np.array(obs)] * (self._frames.maxlen or 1))
        return self._join(self._frames), info

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = self.env.step(action)
        self._frames.append(np.array(obs))
        return self._join(self._frames), reward, terminated, truncated, info


class _AppendActionReward(gym.Wrapper[Any, Any, Any, Any]):
    def __init__(self, env: AnyEnv) -> None:
        super().__init__(env)
        space = _vector_space("append_action_reward", env)
        if not isinstance(env.action_space, spaces.Discrete):
            raise SpaceError(f"wrapper append_action_reward needs Discrete actions, not {env.action_space}")
        self._size, self._actions, self._first = space.shape[0], int(env.action_space.n), int(env.action_space.start)
        low = np.concatenate([space.low, np.zeros(self._actions), [-np.inf]]).astype(np.float32)
        high = np.concatenate([space.high, np.ones(self._actions), [np.inf]]).astype(np.float32)
        self.observation_space = spaces.Box(low, high, dtype=np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        obs, info = self.env.reset(seed=seed, options=options)
        return self._append(obs), info

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = self.env.step(action)
        longer = self._append(obs)
        longer[self._size + int(action) - self._first] = 1.0
        longer[-1] = float(reward)
        return longer, reward, terminated, truncated, info

    def _append(self, obs: Any) -> Array:
        longer = np.zeros(self._size + self._actions + 1, np.float32)
        longer[: self._size] = obs
        return longer


def _check_number(name: str, argument: str, value: object) -> None:
    """What the normalisers take: `gamma` from 0 to 1, `clip` and `eps` above 0 (a NaN is neither)."""
    number = value if isinstance(value, int | float) and not isinstance(value, bool) else float("nan")
    if not (0 <= number <= 1 if argument == "gamma" else number > 0):
        wanted = "from 0 to 1" if argument == "gamma" else "above 0"
        raise UserError(f"env_kwargs.wrappers: {name}: {argument} must be a number {wanted}, not {value!r:.60}")


def _is_whole(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _vector_space(name: str, env: AnyEnv) -> spaces.Box:
    space = env.observation_space
    if is_image(space):
        instead = "; a recurrent row reads both with algo_kwargs: {previous_action_reward: true}" if name == "append_action_reward" else ""
        raise SpaceError(f"wrapper {name} is for vectors, not for images{instead}")
    if not isinstance(space, spaces.Box) or len(space.shape) != 1:
        raise SpaceError(f"wrapper {name} needs a Box observation of one dimension, not {space}; put `flatten` before it")
    return space


def keep(env: AnyEnv, indices: Sequence[int]) -> AnyEnv:
    """The observation's entries at `indices`: velocity-free CartPole is `keep: {indices: [0, 2]}`."""
    return _Keep(env, indices)


def select(env: AnyEnv, key: str) -> AnyEnv:
    """One entry of a Dict: the image of an environment that gives more is `select: {key: image}`."""
    space = env.observation_space
    if not isinstance(space, spaces.Dict) or key not in space.spaces:
        known = f"it has {', '.join(map(repr, space.spaces))}" if isinstance(space, spaces.Dict) else "it is no Dict"
        raise SpaceError(f"the wrapper select cannot take {key!r} of the observation space: {known}")
    return gym.wrappers.TransformObservation(env, operator.itemgetter(key), space.spaces[key])


def flatten(env: AnyEnv) -> AnyEnv:
    """Any space as one vector; Discrete and MultiDiscrete become one-hot."""
    return gym.wrappers.FlattenObservation(env)


def frame_stack(env: AnyEnv, size: int = 4) -> AnyEnv:
    """The last `size` observations, oldest first, the first repeated at an episode's start, joined (images: `env_kwargs.frame_stack`)."""
    return _FrameStack(env, size)


def time_limit(env: AnyEnv, max_steps: int) -> AnyEnv:
    """Truncates an episode after `max_steps` (a shorter limit the environment has itself still holds)."""
    return gym.wrappers.TimeLimit(env, max_steps)


class _IgnoreActionMasks(gym.Wrapper[Any, Any, Any, Any]):
    action_masks = None  # what masks.py looks for

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        obs, info = self.env.reset(seed=seed, options=options)
        return obs, _without_mask(info)

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = self.env.step(action)
        return obs, reward, terminated, truncated, _without_mask(info)


def _without_mask(info: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in info.items() if key != MASK}


def ignore_action_masks(env: AnyEnv) -> AnyEnv:
    """Every action may be chosen, whatever the environment says."""
    return _IgnoreActionMasks(env)


def append_action_reward(env: AnyEnv) -> AnyEnv:
    """Previous action (one-hot) and previous reward behind the observation; zeros at an episode's start (R2D2 reads them so)."""
    return _AppendActionReward(env)


_TABLE: dict[str, Wrap] = {
    "keep": keep,
    "select": select,
    "flatten": flatten,
    "frame_stack": frame_stack,
    "time_limit": time_limit,
    "append_action_reward": append_action_reward,
    "ignore_action_masks": ignore_action_masks,
}
_ADAPTER: dict[str, Callable[..., Any]] = {"normalize_observation": ObservationNormalizer, "normalize_reward": RewardNormalizer}

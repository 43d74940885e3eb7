"""Observations that an environment elsewhere gave, as the network of a run reads them: the run's own wrappers are applied to them."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium as gym
from gymnasium import spaces

from rl_training.envs.factory import EnvSource, make_bare
from rl_training.envs.wrappers import UNSEEN, WrapperCall, Wrappers, parse_wrappers
from rl_training.errors import UserError
from rl_training.runtime.policy import read_observation


class WrappedObservations:
    """Called with one observation after another, and with the action that led there (None: nothing did, an episode starts)."""

    def __init__(self, observation_space: gym.Space[Any], action_space: gym.Space[Any], wrappers: Wrappers) -> None:
        self._given = _Given(observation_space, action_space)
        self._wrapped = wrappers.apply(self._given)
        self._selected = selected_keys(wrappers.per_env)

    @classmethod
    def of_run(cls, env: EnvSource, env_kwargs: Mapping[str, Any]) -> WrappedObservations:
        """With the wrappers of a run, for what its environment gives."""
        wrappers = parse_wrappers(env_kwargs.get("wrappers", ()))
        if any(call.name == "append_action_reward" for call in wrappers.per_env):
            raise UserError("the observation is not enough: append_action_reward needs the reward too; give what the network reads")
        bare = make_bare(env, env_kwargs)
        try:
            return cls(bare.observation_space, bare.action_space, wrappers)
        finally:
            bare.close()

    def __call__(self, obs: Any, action: Any, episode_start: bool) -> Any:
        return self.wrap(_read_selected(self._given.observation_space, obs, self._selected), action, episode_start=episode_start)

    def wrap(self, sample: Any, action: Any, *, episode_start: bool) -> Any:
        """What the wrappers make of an element of the space."""
        self._given.obs = sample
        if action is None or episode_start:
            return self._wrapped.reset()[0]
        return self._wrapped.step(action)[0]


class _Given(gym.Env[Any, Any]):
    """Shows whatever it is told to show."""

    def __init__(self, observation_space: gym.Space[Any], action_space: gym.Space[Any]) -> None:
        self.observation_space, self.action_space = observation_space, action_space
        self.obs: Any = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        return self.obs, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self.obs, 0.0, False, False, {}


def selected_keys(calls: Sequence[WrapperCall]) -> tuple[str, ...]:
    """The keys that the first wrappers select, one inside the other: nothing else of an observation is looked at."""
    seen = [call for call in calls if call.name not in UNSEEN]
    return tuple(call.arguments["key"] for call in itertools.takewhile(lambda call: call.name == "select", seen))


def _read_selected(space: gym.Space[Any], value: Any, keys: tuple[str, ...], name: str = "obs") -> Any:
    """As `read_sample`; of a Dict that something is selected from, that alone. The rest may be missing, or be nothing we can read."""
    if not keys:
        return read_sample(space, value, name)
    key = keys[0]
    if not isinstance(value, Mapping) or key not in value:
        found = f"the keys {', '.join(map(repr, value))}" if isinstance(value, Mapping) else f"{value!r:.60}"
        raise UserError(f"has an {name} that must hold the key {key!r}, got {found}")
    part: gym.Space[Any] = space[key]  # type: ignore[index]  # `select` has looked: it is a Dict
    return {key: _read_selected(part, value[key], keys[1:], f"{name}.{key}")}


def read_sample(space: gym.Space[Any], value: Any, name: str = "obs") -> Any:
    """An element of any space from plain mappings, lists and numbers. A Box's bounds are not held against it: environments pass them."""
    if isinstance(space, spaces.Dict):
        if not isinstance(value, Mapping) or value.keys() != space.spaces.keys():
            found = f"the keys {', '.join(map(repr, value))}" if isinstance(value, Mapping) else f"{value!r:.60}"
            raise UserError(f"has an {name} that must hold the keys {', '.join(map(repr, space.spaces))}, got {found}")
        return {key: read_sample(part, value[key], f"{name}.{key}") for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        if not isinstance(value, (list, tuple)) or len(value) != len(space.spaces):
            raise UserError(f"has an {name} that must be a list of {len(space.spaces)}, got {value!r:.60}")
        return tuple(read_sample(part, item, f"{name}.{index}") for index, (part, item) in enumerate(zip(space.spaces, value, strict=True)))
    if not isinstance(space, (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)):
        raise UserError(f"cannot be read: {name} is a {type(space).__name__}; give obs as the network reads it")
    try:
        sample = read_observation(value, space.shape or (), str(space.dtype))
    except UserError as error:
        raise UserError(f"has an {name} that {error}") from None
    if not isinstance(space, spaces.Box) and not space.contains(sample[()]):
        raise UserError(f"has an {name} that is not in {space}: {value!r:.60}")
    return sample[()]

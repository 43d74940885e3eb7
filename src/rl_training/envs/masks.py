"""Action masks: which actions an observation allows.

They come from `info["action_mask"]` (Gymnasium's convention) or from `env.action_masks()` (sb3-contrib's). The first reset decides whether
there are any; from then on every observation has one. A mask is [A] booleans, or 0 and 1: the n actions of a Discrete space, or all choices
of a MultiDiscrete one after the other.

Nothing is chosen after a termination. Whatever an environment says there, everything counts as allowed: no backup meets an empty choice.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv

from rl_training.envs.spaces import describe_action_space

if TYPE_CHECKING:
    from rl_training.types import Array

KEY = "action_mask"
METHOD = "action_masks"


class MaskError(ValueError):
    """What is wrong with a mask, as in "environment 0 gave …"; of which environment, where that is known."""

    def __init__(self, text: str, env_index: int | None = None) -> None:
        super().__init__(text)
        self.env_index = env_index


def choice_sizes(action: Mapping[str, Any]) -> list[int]:
    """How many actions each choice of a space has (as `describe_action_space` gives it). MaskError where it has none, as a Box."""
    sizes = [action["n"]] if action["kind"] == "discrete" else action.get("nvec")
    if sizes is None:
        raise MaskError(f"an action mask, which actions of a {action['kind']} space cannot have")
    return [int(size) for size in sizes]


def read_masks(given: Any, sizes: Sequence[int], shape: tuple[int, ...] = ()) -> Array:
    """A copy as booleans, [*shape, A]. A MultiDiscrete mask may be a tuple with an array for each choice, as `space.sample` takes it."""
    try:
        masks: Array = np.concatenate(given) if isinstance(given, tuple) and len(sizes) > 1 else np.array(given)
    except ValueError:  # lists of unequal lengths
        raise MaskError(f"an action mask that is no array: {given!r:.60}") from None
    if masks.shape != (*shape, sum(sizes)):
        raise MaskError(f"an action mask of shape {masks.shape}, not {(*shape, sum(sizes))}")
    if masks.dtype == np.bool_:
        return masks
    if masks.dtype.kind not in "iu" or np.count_nonzero((booleans := masks.astype(np.bool_)) != masks):
        raise MaskError(f"an action mask that is not made of booleans, or of 0 and 1 ({masks.dtype})")
    return booleans


def allows_some(masks: Array, sizes: Sequence[int]) -> Any:
    """[...] bool: whether each choice of the masks [..., A] has an allowed action."""
    if len(sizes) == 1:
        return masks.any(-1) if masks.ndim > 1 else np.count_nonzero(masks) > 0
    return np.asarray(np.logical_or.reduceat(masks, [0, *itertools.accumulate(sizes[:-1])], -1).all(-1))


class EnvMasks:
    """The masks of one environment."""

    def __init__(self, space: gym.Space[Any], method: Callable[[], Any] | None) -> None:
        self._sizes, self._method = choice_sizes(describe_action_space(space)), method

    @classmethod
    def found(cls, env: gym.Env[Any, Any], info: Mapping[str, Any]) -> EnvMasks | None:
        """How to read them, where `env` has masks. info: of its first reset."""
        method = env.get_wrapper_attr(METHOD) if KEY not in info and env.has_wrapper_attr(METHOD) else None
        return cls(env.action_space, method) if KEY in info or callable(method) else None

    def read(self, info: Mapping[str, Any], terminated: bool) -> Array:
        """Of the observation that came with `info`, [A]."""
        if terminated:
            return np.ones(sum(self._sizes), np.bool_)
        if self._method is None and KEY not in info:
            raise MaskError("no action mask, and it gave one before,")
        mask = read_masks(info[KEY] if self._method is None else self._method(), self._sizes)
        if not allows_some(mask, self._sizes):
            raise MaskError("an action mask that allows no action")
        return mask


class VectorMasks:
    """The masks of E environments out of a vector environment's infos: `now` [E, A] of the current observations, and `final` [E, A] of
    what the last actions led to. Neither is written to again."""

    def __init__(self, space: gym.Space[Any], num_envs: int, mode: AutoresetMode, method: Callable[[], Any] | None) -> None:
        self._sizes, self._num_envs, self._method = choice_sizes(describe_action_space(space)), num_envs, method
        self._same_step = mode is AutoresetMode.SAME_STEP
        self._all = np.ones(num_envs, np.bool_)
        self.now = self.final = np.ones((num_envs, sum(self._sizes)), np.bool_)

    @classmethod
    def found(cls, env: VectorEnv[Any, Any, Any], infos: Mapping[str, Any], mode: AutoresetMode) -> VectorMasks | None:
        """How to read them, where the environments have masks. infos: of the first reset."""
        method = getattr(env.unwrapped, METHOD, None) if KEY not in infos else None
        if KEY not in infos and not callable(method):
            return None
        return cls(env.single_action_space, env.num_envs, mode, method)

    def reset(self, infos: Mapping[str, Any], which: Array | None) -> None:
        """The environments `which` [E] (None: all) begin an episode, or were brought back to where they were."""
        masks = self._read(self._given(infos), self._all if which is None else which)
        self.now = masks if which is None else np.where(which[:, None], masks, self.now)

    def step(self, infos: Mapping[str, Any], terminated: Array, truncated: Array) -> None:
        """terminated, truncated: [E] bool; both at once is a termination."""
        given = self._given(infos)
        truncated = truncated & ~terminated
        if self._same_step:
            self.now = self.final = self._read(given, self._all)
            if truncated.any():
                last = self._read(infos.get("final_info", {}), truncated)  # the method speaks of the episode that has begun
                self.final = np.where(truncated[:, None], last, self.now)
            if terminated.any():
                self.final = self.final | terminated[:, None]
            return
        self.now = self._read(given, ~terminated)
        self.now[terminated] = True
        self.final = self.now

    def _given(self, infos: Mapping[str, Any]) -> Mapping[str, Any]:
        return infos if self._method is None else {KEY: self._method()}

    def _read(self, infos: Mapping[str, Any], which: Array) -> Array:
        """[E, A]; only those of `which` [E] have to be there."""
        missing = which if KEY not in infos else which & ~infos.get(f"_{KEY}", self._all)
        if missing.any():
            raise MaskError("no action mask, and others have one or it had one before,", int(missing.argmax()))
        masks = read_masks(infos[KEY], self._sizes, (self._num_envs,))
        empty = which & ~allows_some(masks, self._sizes)
        if empty.any():
            raise MaskError("an action mask that allows no action", int(empty.argmax()))
        return masks

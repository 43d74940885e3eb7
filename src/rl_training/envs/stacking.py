"""Stacks of the last K images, as the adapter gives them: [K·C, H, W], oldest first, zeros before an episode's start.

`env_kwargs.frame_stack` asks for them. Replay stores each frame once all the same (data/frames.py).
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np

from rl_training.errors import UserError

if TYPE_CHECKING:
    from rl_training.types import Array

KEY = "frame_stack"
"""In `env_kwargs`: how many images an observation is."""
MAX_STACK = 64


def require_stack(stack: Any, *, images: bool) -> int:
    """How many images are stacked, or a UserError where it is no such number or the observations are no images."""
    if not isinstance(stack, int) or isinstance(stack, bool) or not 1 <= stack <= MAX_STACK:
        raise UserError(f"env_kwargs.{KEY} must be a whole number from 1 to {MAX_STACK}, not {stack!r:.60}")
    if stack > 1 and not images:
        raise UserError(f"env_kwargs.{KEY} is for images, and these observations are none: use the wrapper `frame_stack` for vectors")
    return stack


class FrameStacker:
    """The stacks of E environments. What it hands out is never written to again."""

    def __init__(self, num_envs: int, stack: int, space: gym.spaces.Box) -> None:
        """space: of one image [C, H, W]."""
        channels, *size = space.shape
        self._channels = channels
        self.space = gym.spaces.Box(np.tile(space.low, (stack, 1, 1)), np.tile(space.high, (stack, 1, 1)), dtype=space.dtype.type)
        self._now = np.zeros((num_envs, stack * channels, *size), space.dtype)

    def begin(self, frames: Array, which: Array) -> Array:
        """Stacks [E, K·C, H, W] with these frames [E, C, H, W] as the newest; where `which` [E], the first of their episodes."""
        stacks = self._now.copy()
        stacks[which] = 0
        stacks[:, -self._channels :] = frames
        self._now = stacks
        return stacks

    def step(self, frames: Array, final_frames: Array, is_first: Array) -> tuple[Array, Array]:
        """The stacks to act on, and those that the action led to: the same where no episode begins."""
        final = np.empty_like(self._now)
        final[:, : -self._channels] = self._now[:, self._channels :]
        final[:, -self._channels :] = final_frames
        self._now = final
        return (self.begin(frames, is_first) if np.count_nonzero(is_first) else final), final

    def load(self, stacks: Array) -> None:
        """Go on from saved stacks."""
        if stacks.shape != self._now.shape:
            raise ValueError(f"the saved stacks are {stacks.shape}, expected {self._now.shape}")
        self._now = stacks.astype(self._now.dtype)


class RecentFrames:
    """The last K images of one environment elsewhere, in its own form [K, ...]."""

    def __init__(self, stack: int) -> None:
        self._frames: deque[Array] = deque(maxlen=stack)

    def __call__(self, frame: Array, episode_start: bool) -> Array:
        if episode_start or not self._frames:
            self._frames.extend([np.zeros_like(frame)] * (self._frames.maxlen or 1))
        self._frames.append(frame)
        return np.stack(self._frames)

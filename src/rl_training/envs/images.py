"""Images as everything after the adapter has them: channels first, [C, H, W], one byte a value."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, TypeGuard

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from rl_training.errors import UserError

if TYPE_CHECKING:
    from rl_training.types import Array

Channels: TypeAlias = Literal["auto", "first", "last"]
KEY = "image_channels"
"""In `env_kwargs`: which axis of an image holds its channels, `first` or `last`, where the smallest one does not."""


_TO_FRONT = ((2, 0, 1), (0, 3, 1, 2))  # of one image and of several: looked up, since every step reads some


class ImageForm(NamedTuple):
    """An environment's own images, and the way from them to channels first.

    `[H, W]`, `[H, W, C]` or `[C, H, W]`, of uint8 or bool. Replay and networks hold `[C, H, W]` of uint8; a network divides by `high`.
    """

    shape: tuple[int, ...]
    dtype: str
    axes: tuple[int, ...]  # what `transpose` is told, to bring the channels to the front
    high: int

    @property
    def read_shape(self) -> tuple[int, ...]:
        """[C, H, W]."""
        moved = tuple(self.shape[axis] for axis in self.axes)
        return moved if len(moved) == 3 else (1, *moved)

    @property
    def space(self) -> spaces.Box:
        return spaces.Box(0, self.high, self.read_shape, np.uint8)

    def read(self, images: Array) -> Array:
        """[..., *shape] → [..., C, H, W], a copy. What is not of this shape comes back as it is, for its reader to refuse."""
        lead = images.ndim - len(self.shape)
        if images.shape[max(lead, 0) :] != self.shape:
            return images
        if self.axes[0] == 2:  # the last axis to the front
            images = images.transpose(_TO_FRONT[lead] if lead < len(_TO_FRONT) else (*range(lead), lead + 2, lead, lead + 1))
        moved = images.astype(np.uint8, order="C")
        return moved if len(self.axes) == 3 else moved.reshape(*moved.shape[:lead], 1, *self.shape)

    def describe(self) -> dict[str, Any]:
        """As a manifest can hold it; `from_described` gives it back."""
        return {"shape": list(self.shape), "dtype": self.dtype, "axes": list(self.axes), "high": self.high}

    @classmethod
    def from_described(cls, described: Mapping[str, Any]) -> ImageForm:
        return cls(tuple(described["shape"]), described["dtype"], tuple(described["axes"]), described["high"])

    def __str__(self) -> str:
        channels, height, width = self.read_shape
        where = {(0, 1): "no axis", (0, 1, 2): "the first axis", (2, 0, 1): "the last axis"}[self.axes]
        return f"images of {height} × {width}, {channels} channels ({where} of {self.shape}), divided by {self.high} in the network"


def is_image(space: gym.Space[Any]) -> TypeGuard[spaces.Box]:
    """A Box of two or three axes of uint8, or of bool (MinAtar's)."""
    return isinstance(space, spaces.Box) and len(space.shape) in (2, 3) and space.dtype in (np.uint8, np.bool_)


def image_form(space: gym.Space[Any], channels: Channels = "auto") -> ImageForm | None:
    """How this space's images are read; None where it holds none.

    channels: `auto` takes the smallest axis for them, the last one on ties.
    """
    if channels not in ("auto", "first", "last"):
        raise UserError(f"env_kwargs.{KEY} must be first or last, not {channels!r:.60}")
    if not is_image(space):
        if channels != "auto":
            raise UserError(f"env_kwargs.{KEY} is for images, and these observations are none: {type(space).__name__}{space.shape or ''}")
        return None
    shape = tuple(int(size) for size in space.shape or ())
    if len(shape) == 2:
        if channels != "auto":
            raise UserError(f"env_kwargs.{KEY} is {channels}, and images of shape {shape} have no axis of channels")
        axes: tuple[int, ...] = (0, 1)
    elif channels == "auto":
        smallest = min((2, 0, 1), key=lambda axis: shape[axis])
        if smallest == 1:
            raise UserError(f"the channels of images {shape} may be the first or the last axis, not the middle one: say env_kwargs.{KEY}")
        axes = (2, 0, 1) if smallest == 2 else (0, 1, 2)
    else:
        axes = (0, 1, 2) if channels == "first" else (2, 0, 1)
    high = 1 if space.dtype == np.bool_ else int(np.max(space.high, initial=1))
    return ImageForm(shape, str(space.dtype), axes, high)

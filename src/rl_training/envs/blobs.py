"""A pixel task of seconds that no linear model can do, and its twin that needs memory too."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

if TYPE_CHECKING:
    from rl_training.types import Array

SIZE = 10
DIFFERENT, SAME = 0, 1


class Blobs(gym.Env[Any, int]):
    """Two bright squares, one in the upper and one in the lower half: are they on the same side, left or right? One decision an episode.

    Reward 1 for the right answer (DIFFERENT 0, SAME 1), else 0. A sum over pixels, whatever its weights, is a part of the upper square plus
    a part of the lower one; the four cases are an exclusive or of the two, which no such sum tells apart: at most three of them, 3/4.

    With `memory` the squares are shown one after the other: first the upper one, when whatever is done does nothing, then the lower one.
    A policy that sees only the present is right half of the time.

    Observation [10, 10] uint8: black, with squares of 2 × 2 anywhere in their quarter, of any brightness from 128 on.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012  (Gymnasium's own declaration)

    def __init__(self, memory: bool = False) -> None:
        self.memory = memory
        self.observation_space = spaces.Box(0, 255, (SIZE, SIZE), np.uint8)
        self.action_space = spaces.Discrete(2)  # type: ignore[assignment]  # Discrete is a Space[np.int64], which takes ints
        self._squares: list[Array] = []
        self._answer, self._shown = DIFFERENT, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed)
        half, room = SIZE // 2, SIZE // 2 - 1  # where a square of 2 × 2 can begin
        right = self.np_random.integers(2, size=2)
        places = self.np_random.integers(room, size=(2, 2))
        self._squares = []
        for lower, (side, (row, column)) in enumerate(zip(right, places, strict=True)):
            image, (y, x) = np.zeros((SIZE, SIZE), np.uint8), (lower * half + row, side * half + column)
            image[y : y + 2, x : x + 2] = self.np_random.integers(128, 256)
            self._squares.append(image)
        self._answer, self._shown = int(right[0] == right[1]), 0
        return self._squares[0] if self.memory else self._squares[0] + self._squares[1], {}

    def step(self, action: int) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        if self.memory and self._shown == 0:
            self._shown = 1
            return self._squares[1], 0.0, False, False, {}
        return np.zeros((SIZE, SIZE), np.uint8), float(action == self._answer), True, False, {}


for _name, _kwargs in (("Blobs", {}), ("MemoryBlobs", {"memory": True})):
    if f"rl_training/{_name}-v0" not in gym.registry:  # a reloaded module registers once
        gym.register(f"rl_training/{_name}-v0", entry_point="rl_training.envs.blobs:Blobs", kwargs=_kwargs)

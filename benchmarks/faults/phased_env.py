"""An environment that tells where the run is, so that a signal can be sent there: `benchmarks.faults.phased_env:Phased-v0`.

Its phases are construct, reset, step (of training), evaluate and replay (a resume playing an episode again), told apart by who is calling.
"""

from __future__ import annotations

import os
import select
import sys
import time
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np

ENV_ID = "benchmarks.faults.phased_env:Phased-v0"
PATIENCE = 5.0  # in the phase, for signals to come


@dataclass
class Moment:
    """What is waited for: the `number`-th time that `phase` comes in a process.

    It tells by a byte to `pipe`, and stays there until `sent` ends: then the signals have been sent. A compilation goes on meanwhile.
    """

    phase: str
    number: int
    pipe: int
    sent: int
    seen: int = 0

    def at(self, phase: str) -> None:
        if phase == self.phase:
            self.seen += 1
            if self.seen == self.number:
                self.tell()

    def tell(self) -> None:
        os.write(self.pipe, b".")
        if self.phase == "compile":
            return
        until = time.monotonic() + (3600.0 if self.phase == "hang" else PATIENCE)
        while time.monotonic() < until and (self.phase == "hang" or not select.select([self.sent], [], [], 0.01)[0]):
            time.sleep(0.01)


moment: Moment | None = None
"""Set in a process before it begins; workers inherit it."""


def _callers() -> set[str]:
    frame, names = sys._getframe(2), set()
    while frame is not None:
        names.add(frame.f_code.co_name)
        frame = frame.f_back  # type: ignore[assignment]
    return names


class Phased(gym.Env[Any, Any]):
    """Twelve steps an episode, four numbers, two actions."""

    observation_space: gym.Space[Any] = gym.spaces.Box(-10, 10, (4,), np.float32)
    action_space: gym.Space[Any] = gym.spaces.Discrete(2)

    def __init__(self) -> None:
        if moment is not None and "evaluate" not in _callers():
            moment.at("construct")

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._state, self._length = self.np_random.uniform(-1, 1, 4).astype(np.float32), 0
        if moment is not None and "evaluate" not in _callers():
            moment.at("reset")
        return self._state, {}

    def step(self, action: Any) -> Any:
        self._length += 1
        self._state = np.clip(self._state + (0.1 if action else -0.1), -10, 10).astype(np.float32)
        if moment is not None:
            callers = _callers()
            phase = "evaluate" if "evaluate" in callers else "replay" if "reset" in callers else "step"
            moment.at(phase)
            if phase == "step" and moment.phase == "hang":
                moment.at("hang")
        return self._state, 1.0, self._length >= 12, False, {}


gym.register("Phased-v0", entry_point=Phased)

"""Schedules over environment steps, and the exploration of many environments at once.

A schedule is a callable from environment steps to a number. It holds no state, so a resumed run reads what an uninterrupted one would.
"""

from __future__ import annotations

import bisect
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

Schedule: TypeAlias = Callable[[int], float]


@dataclass(frozen=True)
class _UntilEnd(ABC):
    """From `start` to `end` over the first `steps` environment steps, then `end`."""

    start: float
    end: float
    steps: float

    def __call__(self, env_steps: int) -> float:
        return self.end if env_steps >= self.steps else self._on_the_way(env_steps)

    @abstractmethod
    def _on_the_way(self, env_steps: int) -> float: ...


class LinearSchedule(_UntilEnd):
    """A straight line from `start` to `end` over the first `steps` environment steps, then `end`."""

    def _on_the_way(self, env_steps: int) -> float:
        return self.start + (self.end - self.start) * (env_steps / self.steps)


class CosineSchedule(_UntilEnd):
    """end + (start − end)·(1 + cos(π·t/T))/2 over the first T = `steps` environment steps, then `end` (arXiv:1608.03983, eq. 5)."""

    def _on_the_way(self, env_steps: int) -> float:
        return self.end + (self.start - self.end) * (1 + math.cos(math.pi * env_steps / self.steps)) / 2


@dataclass(frozen=True)
class ExponentialSchedule:
    """end + (start − end)·exp(−t/T), T = `steps`: 37% of the way is left after T, 5% after 3T, and it never quite arrives."""

    start: float
    end: float
    steps: float

    def __call__(self, env_steps: int) -> float:
        return self.end + (self.start - self.end) * (math.exp(-env_steps / self.steps) if self.steps else 0.0)


@dataclass(frozen=True)
class PiecewiseSchedule:
    """Straight lines between (environment step, value) points, whose steps do not fall; before the first and after the last their values.

    Two points of one step make a jump: from that step on it is the later one's.
    """

    points: tuple[tuple[float, float], ...]

    def __call__(self, env_steps: int) -> float:
        after = bisect.bisect_right([step for step, _ in self.points], env_steps)
        if after == 0 or after == len(self.points):
            return self.points[max(after - 1, 0)][1]
        (before_step, before), (next_step, following) = self.points[after - 1 : after + 1]
        return before + (following - before) * (env_steps - before_step) / (next_step - before_step)


@dataclass(frozen=True)
class WarmUp:
    """In a straight line from 0 to where `then` begins, over the first `steps` environment steps; then `then`, which counts from there."""

    steps: int
    then: Schedule

    def __call__(self, env_steps: int) -> float:
        return self.then(env_steps - self.steps) if env_steps >= self.steps else self.then(0) * env_steps / self.steps


def epsilon_ladder(num_envs: int, *, base: float = 0.4, alpha: float = 7.0) -> list[float]:
    """ε_i = ε^(1 + α·i/(N−1)): a constant exploration rate per environment, environment 0 exploring most (arXiv:1803.00933, §4.1)."""
    return [base ** (1 + alpha * i / max(num_envs - 1, 1)) for i in range(num_envs)]

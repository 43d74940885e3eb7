"""Schedules over environment steps, and the exploration of many environments at once."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class LinearSchedule:
    """From `start` to `end` over the first `steps` environment steps, then `end`."""

    start: float
    end: float
    steps: float

    def __call__(self, env_steps: int) -> float:
        if env_steps >= self.steps:
            return self.end
        return self.start + (self.end - self.start) * (env_steps / self.steps)


def epsilon_ladder(num_envs: int, *, base: float = 0.4, alpha: float = 7.0) -> list[float]:
    """ε_i = ε^(1 + α·i/(N−1)): a constant exploration rate per environment, environment 0 exploring most (arXiv:1803.00933, §4.1)."""
    return [base ** (1 + alpha * i / max(num_envs - 1, 1)) for i in range(num_envs)]

"""When things are due: intervals over environment steps, of which one vector step may take many.

Counting crossings instead of testing `step % interval` is what makes an interval of 500 fire with 64 environments.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class UpdatePlan:
    """One round per multiple of `train_frequency` crossed (environment steps), `gradient_steps` updates a round."""

    train_frequency: int
    gradient_steps: int  # -1: as many as environment steps in the round

    @property
    def updates_per_round(self) -> int:
        return self.train_frequency if self.gradient_steps == -1 else self.gradient_steps

    def updates_until(self, env_steps: int, *, learning_starts: int) -> int:
        """How many updates a run makes in so many environment steps."""
        return max(0, env_steps - learning_starts) // self.train_frequency * self.updates_per_round

    def rounds(self, before: int, now: int, *, learning_starts: int) -> list[int]:
        """The multiples that a step from `before` to `now` makes its updates at."""
        return [multiple for multiple in crossings(before, now, self.train_frequency) if multiple >= learning_starts]


def crossings(before: int, now: int, interval: int) -> range:
    """The multiples of `interval` in (before, now]; none if the interval is 0 (only at the end)."""
    if interval <= 0:
        return range(0)
    return range((before // interval + 1) * interval, now + 1, interval)


def after(now: int, interval: int) -> int:
    """The first multiple of `interval` above `now`."""
    return (now // interval + 1) * interval


def due(before: int, now: int, interval: int) -> bool:
    """Whether a multiple of `interval` lies in (before, now]."""
    return interval > 0 and now // interval > before // interval

"""When things are due: intervals over environment steps, of which one vector step may take many.

Counting crossings instead of testing `step % interval` is what makes an interval of 500 fire with 64 environments.
"""

from __future__ import annotations


def crossings(before: int, now: int, interval: int) -> range:
    """The multiples of `interval` in (before, now]; none if the interval is 0 (only at the end)."""
    if interval <= 0:
        return range(0)
    return range((before // interval + 1) * interval, now + 1, interval)


def due(before: int, now: int, interval: int) -> bool:
    """Whether a multiple of `interval` lies in (before, now]."""
    return interval > 0 and now // interval > before // interval

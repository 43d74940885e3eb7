"""What learning costs: environment steps and seconds until a threshold, from records."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import geometric_mean, median

from rl_training.ledger.records import Record

NEAR = 1.1  # costs nearer than this are called equal: evaluations come every few thousand steps
SAME_TIME = 2.0  # and seconds: they are of several machines, more or less busy


@dataclass(frozen=True)
class Cost:
    """What it took: environment steps and seconds. Infinite where it was never reached."""

    steps: float
    seconds: float


def cost_of_reaching(record: Record, threshold: float | None) -> Cost:
    """Until the run's own evaluations first reach the threshold, as if each step had taken the same time; of the whole run without one."""
    seconds = float(record.raw.get("wall_time_s", math.nan))
    if threshold is None:
        return Cost(record.steps, seconds)
    step = next((step for step, value in record.curve if value >= threshold), math.inf)
    return Cost(step, seconds * step / record.steps)


def median_cost(records: Sequence[Record], threshold: float | None) -> Cost:
    costs = [cost_of_reaching(record, threshold) for record in records]
    return Cost(median(cost.steps for cost in costs), median(cost.seconds for cost in costs))


def duration(seconds: float) -> str:
    """Two significant digits at most: 8 s, 41 s, 3 min, 1.5 h."""
    if not math.isfinite(seconds):
        return "nobody took the time"
    if seconds < 90:
        return f"{max(seconds, 1):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5_400 else f"{seconds / 3_600:.1f} h"


def count(steps: float) -> str:
    return f"{steps / 1e6:.3g}M" if steps >= 1e6 else f"{steps / 1e3:.3g}k"


def mean_over_tasks(costs: Sequence[float]) -> float:
    """The geometric mean: a task that takes ten times as long counts no more than another. Infinite where one of them is."""
    return geometric_mean(costs) if all(map(math.isfinite, costs)) else math.inf


def cheapest(costs: Mapping[str, float], near: float = NEAR) -> list[str]:
    """Whose costs are the least, and those up to `near` times as high, cheapest first. Empty where nobody has finite ones."""
    found = [title for title, cost in costs.items() if math.isfinite(cost) and cost <= near * min(costs.values())]
    return sorted(found, key=costs.__getitem__)

"""Numbers and tables as text."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rl_training.ledger.records import Record, by_group
from rl_training.ledger.statistics import Estimate
from rl_training.ledger.suites import Group


def number(value: float) -> str:
    """Four significant digits, and no more zeros than there are: 500, 476.5, −83.21; a large number whole: 14,800."""
    return (f"{value:.4g}" if abs(value) < 9_999.5 else f"{value:,.0f}").replace("-", "−")


def numbers(values: Iterable[float]) -> str:
    return ", ".join(number(value) for value in values)


def estimate(value: Estimate) -> str:
    """A statistic with its interval, where it has one: 490.8 [481.1, 500]."""
    return number(value.point) if value.low == value.high else f"{number(value.point)} [{number(value.low)}, {number(value.high)}]"


def reached_text(found: Mapping[str, Any]) -> str:
    """What a shipped config reached (experiment/shipped.py), with its interval; of a single seed there is none."""
    point, low, high = (round(found[key], 3) for key in ("mean", "low", "high"))  # so that signed returns below 1 fit a line
    seeds = found["seeds"]
    said = f" ({seeds} of {found['planned']} seeds)" if "planned" in found else " (1 seed)" if seeds == 1 else ""
    return estimate(Estimate(point, low, high)) + said


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def records_table(records: Iterable[Record], threshold: float | None = None) -> str:
    """One row per config: the means over fresh episodes of each seed, best checkpoint and final policy."""
    rows = []
    for name, group in by_group(records).items():
        group.sort(key=lambda record: record.seed)
        best, final = [record.score("best") for record in group], [record.score("final") for record in group]
        spread = statistics.stdev(final) if len(final) > 1 else 0.0
        row = [name, numbers(best), numbers(final), f"{number(statistics.mean(final))} ± {spread:.3g}"]
        if threshold is not None:
            row.append(f"{sum(x >= threshold for x in best)}/{len(best)}, {sum(x >= threshold for x in final)}/{len(final)}")
        rows.append(row)
    head = ["config", "best checkpoint, per seed", "final policy, per seed", "mean ± std of final"]
    return markdown([*head, *([f"≥{threshold:g}: best, final"] if threshold is not None else [])], rows)


def plain_table(groups: Iterable[Group], records: Iterable[Record]) -> str:
    """The records of a suite, in its order, a table for each task."""
    found = by_group(records)
    tables = []
    by_task: dict[str, list[Group]] = {}
    for group in groups:
        by_task.setdefault(group.task.name, []).append(group)
    for name, here in by_task.items():
        task, measured = here[0].task, [record for group in here for record in found.get(group.name, ())]
        tables.append(
            f"{name}, {task.total_timesteps:,} steps\n{records_table(measured, task.solved)}" if measured else f"{name}: no run yet"
        )
    return "\n\n".join(tables)


def thousands(steps: int) -> str:
    return f"{steps // 1_000}k steps" if steps % 1_000 == 0 else f"{steps} steps"

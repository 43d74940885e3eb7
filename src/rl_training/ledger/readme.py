"""The README's three numbers, from the records: what DQN learns, what memory is good for, how fast the loop is."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from rl_training.errors import UserError
from rl_training.ledger.statistics import Statistics
from rl_training.ledger.text import estimate, thousands

if TYPE_CHECKING:
    from rl_training.ledger.rows import Tasks
    from rl_training.ledger.suites import Suite

BEGIN, END = "<!-- results: begin (make results) -->", "<!-- results: end -->"
PLAIN, MEMORY = "CartPole-v1", "velocity-free CartPole"


def learned(suites: Iterable[tuple[Suite, Tasks]], statistics: Statistics) -> Iterator[str]:
    """Two lines, of rows that have all their seeds."""
    tasks = {task.name: (task, rows) for suite, found in suites if suite.name in ("classic", "memory") for task, rows in found}
    found = {(name, row.title): row for name, (_, rows) in tasks.items() for row in rows if row.complete}
    steps = {name: thousands(task.total_timesteps) for name, (task, _) in tasks.items()}
    if row := found.get((PLAIN, "`dqn`")):
        what = f"the interquartile mean of {row.planned} seeds' best checkpoints, with its 95% interval"
        yield (
            f"- **{estimate(statistics.iqm(row.scores('best')))}** is DQN's return on {PLAIN} after {steps[PLAIN]}: {what} "
            "([results](docs/results.md))."
        )
    if (with_it := found.get((MEMORY, "`drqn`"))) and (without := found.get((MEMORY, "`dqn`"))):
        best, least = (estimate(statistics.iqm(row.scores("best"))) for row in (with_it, without))
        yield f"- **{best}** is DRQN's on CartPole without velocities after {steps[MEMORY]}, where DQN, without memory, has {least}."


def speed(record: Path) -> Iterator[str]:
    """The first case of benchmarks/throughput.py, where it was measured."""
    if record.is_file():
        ratios = json.loads(record.read_text(encoding="utf-8"))["results"][0]["ratios"]
        compiled = f" ({ratios['ours, compiled']:.1f}× compiled)" if "ours, compiled" in ratios else ""
        yield (
            f"- **{ratios['ours']:.1f}×**{compiled} is the speed of DQN's loop over the fastest peer's: an update every step, "
            "on one CPU thread ([performance](docs/performance.md))."
        )


def spliced(path: Path, table: str) -> str:
    """The file's text with `table` between its two marks."""
    text = path.read_text(encoding="utf-8")
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
        raise UserError(f"{path}: must hold {BEGIN} and then {END}, once each")
    return text[: text.index(BEGIN) + len(BEGIN)] + "\n" + table + "\n" + text[text.index(END) :]

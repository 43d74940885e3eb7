"""The rows of a table: on each task of a suite its configs, and with each the records there are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from rl_training.experiment.config import TrainConfig
from rl_training.ledger.beside import Line
from rl_training.ledger.records import Policy, Record, by_group, differences
from rl_training.ledger.references import Published
from rl_training.ledger.statistics import Estimate, Statistics
from rl_training.ledger.suites import Group, Suite, Task, plan_groups

OPTIONS = {"double_q": "double", "dueling": "dueling", "noisy": "noisy", "prioritized": "prioritized"}


@dataclass(frozen=True)
class Row:
    """The runs of one config on one task: those with the suite's seeds, and those with others."""

    title: str
    algorithm: str
    planned: int
    records: tuple[Record, ...]
    others: tuple[Record, ...]
    stale: tuple[str, ...]  # keys in which the records' config is not the suite's
    added: tuple[str, ...] = ()  # what the config adds to what the algorithm is
    published: Published | None = None  # runs of others it stands beside
    env_id: str = ""
    steps: int = 0  # as the suite has it
    variant: bool = False  # it has a label: other settings than its config's

    @property
    def label(self) -> str:
        return f"{self.title} ({', '.join(self.added)})" if self.added else self.title

    @property
    def complete(self) -> bool:
        return len(self.records) == self.planned

    def scores(self, policy: Policy) -> list[float]:
        return [record.score(policy) for record in self.records]

    @property
    def longest(self) -> int:
        """Of its records: the most steps that one was run for."""
        return max((record.steps for record in self.records), default=0)

    def other_budgets(self, task: Task) -> list[int]:
        """Steps its records were run for where the task has another number: their returns are of more or less training than the others'."""
        return sorted({record.steps for record in self.records} - {task.total_timesteps})


Tasks: TypeAlias = Sequence[tuple[Task, Sequence[Row]]]


def rows_of(suite: Suite, records: Iterable[Record]) -> Tasks:
    """The suite's tasks, and on each a row for every config and peer, in the suite's order."""
    found, groups = by_group(records), plan_groups(suite)
    tasks = []
    for task in suite.tasks:
        mine = [group for group in groups if group.task is task]
        rows = [_row(group, found.get(group.name, [])) for group in mine]
        stem = mine[0].name.split("__")[1]
        for peer in task.peers:
            theirs = found.get(f"{peer}__{stem}", [])
            rows.append(_split(f"`{theirs[0].algorithm if theirs else peer}`", peer, suite.seeds, theirs, ()))
        tasks.append((task, rows))
    return tasks


def _row(group: Group, records: Sequence[Record]) -> Row:
    plan = group.plans[0]
    title = f"`{plan.config.algo}`" + (f" ({group.note})" if group.note else "")
    stale = sorted({key for record in records for key in differences(record, plan)})
    row = _split(title, plan.config.algo, [each.config.seed for each in group.plans], records, tuple(stale))
    added = tuple(_added(plan.config, records[0].config.get("algo_kwargs", {}) if records else {}))
    return replace(
        row,
        added=added,
        published=group.published,
        env_id=plan.config.env_id,
        steps=plan.config.total_timesteps,
        variant=bool(plan.label),
    )


def _added(config: TrainConfig, measured: Mapping[str, Any]) -> Iterator[str]:
    """What a config adds to what its algorithm is by default: a DQN with five-step returns is not quite DQN, and the tables say so.

    measured: the settings of its records, which count before what the config says today.
    """
    used, own = {**config.settings.to_dict(), **measured}, config.spec.parse({}).to_dict()
    if used.get("n_step", 1) != own.get("n_step", 1):
        yield f"{used['n_step']}-step"
    yield from (word for key, word in OPTIONS.items() if used.get(key) and not own.get(key))


def _split(title: str, algorithm: str, seeds: Sequence[int], records: Sequence[Record], stale: tuple[str, ...]) -> Row:
    mine = tuple(record for record in records if record.seed in seeds)
    others = tuple(record for record in records if record.seed not in seeds)
    return Row(title, algorithm, len(seeds), mine, others, stale)


def reference_of(task: Task, rows: Iterable[Row]) -> Row | None:
    """The row that others on the task are compared with, once it has all its seeds; a variant only where its algorithm has nothing else.

    None of one seed: its spread is not known, so no interval of a difference is."""
    found = sorted((row for row in rows if row.algorithm == task.reference), key=lambda row: row.variant)
    return found[0] if found and found[0].complete and found[0].planned > 1 else None


def lines_beside(rows: Sequence[Row]) -> list[Line]:
    """Those that stand beside runs of others."""
    return [Line(row.label, row.env_id, row.steps, row.records, row.published) for row in rows if row.published is not None]


def scaled(task: Task, scores: Iterable[float]) -> list[float]:
    """On the scale that tasks have in common."""
    assert task.scale is not None
    low, high = task.scale
    return [(score - low) / (high - low) for score in scores]


def iqm_over_scaled_tasks(found: Sequence[tuple[Task, Row]], statistics: Statistics) -> Estimate:
    """The interquartile mean of one row's final policies over several tasks."""
    return statistics.iqm_over_tasks([scaled(task, row.scores("final")) for task, row in found])

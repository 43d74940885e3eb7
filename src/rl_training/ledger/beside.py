"""Our runs beside those others published, at the same step and of the same kind: training returns with training returns.

"Better" and "worse" are said only where the interval of the difference excludes 0, and only where runs were published singly: of one figure
nobody knows how far another run would be from it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from rl_training.ledger.records import Record
from rl_training.ledger.references import Curve, Published, Reference, load_reference
from rl_training.ledger.statistics import Estimate, Statistics
from rl_training.ledger.text import estimate, markdown, number, numbers
from rl_training.ledger.training import WINDOW

HOW = (
    "In comparisons with published runs, means have Student's 95% interval and differences of means Welch's. Both assume normally "
    "distributed returns. With two seeds the intervals are wide, and should be: a bootstrap of two values never leaves the two. *Better* "
    "or *worse* appears only if the interval of the difference excludes 0.\n\n"
    "A training return is counted at the step where its episode ends, although the episode began earlier. Our runs play many games at "
    "once, so during one episode a run makes the episode's length times the number of games in steps (the *span*; median over seeds). For "
    "a fair comparison, the published curve is averaged over the same span before each point (*theirs over our span*), and the difference "
    "is taken to that.\n"
)
POINTS = 100  # of a stretch, at which episodes end


@dataclass(frozen=True)
class Line:
    """A row of ours and the published row it stands beside."""

    label: str
    env_id: str
    steps: int
    records: tuple[Record, ...]
    published: Published

    @property
    def step(self) -> int:
        """Where the two are compared: the last whole stretch of training, or the end."""
        return self.steps // WINDOW * WINDOW if self.published.reference.measure == "training" else self.steps

    @property
    def ours(self) -> list[float]:
        """One value a seed; seeds that have none (no episode ended there) are missing."""
        made = [record for record in self.records if record.steps >= self.step]
        if self.published.reference.measure == "evaluation":
            return [record.score("final") for record in made if record.steps == self.step]
        return [value for record in made for step, value, _ in record.training if step == self.step]

    @property
    def span(self) -> float:
        """How many of a run's steps pass while an episode of training is played: its length times the games at once. 0 where nobody knows,
        and beside evaluations."""
        if self.published.reference.measure == "evaluation":
            return 0.0
        ended = [
            (count, record.config.get("num_envs", 1)) for record in self.records for step, _, count in record.training if step == self.step
        ]
        return median(WINDOW / count * games for count, games in ended) if ended else 0.0

    @property
    def theirs(self) -> tuple[float, ...]:
        return self.published.reference.at(self.env_id, self.published.row, self.step)

    @property
    def theirs_as_far_back(self) -> tuple[float, ...]:
        """Their curves, seen as ours are: over the span of an episode of ours."""
        if self.published.reference.measure == "evaluation" or not self.theirs:
            return self.theirs
        return tuple(looking_back(run, self.step, self.span) for run in self.published.reference.runs(self.env_id, self.published.row))


def looking_back(curve: Curve, step: int, span: float) -> float:
    """The mean over the stretch that ends at `step` of the curve's mean over the `span` before each point, or since the start.

    A curve's value is that of the whole stretch before its step. With a span of 0 it is the curve's value at `step`.
    """
    ends, values = [0, *(place for place, _ in curve)], [value for _, value in curve]

    def integral(until: float) -> float:
        return sum(value * (min(until, end) - start) for start, end, value in zip(ends, ends[1:], values, strict=False) if until > start)

    begin = max(end for end in ends if end < step)
    found = []
    for point in range(POINTS):
        end = begin + (step - begin) * (point + 0.5) / POINTS
        start = max(0.0, end - max(span, 1.0))
        found.append((integral(end) - integral(start)) / (end - start))
    return sum(found) / POINTS


def beside_published(lines: Sequence[Line], statistics: Statistics) -> Iterator[str]:
    """A table for each source that one of `lines` names."""
    for source in dict.fromkeys(line.published.source for line in lines):
        reference = load_reference(source)
        what = f"training return over the last {WINDOW:,} steps" if reference.measure == "training" else "greedy evaluation at the end"
        yield f"Compared with {reference.title}: {what}.\n"
        head = [
            "",
            "steps",
            "ours, per seed",
            "ours: mean",
            "theirs",
            "theirs: mean",
            "lowest to highest",
            "theirs over our span (its length)",
            "ours − theirs",
            "",
        ]
        here = [line for line in lines if line.published.source == source]
        yield markdown(head, [_cells(line, statistics) for line in here]) + "\n"


def _cells(line: Line, statistics: Statistics) -> list[str]:
    ours, theirs = line.ours, line.theirs
    published = [line.published.row, *_published(theirs)]
    if not ours:
        return [line.label, f"{line.step:,}", "not measured yet", "", *published, "", "", ""]
    mean = estimate(statistics.mean(ours)) if len(ours) > 1 else number(ours[0])
    seen = line.theirs_as_far_back
    back = f"{number(sum(seen) / len(seen))} ({number(round(line.span, -3))} steps)" if seen and line.span else ""
    return [line.label, f"{line.step:,}", numbers(ours), mean, *published, back, *_compared(ours, seen, statistics)]


def _published(theirs: Sequence[float]) -> list[str]:
    if not theirs:
        return ["none at this step", ""]
    mean = number(sum(theirs) / len(theirs))
    return [mean, f"{number(min(theirs))} to {number(max(theirs))} ({len(theirs)} runs)" if len(theirs) > 1 else "one figure"]


def _compared(ours: Sequence[float], theirs: Sequence[float], statistics: Statistics) -> list[str]:
    if not theirs:
        return ["", ""]
    if len(ours) < 2 or len(theirs) < 2:
        lone = "one seed" if len(ours) < 2 else "one figure"
        return [number(sum(ours) / len(ours) - sum(theirs) / len(theirs)), f"{lone}: no verdict"]
    difference = statistics.difference(ours, theirs)
    return [estimate(difference), verdict(difference)]


def verdict(difference: Estimate) -> str:
    return "**better**" if difference.low > 0 else "**worse**" if difference.high < 0 else "no difference shown"


def published_elsewhere(names: Sequence[str]) -> Iterator[str]:
    """What others reached at protocols of their own: figures to know of, compared with nothing."""
    references = [load_reference(name) for name in names]
    tasks = list(dict.fromkeys(env_id for reference in references for env_id in reference.rows))
    lines = [line for reference in references for line in _figures(reference, tasks)]
    yield "### Published by others under their own protocols\n"
    yield markdown(["", "agent steps", *tasks], lines) + "\n"


def _figures(reference: Reference, tasks: Sequence[str]) -> Iterator[list[str]]:
    """A line for each row and number of steps, a cell for each task."""
    places = dict.fromkeys(
        (row, step) for env_id, rows in reference.rows.items() for row in rows for run in reference.runs(env_id, row) for step, _ in run
    )
    for row, step in places:
        found = [reference.at(env_id, row, step) if row in reference.rows.get(env_id, ()) else () for env_id in tasks]
        label = row if row == reference.title else f"{row} ({reference.title})"
        yield [label, f"{step:,}", *(number(sum(values) / len(values)) if values else "" for values in found)]


def sources(names: Sequence[str]) -> Iterator[str]:
    for reference in map(load_reference, names):
        yield f"- {reference.title}: {reference.source}. {reference.protocol}"
    yield ""

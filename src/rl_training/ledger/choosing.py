"""docs/choosing.md: which algorithm to start with, answered by the records. What it recommends is computed, so that it stays true."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, median

from rl_training.experiment.registry import algorithm_names, get_algorithm_spec
from rl_training.ledger.beside import Line
from rl_training.ledger.costs import SAME_TIME, cheapest, count, duration, mean_over_tasks, median_cost
from rl_training.ledger.records import Record
from rl_training.ledger.rows import Row, Tasks, iqm_over_scaled_tasks, lines_beside, reference_of
from rl_training.ledger.statistics import Estimate, Statistics
from rl_training.ledger.suites import Suite, Task
from rl_training.ledger.text import estimate, markdown, number
from rl_training.ledger.training import WINDOW

INTRODUCTION = """\
# Which algorithm should I use?

Start with the first table; the tables after it show the evidence. All figures come from the shipped configs, which were not all tuned with
the same care ([how they were chosen](measuring.md#how-the-shipped-configs-were-chosen)). [Results](results.md) has the intervals and every
seed.

A cell is the interquartile mean of the final policies' returns over seeds. In brackets: environment steps and wall time until a run's own
evaluations first reach the task's threshold (median over seeds; "never" if most seeds do not reach it), or those of the whole run if the
task has no threshold. Wall times are on one CPU thread unless noted, on [several machines](results.md#where-these-runs-were-made) that were
often shared: they tell a minute from an hour, not ten seconds from twelve.

Made by `make results` from the records in `benchmarks/results/`; do not edit by hand.
"""
CONTINUOUS = "Pendulum-v1"


@dataclass(frozen=True)
class Found:
    """A suite's tasks that some row has finished, and on each the package's own rows that have records of all seeds."""

    suite: Suite
    tasks: tuple[tuple[Task, tuple[Row, ...]], ...]

    @classmethod
    def of(cls, suite: Suite, tasks: Tasks) -> Found:
        ours = set(algorithm_names())
        finished = ((task, tuple(row for row in rows if row.complete and row.algorithm in ours)) for task, rows in tasks)
        return cls(suite, tuple((task, rows) for task, rows in finished if rows))  # a task that nobody has run yet decides nothing

    @property
    def everywhere(self) -> dict[str, list[tuple[Task, Row]]]:
        """Rows that have run all tasks, by their title."""
        titles = [{row.title: (task, row) for row in rows} for task, rows in self.tasks]
        shared = [title for title in titles[0] if all(title in each for each in titles)] if titles else []
        return {title: [each[title] for each in titles] for title in shared}


def choosing_page(suites: Mapping[str, tuple[Suite, Tasks]], masked: Sequence[Record], statistics: Statistics) -> str:
    found = {name: Found.of(suite, tasks) for name, (suite, tasks) in suites.items()}
    sections = [
        *_vectors(found["classic"], statistics),
        *_continuous(found["on_policy"], statistics),
        *_time(found["classic"], found["on_policy"], statistics),
        *_memory(found["memory"], statistics),
        *_images(found["minatar"], suites["atari"][1], statistics),
        *_masks(masked),
    ]
    answers = [section.answer for section in sections]
    table = markdown(["your task", "start with", "because"], [list(answer) for answer in answers if answer is not None])
    return "\n".join([INTRODUCTION, "## In short\n", table + "\n", *(f"## {section.title}\n\n{section.text}\n" for section in sections)])


Answer = tuple[str, str, str]


@dataclass(frozen=True)
class Section:
    """A part of the page, and its line in the table on top."""

    title: str
    text: str
    answer: Answer | None = None


def _link(algorithm: str) -> str:
    return f"[`{algorithm}`](algorithms/{algorithm}.md)"


def _cell(task: Task, row: Row, statistics: Statistics) -> str:
    cost = median_cost(row.records, task.solved)
    budgets = " or ".join(map(count, row.other_budgets(task)))
    never = f"never in {budgets} steps" if budgets else "never"
    taken = f"{count(cost.steps)} steps, {duration(cost.seconds)}" if math.isfinite(cost.steps) else never
    return f"{number(statistics.iqm(row.scores('final')).point)} ({taken})"


def _grid(tasks: Iterable[tuple[Task, Sequence[Row]]], statistics: Statistics) -> str:
    """Rows × tasks."""
    measured = [(task, rows) for task, rows in tasks if rows]
    labels = {row.title: row for _, rows in measured for row in rows}
    cells = [{row.title: _cell(task, row, statistics) for row in rows} for task, rows in measured]
    head = [f"{task.name}{f', ≥ {number(task.solved)}' if task.solved is not None else ''}" for task, _ in measured]
    return markdown(["", *head], [[title, *(column.get(title, "") for column in cells)] for title in labels])


def _vectors(classic: Found, statistics: Statistics) -> Iterator[Section]:
    """Vectors: how well, and with how few environment steps."""
    rows = classic.everywhere
    if not rows:
        return
    scores = {title: iqm_over_scaled_tasks(found, statistics) for title, found in rows.items()}
    costs = {title: [median_cost(row.records, task.solved) for task, row in found] for title, found in rows.items()}
    seconds = {title: mean_over_tasks([cost.seconds for cost in each]) for title, each in costs.items()}
    best = max(scores, key=lambda title: scores[title].point)
    tied = [title for title in scores if scores[title].high >= scores[best].low]  # the best among them
    as_quick = cheapest({title: seconds[title] for title in tied}, near=SAME_TIME) or tied
    chosen = min(as_quick, key=lambda title: algorithm_names().index(rows[title][0][1].algorithm))
    plain = next((f"; `dqn` {estimate(scores[title])}" for title in scores if title == "`dqn`" and title not in tied), "")
    over = f"IQM of the final policies over {_tasks(len(classic.tasks))}, scaled so that 1 is solved"
    why = f"{over}: {estimate(scores[chosen])}{_of_the_tied(chosen, tied, as_quick, scores)}{plain}"
    answer = ("vectors, discrete actions", _linked(rows, [chosen]), why)
    grid = _grid([(task, [row for row in here if row.title in rows]) for task, here in classic.tasks], statistics)
    text = (
        f"Algorithms that have run every task of the suite `{classic.suite.name}`. The answer is the one with the highest IQM over the "
        "tasks. If others' intervals overlap its own, it is the simplest of them (the first in the list of algorithms) that takes at most "
        f"{SAME_TIME:g} times as long as the quickest to the thresholds (geometric mean of wall times).\n\n"
    )
    yield Section("Vectors", text + grid, answer)
    steps = {title: mean_over_tasks([cost.steps for cost in each]) for title, each in costs.items()}
    fewest = cheapest(steps)
    text = "Steps to the threshold: geometric mean over the tasks of the medians above. Differences within 10% count as ties.\n\n"
    ordered = sorted(steps, key=steps.__getitem__)
    table = markdown(
        ["", "steps"], [[title, count(steps[title]) if math.isfinite(steps[title]) else "one task never solved"] for title in ordered]
    )
    near = "; the others listed are within 10%" if len(fewest) > 1 else ""
    because = f"{count(steps[fewest[0]])} steps to the threshold (geometric mean over the tasks){near}" if fewest else ""
    yield Section("Few samples", text + table, ("steps are expensive", _linked(rows, fewest), because) if fewest else None)


def _of_the_tied(chosen: str, tied: Sequence[str], as_quick: Sequence[str], scores: Mapping[str, Estimate]) -> str:
    others = sorted((scores[title] for title in tied if title != chosen), key=lambda score: score.point)
    if not others:
        return ""
    one = len(others) == 1
    means = estimate(others[0]) if one else f"{number(others[0].point)} to {number(others[-1].point)}"
    which = "the simplest of the quick ones" if len(as_quick) < len(tied) else "the simplest"
    return f"; of {len(tied)} that may be the best (the other{'s'[: not one]}: {means}), {which}"


def _continuous(on_policy: Found, statistics: Statistics) -> Iterator[Section]:
    """Rows that take Box actions, by the task that has them."""
    able = [name for name in algorithm_names() if "box" in get_algorithm_spec(name).actions]
    tasks = [(task, rows) for task, rows in on_policy.tasks if task.name == CONTINUOUS and rows]
    if not able or not tasks:
        return
    task, rows = tasks[0]
    taken = ", ".join(f"{row.title} {_cell(task, row, statistics)}" for row in rows)
    answer = ("continuous actions", ", ".join(map(_link, able)), f"nothing else supports them; {task.name}: {taken}")
    yield Section("Continuous actions", f"Only {' and '.join(map(_link, able))} support them.\n\n{_grid(tasks, statistics)}", answer)


def _time(classic: Found, on_policy: Found, statistics: Statistics) -> Iterator[Section]:
    """The tasks that rows with replay and rows without have both run, at the same threshold."""
    with_replay = {task.name: (task, rows) for task, rows in classic.tasks}
    shared = [(with_replay[task.name], rows) for task, rows in on_policy.tasks if task.name in with_replay]
    joint = Found(classic.suite, tuple((task, (*there, *rows)) for (task, there), rows in shared))
    rows = joint.everywhere
    if not rows:
        return
    costs = {
        title: mean_over_tasks([median_cost(row.records, task.solved).seconds for task, row in found]) for title, found in rows.items()
    }
    rates = {
        title: mean_over_tasks([row.steps / median_cost(row.records, None).seconds for _, row in found]) for title, found in rows.items()
    }
    lines = [
        [title, *(_cell(task, row, statistics) for task, row in rows[title]), f"{rates[title]:,.0f}"]
        for title in sorted(rows, key=costs.__getitem__)
    ]
    text = (
        "The same tasks and thresholds for algorithms with replay and algorithms that learn from rollouts of several environments, fastest "
        "first. The last column is environment steps per second over whole runs, evaluations included. "
        f"Wall times within a factor of {SAME_TIME:g} count as ties.\n\n"
    )
    table = markdown(["", *(f"{task.name}, ≥ {number(task.solved or 0)}" for task, _ in joint.tasks), "steps/s"], lines)
    more = (
        "\n\nTo act in other processes or on other machines, see [Many machines](distributed.md); for speed, [Performance](performance.md)."
    )
    answer = None
    if quickest := cheapest(costs, near=SAME_TIME):
        where = ", ".join(task.name for task, _ in joint.tasks)
        took = f"{duration(costs[quickest[0]])} to the threshold on {where} (geometric mean), {rates[quickest[0]]:,.0f} steps/s"
        answer = ("wall time matters and steps are cheap, or many environments", _linked(rows, quickest), took)
    yield Section("Wall time and many environments", text + table + more, answer)


def _memory(memory: Found, statistics: Statistics) -> Iterator[Section]:
    """Tasks that need memory: by how many final policies solve them, then by time."""
    rows = memory.everywhere
    if not rows:
        return
    judged = {title: [score >= (task.solved or 0) for task, row in found for score in row.scores("final")] for title, found in rows.items()}
    seconds = {title: mean_over_tasks([median_cost(row.records, None).seconds for _, row in found]) for title, found in rows.items()}
    best = min(rows, key=lambda title: (-sum(judged[title]), seconds[title]))
    because = f"{sum(judged[best])} of {len(judged[best])} final policies solve their task ({_tasks(len(memory.tasks))})" + "".join(
        f"; {title} {sum(judged[title])}{_less_training(rows[title], rows[best])}" for title in rows if title != best
    )
    text = (
        "The answer is the algorithm with the most final policies that solve a task; ties go to the shorter wall time. Algorithms without "
        "memory are controls, and *frame stack* means the last four observations.\n\n"
    )
    answer = ("part of the state is hidden", _linked(rows, [best]), because)
    yield Section("Partial observability", text + _grid(memory.tasks, statistics), answer)


def _less_training(rows: Sequence[tuple[Task, Row]], than: Sequence[tuple[Task, Row]]) -> str:
    """On how many tasks it had fewer steps: what it did not solve there, it may not have had the time for."""
    fewer = sum(row.longest < other.longest for (_, row), (_, other) in zip(rows, than, strict=True))
    return f", but after fewer steps on {_tasks(fewer)}" if fewer else ""


def _tasks(many: int) -> str:
    return f"{many} task{'s'[: many != 1]}"


def _images(minatar: Found, atari: Tasks, statistics: Statistics) -> Iterator[Section]:
    """Small images, then Atari."""
    if rows := minatar.everywhere:
        yield _small_images(minatar, rows, statistics)
    beside = [(task, row, line) for task, rows in atari for row in rows for line in lines_beside([row]) if line.ours]
    if beside := [each for each in beside if each[2].published.reference.measure == "training"]:
        yield _atari(beside)


def _small_images(minatar: Found, rows: Mapping[str, Sequence[tuple[Task, Row]]], statistics: Statistics) -> Section:
    """Of the rows shown to be better than the reference on every game, the one that is best on most games."""
    better = [title for title in rows if all(_better(task, row, minatar, statistics) for task, row in rows[title])]
    answer = None
    if better:
        games = [{title: statistics.iqm(rows[title][at][1].scores("final")).point for title in better} for at in range(len(minatar.tasks))]
        highest = [max(game, key=game.__getitem__) for game in games]
        chosen = max(better, key=highest.count)
        steps, seconds = rows[chosen][0][1].steps, mean_over_tasks([median_cost(row.records, None).seconds for _, row in rows[chosen]])
        budgets = {row.steps for title in rows if title != chosen for _, row in rows[title]} - {steps}
        others = f" (others {' or '.join(map(count, sorted(budgets)))} steps)" if budgets else ""
        because = (
            f"best on {highest.count(chosen)} of {len(games)} games, with {count(steps)} steps in {duration(seconds)}{others}; "
            f"shown to be better than `{minatar.tasks[0][0].reference}` on every game: {', '.join(better)}"
        )
        answer = ("small images", _linked(rows, [chosen]), because)
    devices = {title: _devices(record for _, row in rows[title] for record in row.records) for title in rows}
    on_cpu, on_both = ([title for title in rows if devices[title] == kinds] for kinds in ({"cpu"}, {"cpu", "gpu"}))
    places = ["one GPU shared by several runs, so wall times are rough"] if len(on_cpu) < len(rows) else []
    places += [f"{', '.join(on_cpu)} on one CPU thread" if places else "one CPU thread"] if on_cpu else []
    places += [f"{', '.join(on_both)} partly on one CPU thread"] if on_both else []
    return Section("Small images", f"MinAtar. On {'; '.join(places)}.\n\n{_grid(minatar.tasks, statistics)}", answer)


def _atari(beside: Sequence[tuple[Task, Row, Line]]) -> Section:
    """By the training return at the end of the budget, which is what can be compared with others. The ledger's runs share a GPU, or have
    one CPU thread each."""
    cells, means = [], defaultdict[str, dict[str, float]](dict)
    for task, row, line in beside:
        theirs = f"{number(mean(line.theirs))} ({line.published.title})" if line.theirs else ""
        seconds = median(median_cost([record], None).seconds for record in line.records)
        ours = f"{number(mean(line.ours))} ({_seeds(len(line.ours))})"
        here = " (CPU)" if "cpu" in _devices(line.records) else ""
        cells.append([task.name, line.label, count(line.step), ours, theirs, duration(seconds) + here])
        if not row.variant and line.step == task.total_timesteps:
            means[row.title][task.name] = mean(line.ours)  # two configs of an algorithm, such as iqn's with IMPALA, are two
    on_cpu = any("cpu" in _devices(line.records) for _, _, line in beside)
    text = (
        f"Training returns over the last {WINDOW:,} steps, next to runs that others published under the same protocol. "
        f"Ours were made on one GPU shared by several runs{', or on one CPU thread where the wall time says so' if on_cpu else ''}. "
        "Theirs play one game at a time and ours 64, or as many as noted: the more games, the older the policies that the returns come "
        "from. [Results](results.md#atari) says by how much, and which differences are more than chance.\n\n"
    )
    table = markdown(["game", "", "steps", "ours", "published", "wall time"], cells)
    algorithms = {row.title: row.algorithm for _, row, _ in beside}
    return Section("Atari", text + table, _best_on_atari(means, algorithms, beside[0][0].total_timesteps))


def _devices(records: Iterable[Record]) -> set[str]:
    return {"cpu" if record.config.get("device") == "cpu" else "gpu" for record in records}


def _best_on_atari(means: Mapping[str, Mapping[str, float]], algorithms: Mapping[str, str], steps: int) -> Answer | None:
    """Of the configs that have played as many games as any, and the same ones, the one with the highest return on most of them."""
    games = max((played.keys() for played in means.values()), key=len, default=set[str]())
    compared = {title: played for title, played in means.items() if played.keys() >= games}
    if len(compared) < 2:
        return None
    highest = [max(compared, key=lambda title: compared[title][game]) for game in games]
    best = max(compared, key=highest.count)
    reached = ", ".join(f"{game} {number(value)}" for game, value in compared[best].items())
    won = f"the highest mean of {len(compared)} configs on {highest.count(best)} of {len(games)} games (not tested for chance)"
    because = f"{reached} after {count(steps)} steps: {won}"
    more = [
        f"; {title}, which has not played them all, {number(value)} on {game}"
        for title, played in means.items()
        if title not in compared
        for game, value in played.items()
        if value > compared[best].get(game, math.inf)
    ]
    return ("Atari, a GPU", _link(algorithms[best]), because + "".join(more))


def _seeds(many: int) -> str:
    return f"{many} seed{'s'[: many != 1]}"


def _masks(records: Sequence[Record]) -> Iterator[Section]:
    with_masks = [record.score("final") for record in records if not record.label]
    without = [record.score("final") for record in records if record.label]
    if not with_masks or not without:
        return
    task, steps = records[0].env_id, records[0].steps
    reached = f"{number(median(with_masks))} with masks, {number(median(without))} without"
    said = f"`{records[0].algorithm}` on `{task}`, {count(steps)} steps: {reached}"
    text = f"Every algorithm respects the [masks](action_masks.md) of an environment. {said} (medians of {_seeds(len(with_masks))})."
    yield Section("Action masks", text, ("some actions are not allowed", "any algorithm", said))


def _linked(rows: Mapping[str, Sequence[tuple[Task, Row]]], titles: Iterable[str]) -> str:
    return ", ".join(_link(rows[title][0][1].algorithm) for title in titles)


def _better(task: Task, row: Row, found: Found, statistics: Statistics) -> bool:
    """Whether the row's final policies are shown to be better than the task's reference."""
    reference = reference_of(task, next(rows for other, rows in found.tasks if other is task))
    if reference is None or reference is row:
        return False
    return statistics.improvement(row.scores("final"), reference.scores("final")).low > 0.5

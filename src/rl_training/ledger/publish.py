"""docs/results.md, docs/choosing.md and the README's three numbers, made from suites and records: nobody copies a number by hand."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from rl_training.experiment.shipped import REACHED, shipped_configs
from rl_training.ledger.beside import HOW, beside_published, published_elsewhere, sources
from rl_training.ledger.choosing import choosing_page
from rl_training.ledger.drawing import curves_beside
from rl_training.ledger.readme import learned, speed, spliced
from rl_training.ledger.records import Policy, Record, by_group, differences, read_records
from rl_training.ledger.rows import Row, Tasks, lines_beside, reference_of, rows_of, scaled
from rl_training.ledger.statistics import PROFILE_LEVELS, Statistics
from rl_training.ledger.suites import Suite, Task, load_suite, plan_config
from rl_training.ledger.text import estimate, markdown, number, numbers, thousands

AT_A_GLANCE = ("classic", "memory")
WATCHED = frozenset(("eval_interval", "log_interval", "checkpoint_interval"))  # how often a run is looked at, not how it is trained
PUBLISHED = ("classic", "on_policy", "memory", "minatar", "atari", "ablation")


def publish(root: Path, statistics_file: Path, results: Path, *, frozen: bool = False) -> dict[Path, str]:
    """What the pages, the README and the file of what configs reached should hold. `frozen`: only from statistics that are stored."""
    statistics = Statistics.load(statistics_file, frozen=frozen)
    records = read_records(results)
    suites = [(suite, rows_of(suite, records)) for suite in map(load_suite, PUBLISHED)]
    readme, throughput = root / "README.md", root / "benchmarks" / "results" / "throughput.json"
    page = "\n".join(results_page(suites, statistics))
    pages = {root / "docs" / "results.md": page, readme: spliced(readme, "\n".join([*learned(suites, statistics), *speed(throughput)]))}
    masked = read_records(results.parent / "action_masks")
    pages[root / "docs" / "choosing.md"] = choosing_page({suite.name: (suite, tasks) for suite, tasks in suites}, masked, statistics)
    pages |= {root / "docs" / picture: drawn for _, tasks in suites for picture, drawn in _pictures(tasks).values()}
    pages[root / "src" / "rl_training" / "assets" / REACHED.name] = reached_by_configs([suite for suite, _ in suites], records, statistics)
    if not frozen:
        statistics.save(statistics_file)
    return pages


def reached_by_configs(suites: Iterable[Suite], records: Iterable[Record], statistics: Statistics) -> str:
    """What `rl-training configs` says of the shipped configs, as JSON: of those with records, trained as the file says now.

    Where seeds are still to be run, `planned` says how many there will be.
    """
    found, shipped = by_group(records), set(shipped_configs())
    reached: dict[str, dict[str, object]] = {}
    for suite in suites:
        for task in suite.tasks:
            for run in task.runs:
                file = (run.config or "").removeprefix("configs/")
                if file not in shipped or not run.set.keys() <= WATCHED:
                    continue
                plans = list(plan_config(file, [], run.seeds or suite.seeds))
                made = {
                    record.seed: record for record in found.get(plans[0].group, []) if WATCHED.issuperset(differences(record, plans[0]))
                }
                if scores := [made[plan.config.seed].score("best") for plan in plans if plan.config.seed in made]:
                    point, low, high = statistics.iqm(scores)
                    figures = {"mean": round(point, 4), "low": round(low, 4), "high": round(high, 4), "seeds": len(scores)}
                    missing = {"planned": len(plans)} if len(scores) < len(plans) else {}
                    reached[file.removesuffix(".yaml")] = {"task": task.name, **figures, **missing}
    return json.dumps(dict(sorted(reached.items())), indent=1, ensure_ascii=False) + "\n"


# docs/results.md


def results_page(suites: Sequence[tuple[Suite, Tasks]], statistics: Statistics) -> Iterator[str]:
    yield "# What it learns\n"
    yield (
        "Made by `make results` from the records in `benchmarks/results/learning/` (one JSON per run: config, commit, machine, curve); "
        "do not edit by hand. `rl-training report benchmarks/results/learning -o report.html` makes a page with all curves.\n"
    )
    yield (
        "Each run is evaluated over 100 fresh greedy episodes, or over the number given with the task.\n\n"
        "- *best* is the best checkpoint by the run's own evaluations, *final* the policy after the last update.\n"
        "- *IQM* is the interquartile mean over seeds, with its 95% stratified bootstrap interval (rliable, arXiv:2108.13264).\n"
        "- *P(better)* is the probability that a run's final policy beats one of the reference's; ties count half. "
        "*Better* or *worse* appears only if the whole interval lies on one side of ½. A bootstrap of three seeds is too sure of itself: "
        "three runs that all beat three others do so by chance in one case of ten (two-sided).\n"
        "- *anchor* is a single published run: it shows where we stand, not which is better.\n"
        "- In brackets after an algorithm: what its shipped config adds, such as five-step returns (*5-step*).\n"
    )
    yield from at_a_glance([(suite, tasks) for suite, tasks in suites if suite.name in AT_A_GLANCE], statistics)
    for suite, tasks in suites:
        yield f"## {suite.name}\n"
        yield f"{suite.description} Seeds {', '.join(map(str, suite.seeds))}; `rl-training ledger {suite.name}` runs what is missing.\n"
        beside = {task.name: lines_beside(rows) for task, rows in tasks}
        if any(beside.values()):
            yield HOW
        pictures = _pictures(tasks)
        for task, rows in tasks:
            yield from _task_section(task, rows, statistics)
            yield from beside_published(beside[task.name], statistics)
            if task.name in pictures:
                yield f"![Training returns on {task.name}, ours and published ones]({pictures[task.name][0]})\n"
        yield from _aggregate(tasks, statistics)
        if suite.references:
            yield from published_elsewhere(suite.references)
        if named := list(dict.fromkeys([*(line.published.source for lines in beside.values() for line in lines), *suite.references])):
            yield from sources(named)
    yield "## Where these runs were made\n"
    yield from _provenance([record for _, tasks in suites for _, rows in tasks for row in rows for record in (*row.records, *row.others)])


def _pictures(tasks: Tasks) -> dict[str, tuple[str, str]]:
    """By task: the name in docs/ of the picture of its shipped configs' training curves beside published ones, and the picture."""
    drawn = {task.name: curves_beside(lines_beside([row for row in rows if not row.variant])) for task, rows in tasks}
    return {name: (f"images/beside_{name.lower().replace(' ', '_')}.svg", picture) for name, picture in drawn.items() if picture}


def _task_section(task: Task, rows: Sequence[Row], statistics: Statistics) -> Iterator[str]:
    episodes = {int(record.final.get("eval_episodes", 0)) for row in rows for record in row.records} - {100}
    judged = f", evaluated over {' or '.join(map(str, sorted(episodes)))} episodes" if episodes else ""
    yield f"### {task.name}, {task.total_timesteps:,} steps{judged}\n"
    if task.about:
        yield f"{task.about}\n"
    reference = reference_of(task, rows)
    head = ["", "best: IQM", "final: IQM", "best, per seed", "final, per seed"]
    head += [f"≥ {number(task.solved)}: best, final"] if task.solved is not None else []
    head += ["anchor"] if task.anchors else []
    head += [f"P(better than `{task.reference}`)"] if reference else []
    table: list[list[str]] = []
    notes: list[str] = []
    for row in rows:
        best, final = row.scores("best"), row.scores("final")
        if not row.records:
            table.append([row.label, "not measured yet", *[""] * (len(head) - 2)])
            continue
        cells = [row.label, estimate(statistics.iqm(best)), estimate(statistics.iqm(final)), numbers(best), numbers(final)]
        if task.solved is not None:
            reached = [sum(score >= task.solved for score in scores) for scores in (best, final)]
            cells.append(f"{reached[0]}/{len(best)}, {reached[1]}/{len(final)}")
        if task.anchors:
            cells.append(number(task.anchors[row.algorithm]) if row.algorithm in task.anchors else "")
        if reference:
            cells.append(_compared(row, reference, statistics))
        table.append(cells)
        notes += _notes(task, row, statistics)
    yield markdown(head, table) + "\n"
    if task.anchors:
        yield f"Anchors: {task.anchor_source}.\n"
    yield from (f"- {note}" for note in notes)
    if notes:
        yield ""


def _compared(row: Row, reference: Row, statistics: Statistics) -> str:
    if row is reference:
        return "reference"
    if not row.complete:
        return "too few seeds"
    chance = statistics.improvement(row.scores("final"), reference.scores("final"))
    verdict = "**better**" if chance.low > 0.5 else "**worse**" if chance.high < 0.5 else "no difference shown"
    return f"{chance.point:.2f} [{chance.low:.2f}, {chance.high:.2f}] {verdict}"


def _notes(task: Task, row: Row, statistics: Statistics) -> Iterator[str]:
    """Everything a reader must know beside the numbers: below an anchor, made otherwise than the suite says, seeds missing or more."""
    anchor = task.anchors.get(row.algorithm)
    if anchor is not None:
        policies: tuple[Policy, ...] = ("best", "final")
        means = {policy: statistics.iqm(row.scores(policy)).point for policy in policies}
        below = [f"{policy} {number(mean)}" for policy, mean in means.items() if mean < anchor]
        if below:
            why = _ties(row.records) if means["best"] < anchor <= means["final"] else ""
            yield f"{row.title} is **below its anchor** {number(anchor)}: {', '.join(below)}.{why}"
    if budgets := row.other_budgets(task):
        yield f"{row.title} was run for {', '.join(f'{steps:,}' for steps in budgets)} steps, not {task.total_timesteps:,}."
    changed = [key for key in row.stale if key != "total_timesteps"]
    if changed:
        yield f"{row.title} was run before its config changed in {', '.join(f'`{key}`' for key in changed)}."
    for text, seeds in _assembled(row.records).items():
        yield f"{row.title}, seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}: {text}"
    if not row.complete:
        yield f"{row.title} has {len(row.records)} of {row.planned} seeds so far."
    if row.others:
        shown = "; ".join(
            f"seed {record.seed} best {number(record.score('best'))}, final {number(record.score('final'))}" for record in row.others
        )
        yield f"{row.title} with other seeds: {shown}."


def _assembled(records: Sequence[Record]) -> dict[str, list[int]]:
    """How records came about that the ledger did not write whole, each with its seeds."""
    told: dict[str, list[int]] = {}
    for record in records:
        if text := record.raw.get("assembled"):
            told.setdefault(str(text), []).append(record.seed)
    return told


def _ties(records: Sequence[Record]) -> str:
    """Why the checkpoint that a run chose may be worse than its last policy: the first of several evaluations it could not tell apart."""
    alike = [sum(value == max(returns) for value in returns) for record in records if (returns := [value for _, value in record.curve])]
    if not alike or min(alike) < 2:
        return ""
    episodes = ", ".join(sorted({str(record.config.get("eval_episodes", "?")) for record in records}))
    return f" A run's best checkpoint is the first of {min(alike)} to {max(alike)} that tie on their mean over {episodes} episodes."


def _aggregate(tasks: Tasks, statistics: Statistics) -> Iterator[str]:
    """Algorithms that have run all the scaled tasks, compared over all of them at once."""
    measured = [(task, {row.title: row for row in rows if row.complete}) for task, rows in tasks if task.scale is not None]
    if len(measured) < 2:
        return
    titles = [title for title in measured[0][1] if all(title in rows for _, rows in measured)]
    if not titles:
        yield "### All tasks together\n"
        yield "No algorithm has run all of them yet.\n"
        return
    lines = []
    for title in titles:
        scores = [scaled(task, rows[title].scores("final")) for task, rows in measured]
        profile = [f"{share.point:.2f} [{share.low:.2f}, {share.high:.2f}]" for share in statistics.profile(scores)]
        lines.append([title, estimate(statistics.iqm_over_tasks(scores)), *profile])
    yield "### All tasks together, final policies\n"
    yield "The interquartile mean of the scaled returns, and the performance profile: the share of runs that reach each level.\n"
    yield markdown(["", "IQM", *[f"≥ {level:g}" for level in PROFILE_LEVELS]], lines) + "\n"


def _provenance(records: Sequence[Record]) -> Iterator[str]:
    places: Counter[tuple[str, str]] = Counter()
    for record in records:
        machine = record.raw.get("machine") or {}
        where = f"{machine.get('cpu', 'unknown CPU')}, {machine.get('cores', '?')} cores"
        places[where, f"`{(record.commit or 'unknown')[:7]}`{' + changes' * record.uncommitted_changes}"] += 1
    if any(record.uncommitted_changes for record in records):
        yield (
            "*+ changes*: files of the working tree had changes that were not committed, so the commit alone may not give the run. "
            "Each record has the whole config it ran with.\n"
        )
    yield markdown(["machine", "commit", "runs"], [[*place, str(count)] for place, count in sorted(places.items())]) + "\n"


def at_a_glance(suites: Sequence[tuple[Suite, Tasks]], statistics: Statistics) -> Iterator[str]:
    if tables := overview(suites, statistics):
        yield "## At a glance\n"
        yield (
            "The best checkpoint of each run, over fresh episodes. Seeds 1–5 are not independent of the settings: "
            "most configs were changed after earlier versions had been run on these seeds "
            "([how they were chosen](measuring.md#how-the-shipped-configs-were-chosen)).\n"
        )
        yield tables + "\n"


def overview(suites: Sequence[tuple[Suite, Tasks]], statistics: Statistics) -> str:
    """A table for each suite, algorithms × tasks: the best checkpoint's interquartile mean and its interval.

    Algorithms that have run every task; the others stand in docs/results.md.
    """
    tables = []
    for suite, found in suites:
        tasks = [(task, [row for row in rows if row.records]) for task, rows in found]
        tasks = [(task, rows) for task, rows in tasks if rows]
        if not tasks:
            continue
        everywhere = set.intersection(*({row.title for row in rows} for _, rows in tasks))
        titles = [title for title in dict.fromkeys(row.title for row in tasks[0][1]) if title in everywhere]
        cells = [{row.title: _best(task, row, statistics) for row in rows} for task, rows in tasks]
        table = [[title, *(column.get(title, "") for column in cells)] for title in titles]
        tables.append(
            markdown([suite.name.replace("_", "-"), *[f"{task.name}, {thousands(task.total_timesteps)}" for task, _ in tasks]], table)
        )
    return "\n\n".join(tables)


def _best(task: Task, row: Row, statistics: Statistics) -> str:
    remarks = [*row.added, *map(thousands, row.other_budgets(task))]  # the column's head has the task's budget
    remarks += [] if row.complete else [f"{len(row.records)} of {row.planned} seeds"]
    return estimate(statistics.iqm(row.scores("best"))) + (f" ({', '.join(remarks)})" if remarks else "")

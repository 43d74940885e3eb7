"""One HTML file of many runs: learning curves with bands, sortable tables, every run's config, runs side by side. It needs no network.

Runs are the ledger's records (JSON) or run directories (config.yaml and metrics.jsonl), found in whatever folders are named.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

from rl_training.errors import RunError, UserError
from rl_training.experiment.files import is_regular, write_text
from rl_training.ledger.records import CIRCUMSTANCES
from rl_training.ledger.references import Published
from rl_training.ledger.run_views import RunView, find_runs, finite_number
from rl_training.ledger.statistics import Statistics

PAGE = Path(__file__).resolve().parent.parent / "assets" / "report"
MOST_POINTS = 400  # of one curve: a page of many long runs stays small
STATISTICS = "statistics.json"


def write_report(sources: Sequence[Path], output: Path, *, intervals: bool = False) -> str:
    """Writes the page of all runs found in `sources`; returns a sentence on what is in it."""
    runs = list(find_runs(sources))
    if not runs:
        raise UserError(f"{', '.join(map(str, sources))}: no runs there, neither run directories nor records of the ledger")
    if not output.parent.is_dir():
        raise UserError(f"{output}: there is no folder {output.parent}")
    if os.path.lexists(output) and not is_regular(output):
        raise UserError(f"{output}: is {'a folder' if output.is_dir() else 'no regular file'}, not a file to write")
    content = page_data(runs, _statistics(sources, intervals), output.parent)
    try:
        write_text(output, render(content))
    except OSError as error:
        raise RunError(f"{output}: cannot be written ({error.strerror or error})") from None
    return f"{output}: {content['summary']}"


def _statistics(sources: Sequence[Path], compute: bool) -> Statistics:
    """Those that stand beside the records, and any other where they are to be computed."""
    if compute:
        return Statistics()
    beside = [folder / STATISTICS for source in sources for folder in (source, source.parent)]
    return Statistics.load(next((path for path in beside if path.is_file()), Path(STATISTICS)), frozen=True)


# The page


def page_data(runs: Sequence[RunView], statistics: Statistics, place: Path = Path()) -> dict[str, Any]:
    """What the page's script reads. place: the folder it is going to lie in; videos are named as they are found from there."""
    groups: dict[str, list[int]] = {}
    for index, run in enumerate(runs):
        groups.setdefault(run.identity, []).append(index)
    counted = {index for members in groups.values() for index in _one_per_seed(runs, members)}
    titles = _titles([[runs[index] for index in members] for members in groups.values()])
    group_of = {index: number for number, members in enumerate(groups.values()) for index in members}
    tasks = {run.task for run in runs}
    counts = [f"{len(runs)} run{'s'[: len(runs) != 1]}", f"{len(groups)} config{'s'[: len(groups) != 1]}"]
    again = f"; {len(runs) - len(counted)} repeat a seed and are not counted" if len(counted) < len(runs) else ""
    return {
        "summary": f"{', '.join(counts)} on {len(tasks)} task{'s'[: len(tasks) != 1]}{again}",
        "groups": [
            _group(title, [runs[index] for index in members if index in counted], statistics)
            for title, members in zip(titles, groups.values(), strict=True)
        ],
        "runs": [{**_run(run, group_of[index], place), "counted": index in counted} for index, run in enumerate(runs)],
    }


def _one_per_seed(runs: Sequence[RunView], members: Sequence[int]) -> Iterator[int]:
    """Of runs of one config: for each seed the one that went furthest, the last of those. A seed that was run twice is one sample."""
    furthest: dict[str, int] = {}
    for index in members:
        seed = json.dumps(runs[index].config.get("seed", f"none: {index}"), default=str)
        if seed not in furthest or runs[index].last_step >= runs[furthest[seed]].last_step:
            furthest[seed] = index
    return iter(furthest.values())


def _group(title: str, runs: Sequence[RunView], statistics: Statistics) -> dict[str, Any]:
    first = runs[0]
    steps = finite_number(first.config.get("total_timesteps"))
    found: dict[str, Any] = {"title": title, "task": first.task, "judged": first.judged, "steps": steps}
    if first.published is not None:
        found["published"] = _published(first.published, str(first.config.get("env_id")), steps)
    best = [run.best for run in runs if run.best is not None]
    final = [run.final for run in runs if run.final is not None]
    if len(runs) > 2 and len(best) == len(final) == len(runs):  # of fewer a bootstrap says nothing
        with suppress(KeyError):  # not among those that are stored
            found["intervals"] = {"best": list(statistics.iqm(best)), "final": list(statistics.iqm(final))}
    return found


def _published(beside: Published, env_id: str, steps: float | None) -> dict[str, Any] | None:
    """Its curves, as far as ours go. None where they are no curves of training."""
    reference = beside.reference
    if reference.measure != "training" or not reference.curves:
        return None
    runs = [[point for point in run if steps is None or point[0] <= steps] for run in reference.runs(env_id, beside.row)]
    return {"title": f"{beside.title}, {len(runs)} runs", "curves": runs}


def _run(run: RunView, group: int, place: Path) -> dict[str, Any]:
    return {
        "name": run.name,
        "group": group,
        "algorithm": run.algorithm,
        "task": run.task,
        "seed": finite_number(run.config.get("seed")),
        "steps": finite_number(run.config.get("total_timesteps")),
        "best": run.best,
        "final": run.final,
        "seconds": run.seconds,
        "config": flat(run.config),
        "about": flat(run.about),
        "curves": {"evaluation": thinned(run.evaluation), "training": thinned(run.training)},
        "elapsed": thinned(run.elapsed),
        "videos": [_address(path, place) for path in run.videos],
    }


def _address(path: Path, place: Path) -> str:
    """Of a file beside the page. `./` first: a folder's name may look like a scheme."""
    relative = Path(os.path.relpath(path.resolve(), place.resolve())).as_posix()
    return f"./{quote(relative)}"


def _titles(groups: Sequence[Sequence[RunView]]) -> list[str]:
    """The algorithm and label of each group, and where that does not tell two of one task apart, the settings they differ in."""
    plain = [" ".join(filter(None, (group[0].algorithm, group[0].label))) for group in groups]
    titles = []
    for title, group in zip(plain, groups, strict=True):
        here = [other[0] for name, other in zip(plain, groups, strict=True) if name == title]
        alike = [flat(other.config) for other in here if other.task == group[0].task]
        mine = flat(group[0].config)
        keys = [key for key in mine if key not in CIRCUMSTANCES and any(other.get(key) != mine[key] for other in alike)]
        told = ", ".join(f"{key.rpartition('.')[2]}={mine[key]}" for key in keys[:4]) + (", …" if len(keys) > 4 else "")
        titles.append(f"{title} ({told})" if told else title)
    return titles


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested keys joined by dots; lists stay what they are."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = value
    return found


def thinned(curve: Sequence[tuple[int, float]], most: int = MOST_POINTS) -> list[tuple[int, float]]:
    """At most `most` points, evenly chosen, first and last among them."""
    if len(curve) <= most:
        return list(curve)
    return [curve[round(index * (len(curve) - 1) / (most - 1))] for index in range(most)]


def render(content: Mapping[str, Any]) -> str:
    """The whole page. Data stands in a script element as JSON in which no `<` is left, so that no text in it can end that element."""
    data = json.dumps(_finite(content), ensure_ascii=True, allow_nan=False, default=str)
    for sign in "<>&":
        data = data.replace(sign, f"\\u{ord(sign):04x}")
    page = (PAGE / "page.html").read_text(encoding="utf-8")
    parts = {"STYLE": (PAGE / "page.css").read_text("utf-8"), "SCRIPT": (PAGE / "page.js").read_text("utf-8"), "DATA": data}
    for name, text in parts.items():  # DATA last: what stands in it is not looked at again
        page = page.replace(f"/*{name}*/", text, 1)
    return page


def _finite(value: Any) -> Any:
    """JSON has no NaN and no infinity: null."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return value

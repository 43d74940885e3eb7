"""One HTML file of many runs: learning curves with bands, sortable tables, every run's config, runs side by side. It needs no network.

Runs are the ledger's records (JSON) or run directories (config.yaml and metrics.jsonl), found in whatever folders are named.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rl_training.errors import RunError, UserError
from rl_training.experiment.credentials import masked
from rl_training.experiment.explain import shown
from rl_training.experiment.files import is_regular, read_json, read_lines, reason, write_text
from rl_training.experiment.runs import MAX_METADATA_BYTES
from rl_training.experiment.settings import MOST
from rl_training.experiment.yaml_text import read_yaml
from rl_training.ledger.records import CIRCUMSTANCES, read_record
from rl_training.ledger.statistics import Statistics

PAGE = Path(__file__).resolve().parent.parent / "assets" / "report"
MOST_POINTS = 400  # of one curve: a page of many long runs stays small
STATISTICS = "statistics.json"


@dataclass(frozen=True)
class RunView:
    """What the page knows of a run, whichever way it was recorded."""

    name: str
    algorithm: str
    label: str
    config: Mapping[str, Any]
    about: Mapping[str, Any]
    judged: str
    best: float | None
    final: float | None
    seconds: float | None
    evaluation: Sequence[tuple[int, float]]
    training: Sequence[tuple[int, float]]
    elapsed: Sequence[tuple[int, float]]
    """Seconds until a step."""

    @property
    def task(self) -> str:
        """The environment, with what changes it."""
        kwargs = self.config.get("env_kwargs") or {}
        changes = [json.dumps(kwargs, ensure_ascii=False)] if kwargs else []
        return " ".join([str(self.config.get("env_id", "?")), *changes])

    @property
    def last_step(self) -> int:
        return max((curve[-1][0] for curve in (self.evaluation, self.training) if curve), default=0)

    @property
    def identity(self) -> str:
        """Runs that differ in nothing but their seed and circumstances have the same."""
        same = {key: value for key, value in self.config.items() if key not in CIRCUMSTANCES}
        return json.dumps([self.algorithm, self.label, self.judged, same], sort_keys=True, default=str)


def write_report(sources: Sequence[Path], output: Path, *, intervals: bool = False) -> str:
    """Writes the page of all runs found in `sources`; returns a sentence on what is in it."""
    runs = list(find_runs(sources))
    if not runs:
        raise UserError(f"{', '.join(map(str, sources))}: no runs there, neither run directories nor records of the ledger")
    if not output.parent.is_dir():
        raise UserError(f"{output}: there is no folder {output.parent}")
    if os.path.lexists(output) and not is_regular(output):
        raise UserError(f"{output}: is {'a folder' if output.is_dir() else 'no regular file'}, not a file to write")
    content = page_data(runs, _statistics(sources, intervals))
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


# Finding


def find_runs(sources: Iterable[Path]) -> Iterator[RunView]:
    for source in sources:
        if source.is_file():
            view = _record_view(source)
            if view is None:
                raise UserError(f"{source}: is no record of a run")
            yield view
        elif source.is_dir():
            yield from _walk(source)
        else:
            raise UserError(f"{source}: no such file or folder")


def _walk(source: Path) -> Iterator[RunView]:
    for place, folders, files in os.walk(source):
        folders.sort()
        folder = Path(place)
        if "config.yaml" in files and "metrics.jsonl" in files and is_regular(folder / "metrics.jsonl"):
            folders.clear()  # checkpoints have nothing for us
            yield _directory_view(folder)
            continue
        for file in sorted(files):
            if file.endswith(".json"):
                view = _record_view(folder / file)
                if view is not None:
                    yield view


def _record_view(path: Path) -> RunView | None:
    """The record at `path`; None where the file is some other JSON."""
    try:
        record = read_record(path)
        episodes = int(record.final.get("eval_episodes", 0))
    except (OSError, ValueError, OverflowError):  # a UserError is a ValueError
        return None
    raw = record.raw
    about = {key: raw[key] for key in ("suite", "config_file", "best_step", "num_updates", "git", "machine", "versions") if raw.get(key)}
    return RunView(
        name=record.name,
        algorithm=record.algorithm,
        label=record.label,
        config=plain(record.config),
        about=plain(about),
        judged=f"{episodes} fresh greedy episodes",
        best=record.score("best"),
        final=record.score("final"),
        seconds=_number(raw.get("wall_time_s")),
        evaluation=record.curve,
        training=[],
        elapsed=_even(record.steps, _number(raw.get("wall_time_s"))),
    )


def _directory_view(folder: Path) -> RunView:
    config = read_yaml(folder / "config.yaml")
    if not isinstance(config, dict):
        raise UserError(f"{folder / 'config.yaml'}: is no config")
    config = plain(config)
    try:
        about = plain(read_json(folder / "metadata.json", limit=MAX_METADATA_BYTES))
    except (OSError, ValueError):
        about = {}
    tags = config.get("tags")
    measured = list(_measurements(folder / "metrics.jsonl"))
    evaluation = _curve(measured, "eval/mean_reward")
    elapsed = _curve(measured, "time/time_elapsed")
    return RunView(
        name=folder.name,
        algorithm=str(config.get("algo", "?")),
        label=" ".join(map(str, tags if isinstance(tags, list) else ())),
        config=config,
        about=about if isinstance(about, dict) else {},
        judged="the run's own evaluations",
        best=max((value for _, value in evaluation), default=None),
        final=evaluation[-1][1] if evaluation else None,
        seconds=elapsed[-1][1] if elapsed else None,
        evaluation=evaluation,
        training=_curve(measured, "rollout/ep_rew_mean"),
        elapsed=[(0, 0.0), *elapsed] if elapsed else [],
    )


def _measurements(path: Path) -> Iterator[dict[str, Any]]:
    try:
        for line in read_lines(path):
            try:
                record = json.loads(line)
            except (ValueError, RecursionError):  # a run that is going on, or was killed, may leave half a line
                continue
            if isinstance(record, dict) and isinstance(record.get("step"), int):
                yield record
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({reason(error)})") from None


def _curve(measured: Iterable[Mapping[str, Any]], key: str) -> list[tuple[int, float]]:
    """By step; of two values at one step the later one, as a run that was resumed by hand may have them."""
    values = ((record["step"], _number(record.get(key))) for record in measured)
    return sorted({step: value for step, value in values if value is not None and abs(step) <= MOST}.items())


def _even(steps: int, seconds: float | None) -> list[tuple[int, float]]:
    """A record knows how long its run took in all: as if each step had taken the same."""
    return [(0, 0.0), (steps, seconds)] if steps > 0 and seconds is not None and seconds > 0 else []


def _number(value: Any) -> float | None:
    """A finite number as it is, anything else as None."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) <= sys.float_info.max:
        return None
    return float(value)


def plain(value: Any) -> Any:
    """What YAML or JSON of anybody's held, as JSON can hold it: text for keys, dates and bytes; no passwords."""
    if value is None or isinstance(value, (bool, str)):
        return masked(value)
    if isinstance(value, (int, float)):
        return value if isinstance(value, float) or value.bit_length() <= 1_024 else shown(value)
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set)):
        return [plain(item) for item in value]
    return shown(value)


# The page


def page_data(runs: Sequence[RunView], statistics: Statistics) -> dict[str, Any]:
    """What the page's script reads."""
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
        "runs": [{**_run(run, group_of[index]), "counted": index in counted} for index, run in enumerate(runs)],
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
    steps = _number(first.config.get("total_timesteps"))
    found: dict[str, Any] = {"title": title, "task": first.task, "judged": first.judged, "steps": steps}
    best = [run.best for run in runs if run.best is not None]
    final = [run.final for run in runs if run.final is not None]
    if len(runs) > 2 and len(best) == len(final) == len(runs):  # of fewer a bootstrap says nothing
        with suppress(KeyError):  # not among those that are stored
            found["intervals"] = {"best": list(statistics.iqm(best)), "final": list(statistics.iqm(final))}
    return found


def _run(run: RunView, group: int) -> dict[str, Any]:
    return {
        "name": run.name,
        "group": group,
        "algorithm": run.algorithm,
        "task": run.task,
        "seed": _number(run.config.get("seed")),
        "steps": _number(run.config.get("total_timesteps")),
        "best": run.best,
        "final": run.final,
        "seconds": run.seconds,
        "config": flat(run.config),
        "about": flat(run.about),
        "curves": {"evaluation": thinned(run.evaluation), "training": thinned(run.training)},
        "elapsed": thinned(run.elapsed),
    }


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

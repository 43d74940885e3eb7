"""What a report knows of a run, read from the ledger's records (JSON) and from run directories (config.yaml and metrics.jsonl)."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rl_training.errors import UserError
from rl_training.experiment.credentials import masked
from rl_training.experiment.explain import shown
from rl_training.experiment.files import is_regular, read_json, read_lines, reason
from rl_training.experiment.runs import MAX_METADATA_BYTES
from rl_training.experiment.settings import MOST
from rl_training.experiment.yaml_text import read_yaml
from rl_training.ledger.records import CIRCUMSTANCES, read_record
from rl_training.ledger.references import Published
from rl_training.ledger.suites import published_beside


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
    published: Published | None = None
    """Runs of others that its suite puts beside it."""
    videos: Sequence[Path] = ()
    """What `eval --record` has written into the run's directory."""

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
        seconds=finite_number(raw.get("wall_time_s")),
        evaluation=record.curve,
        training=[(step, value) for step, value, _ in record.training],
        published=published_beside(raw.get("suite"), record.group, record.env_id, record.config.get("env_kwargs")),
        elapsed=_even(record.steps, finite_number(raw.get("wall_time_s"))),
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
        videos=sorted(path for path in folder.glob("*.mp4") if is_regular(path)),
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
    values = ((record["step"], finite_number(record.get(key))) for record in measured)
    return sorted({step: value for step, value in values if value is not None and abs(step) <= MOST}.items())


def _even(steps: int, seconds: float | None) -> list[tuple[int, float]]:
    """A record knows how long its run took in all: as if each step had taken the same."""
    return [(0, 0.0), (steps, seconds)] if steps > 0 and seconds is not None and seconds > 0 else []


def finite_number(value: Any) -> float | None:
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

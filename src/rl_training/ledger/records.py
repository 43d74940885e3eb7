"""One JSON per run: what was run, on what, how it learned, and how its policies do on fresh episodes.

`best` is the checkpoint the run itself chose, `final` the policy after the last update; both are evaluated greedily, on episodes that no
evaluation of the run has played.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from rl_training.errors import UserError
from rl_training.experiment.files import Lock, read_json, reason, write_json
from rl_training.experiment.settings import Settings
from rl_training.ledger.suites import Plan, group_of

Policy = Literal["best", "final"]
MAX_BYTES = 64 << 20

# What says how a run was made, not what it computes.
CIRCUMSTANCES = frozenset(
    (
        "seed",
        "output_dir",
        "device",
        "threads",
        "tags",
        "log_interval",
        "checkpoint_interval",
        "checkpoint_replay",
        "keep_checkpoints",
        "compile",
        "trackers",
        "ray_address",
    )
)


@dataclass(frozen=True)
class Record:
    """A record as read; `raw` is all of it."""

    name: str
    algorithm: str
    env_id: str
    label: str
    seed: int
    config: Mapping[str, Any]
    best: Mapping[str, float]
    final: Mapping[str, float]
    curve: tuple[tuple[int, float], ...]
    training: tuple[tuple[int, float, int], ...]  # stretch by stretch (training.py): step it ends at, mean return, episodes
    raw: Mapping[str, Any] = field(repr=False)

    @classmethod
    def from_json(cls, raw: Any, *, source: str) -> Record:
        """The record in `raw`; fields that older records lack are taken from their config."""
        try:
            config = raw["config"]
            record = cls(
                name=str(raw["name"]),
                algorithm=str(raw.get("algorithm") or config["algo"]),
                env_id=str(config["env_id"]),
                label=str(raw.get("label", "")),
                seed=int(raw["seed"]),
                config=dict(config),
                best=_evaluation(raw["best"]),
                final=_evaluation(raw["final"]),
                curve=tuple((int(step), float(value)) for step, value in raw.get("curve", ())),
                training=tuple((int(step), float(value), int(count)) for step, value, count in raw.get("training", ())),
                raw=raw,
            )
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise UserError(f"{source}: is no record of a run ({type(error).__name__}: {reason(error):.100})") from None
        return record

    @property
    def group(self) -> str:
        return group_of(self.name)

    @property
    def steps(self) -> int:
        return int(self.config.get("total_timesteps", 0))

    def score(self, policy: Policy) -> float:
        """The mean return of the greedy policy over its fresh episodes."""
        return (self.best if policy == "best" else self.final)["eval_return_mean"]

    @property
    def commit(self) -> str | None:
        for place in ("git", "machine"):
            about = self.raw.get(place)
            if isinstance(about, Mapping) and about.get("commit"):
                return str(about["commit"])
        return None

    @property
    def uncommitted_changes(self) -> bool:
        """Whether the working tree was another than the commit's."""
        for place, key in (("git", "dirty"), ("machine", "uncommitted_changes")):  # the second in older records
            about = self.raw.get(place)
            if isinstance(about, Mapping) and key in about:
                return about[key] is True
        return False


def _evaluation(values: Mapping[str, Any]) -> dict[str, float]:
    found = {key: float(value) for key, value in values.items()}
    if not math.isfinite(found["eval_return_mean"]):
        raise ValueError("eval_return_mean is not a finite number")
    return found


def read_record(path: Path) -> Record:
    try:
        raw = read_json(path, limit=MAX_BYTES)
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read ({reason(error)})") from None
    return Record.from_json(raw, source=str(path))


def read_records(folder: Path) -> tuple[Record, ...]:
    """Every record in `folder`, by name (seed 10 after seed 9); () where there is no such folder."""
    return tuple(sorted((read_record(path) for path in folder.glob("*.json")), key=lambda record: (record.group, record.seed)))


class Claim:
    """The sole right to make one record. Its process's end gives it back, however that comes."""

    def __init__(self, path: Path, lock: Lock) -> None:
        self._path, self._lock = path, lock

    @classmethod
    def of(cls, folder: Path, name: str) -> Claim | None:
        """None where another process is making the record `name` in `folder`."""
        path = folder / f".{name}.lock"
        lock = Lock.file(path)
        return None if lock is None else cls(path, lock)

    def release(self) -> None:
        self._lock.remove_file(self._path)


def write_record(folder: Path, raw: Mapping[str, Any]) -> Path:
    """Writes the record whole or not at all: an interrupted suite leaves no half of one."""
    path = folder / f"{raw['name']}.json"
    write_json(path, raw)
    return path


def by_group(records: Iterable[Record]) -> dict[str, list[Record]]:
    groups: dict[str, list[Record]] = {}
    for record in records:
        groups.setdefault(record.group, []).append(record)
    return groups


def differences(record: Record, plan: Plan) -> tuple[str, ...]:
    """The keys in which a record's config is not the plan's: it was measured before the config or the suite was changed.

    A setting that the package has since gained had its default then. Any other key that only one of them knows says nothing.
    """
    now = plan.config.to_dict()
    then = {key: value for key, value in record.config.items() if key not in CIRCUMSTANCES}
    settings = then.get("algo_kwargs")
    if isinstance(settings, dict):
        then["algo_kwargs"] = {**_gained(settings, plan.config.settings), **settings}
    return tuple(_differing(then, now, ""))


def _gained(then: Mapping[str, Any], settings: Settings) -> dict[str, Any]:
    """The defaults of settings that a record does not have, though what they stand under was switched on."""
    new = [key for key in type(settings).model_fields if key not in then and all(need.met(then) for need in settings.needs(key))]
    defaults: dict[str, Any] = json.loads(json.dumps({key: type(settings).model_fields[key].default for key in new}))
    return defaults


def _differing(then: Mapping[str, Any], now: Mapping[str, Any], prefix: str) -> Iterable[str]:
    for key in then.keys() & now.keys():
        ours, theirs = json.loads(json.dumps(now[key])), then[key]
        if isinstance(ours, dict) and isinstance(theirs, dict):
            yield from _differing(theirs, ours, f"{prefix}{key}.")
        elif ours != theirs:
            yield f"{prefix}{key}"

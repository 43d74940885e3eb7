"""Settings for the shipped configs, found in minutes: hundreds of runs of DQN, QR-DQN or IQN on a classic task at once, on one GPU.

    python -m benchmarks.search acrobot_dqn cartpole_qr_dqn --seconds 600 --json found.json

Choices are drawn at random, two runs each; then the best get more runs. What it trains are many small runs at once (population.py),
for choosing and not for results: those are made by the package with what was found, on other seeds. `rl-training tune` searches any config
on any machine.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.common import machine
from benchmarks.population import DEFAULTS, SHAPES, TASKS, Population, Settings


@dataclass(frozen=True)
class Search:
    task: str
    shapes: tuple[Settings, ...]
    space: Mapping[str, Sequence[Any]]
    """A key's choices; under a key with `+` a choice is several settings that belong together."""
    known: tuple[Settings, ...] = ()
    """Always among those tried."""


def _rates(*rates: float, ends: Sequence[float]) -> list[Settings]:
    return [{"learning_rate": rate, "learning_rate_end": rate * end} for rate in rates for end in ends]


def _targets(*intervals: int, soft: Sequence[float]) -> list[Settings]:
    hard = [{"target_update_interval": every, "tau": 1.0} for every in intervals]
    return hard + [{"target_update_interval": 1, "tau": tau} for tau in soft]


_CARTPOLE = {
    "epsilon_end": [0.01, 0.04, 0.1],
    "double_q": [False, True],
    "+target": _targets(10, 256, 512, 1000, soft=(0.002, 0.005)),
    "+rate": _rates(5e-4, 1e-3, 2.3e-3, ends=(0.0, 0.05, 0.2)),
    "gamma": [0.98, 0.99, 0.995],
    "n_step": [1, 3, 5],
    "exploration_fraction": [0.16, 0.3, 0.5],
}
_MOUNTAIN_CAR = {
    "epsilon_end": [0.01, 0.05, 0.07],
    "double_q": [False, True],
    "+target": _targets(200, 600, 1200, soft=(0.002, 0.005)),
    "+rate": _rates(5e-4, 1e-3, 2e-3, 4e-3, ends=(0.0, 0.1)),
    "gamma": [0.98, 0.99, 0.995],
    "n_step": [1, 2, 3, 5],
    "exploration_fraction": [0.1, 0.2, 0.4],
    "buffer_capacity": [10_000, 50_000, 100_000],
}
_ACROBOT = {
    "epsilon_end": [0.01, 0.05, 0.1],
    "double_q": [False, True],
    "+target": _targets(100, 250, 500, 1000, soft=(0.002, 0.005, 0.01)),
    "+rate": _rates(4e-4, 7e-4, 1e-3, 2e-3, ends=(0.0, 0.1)),
    "gamma": [0.98, 0.99, 0.995, 0.999],
    "n_step": [1, 3, 5, 10],
    "exploration_fraction": [0.1, 0.2, 0.4],
    "buffer_capacity": [50_000, 100_000],
}
# A second look where the first found its best at the edge of what it tried: the highest rates.
_CARTPOLE_FINER = {
    "epsilon_end": [0.04, 0.1],
    "double_q": [False, True],
    "+target": _targets(10, 128, 512, soft=(0.005, 0.01)),
    "+rate": _rates(2.3e-3, 4e-3, ends=(0.0, 0.02, 0.05)),
    "gamma": [0.99, 0.995, 0.998],
    "n_step": [3, 5, 8],
    "exploration_fraction": [0.16, 0.3],
}
_ACROBOT_FINER = {
    "epsilon_end": [0.01, 0.05, 0.1],
    "double_q": [False, True],
    "+target": _targets(100, 250, soft=(0.005, 0.01)),
    "+rate": _rates(2e-3, 4e-3, ends=(0.0,)),
    "gamma": [0.99, 0.995, 0.999],
    "n_step": [1, 3],
    "exploration_fraction": [0.1, 0.2],
}
_QUANTILES = {"head": "quantile", "num_quantiles": 25}
_IMPLICIT = {"head": "implicit", "num_quantiles": 8}


def _shape(width: int, frequency: int, steps: int = 1, batch: int = 128) -> Settings:
    return {"hidden_sizes": [width, width], "train_frequency": frequency, "gradient_steps": steps, "batch_size": batch}


def _zoo(rate: float, every: int, gamma: float, epsilon: float, fraction: float, capacity: int) -> Settings:
    """What the RL Zoo says for DQN: one-step targets, a constant rate."""
    moves = {"learning_rate": rate, "learning_rate_end": rate, "target_update_interval": every, "gamma": gamma}
    return {**moves, "epsilon_end": epsilon, "exploration_fraction": fraction, "buffer_capacity": capacity}


_CARTPOLE_SHAPES = (_shape(256, 256, 128, 64), _shape(64, 2, 1, 64), _shape(128, 2))
_ACROBOT_SHAPES = (_shape(128, 2), _shape(256, 1), _shape(256, 2))
_CARTPOLE_ZOO = _shape(256, 256, 128, 64) | _zoo(2.3e-3, 256, 0.99, 0.04, 0.16, 100_000)
_ACROBOT_ZOO = _shape(256, 1) | _zoo(6.3e-4, 250, 0.99, 0.1, 0.12, 50_000)
_MOUNTAIN_CAR_ZOO = _shape(256, 16, 8) | _zoo(4e-3, 600, 0.98, 0.07, 0.2, 10_000)


def _all(kind: Settings, *shapes: Settings) -> tuple[Settings, ...]:
    return tuple(shape | kind for shape in shapes)


SEARCHES = {
    "cartpole_dqn": Search("cartpole", _CARTPOLE_SHAPES, _CARTPOLE, known=(_CARTPOLE_ZOO,)),
    "cartpole_qr_dqn": Search("cartpole", _all(_QUANTILES, *_CARTPOLE_SHAPES), _CARTPOLE, known=_all(_QUANTILES, _CARTPOLE_ZOO)),
    "cartpole_iqn": Search("cartpole", _all(_IMPLICIT, _shape(128, 2, 1, 64), _shape(64, 2, 1, 64)), _CARTPOLE),
    "mountaincar_dqn": Search(
        "mountaincar", (_shape(256, 16, 8), _shape(128, 16, 8), _shape(64, 4)), _MOUNTAIN_CAR, known=(_MOUNTAIN_CAR_ZOO,)
    ),
    "mountaincar_iqn": Search("mountaincar", _all(_IMPLICIT, _shape(64, 16, 8), _shape(128, 16, 8)), _MOUNTAIN_CAR),
    "acrobot_dqn": Search("acrobot", _ACROBOT_SHAPES, _ACROBOT, known=(_ACROBOT_ZOO,)),
    "cartpole_qr_dqn_finer": Search("cartpole", _all(_QUANTILES, _CARTPOLE_SHAPES[0], _CARTPOLE_SHAPES[2]), _CARTPOLE_FINER),
    "acrobot_qr_dqn_finer": Search("acrobot", _all(_QUANTILES, _shape(256, 1)), _ACROBOT_FINER),
    "acrobot_qr_dqn": Search("acrobot", _all(_QUANTILES, *_ACROBOT_SHAPES), _ACROBOT, known=_all(_QUANTILES, _ACROBOT_ZOO)),
}


def draw(search: Search, count: int, rng: random.Random) -> list[Settings]:
    """`count` choices for each shape, and the known ones."""
    found = list(search.known)
    for shape in search.shapes:
        for _ in range(count):
            settings = dict(shape)
            for key, choices in search.space.items():
                choice = rng.choice(choices)
                settings |= choice if key.startswith("+") else {key: choice}
            found.append(settings)
    return found


class Results:
    """The curves of every setting tried."""

    def __init__(self) -> None:
        self.curves: dict[str, list[list[float]]] = {}

    def add(self, settings: Settings, curve: list[float]) -> None:
        self.curves.setdefault(json.dumps(settings, sort_keys=True), []).append(curve)

    def finals(self, settings: Settings) -> list[float]:
        return [curve[-1] for curve in self.curves.get(json.dumps(settings, sort_keys=True), [])]

    def score(self, settings: Settings) -> float:
        finals = self.finals(settings)
        return sum(finals) / len(finals) if finals else -math.inf


def run(search: Search, *, seconds: float, width: int, samples: int, total_timesteps: int | None, seed: int, device: str) -> Results:
    """Two runs of every choice for half of the time; then six more of the best twelve, and 24 more of the best four."""
    task, rng, results, began = TASKS[search.task], random.Random(seed), Results(), time.perf_counter()

    def train(choices: Sequence[Settings], runs: int, until: float) -> None:
        shapes: dict[str, list[Settings]] = {}
        for settings in choices:
            key = json.dumps({key: (DEFAULTS | settings)[key] for key in SHAPES})
            shapes.setdefault(key, []).extend([settings] * runs)
        for shape, members in shapes.items():
            for first in range(0, len(members), width):
                if time.perf_counter() - began > until:
                    return
                part = members[first : first + width]
                total = total_timesteps or task.total_timesteps
                population = Population(task, part, total_timesteps=total, seed=rng.randrange(10**6), device=device)
                for settings, curve in zip(part, population.train(), strict=True):
                    results.add(settings, curve)
                print(f"{time.perf_counter() - began:.0f} s: {len(part)} runs of {shape}", flush=True)

    pool = draw(search, samples, rng)
    train(pool, 2, seconds / 2)
    for keep, runs in ((12, 6), (4, 24)):
        pool = sorted(pool, key=results.score, reverse=True)[:keep]
        train(pool, runs, seconds)
    return results


def medians(rows: Sequence[Mapping[str, Any]], key: str) -> dict[Any, float]:
    """The median final return by the value of `key`, over the first two runs of every choice: those after it go to the best alone."""
    finals: dict[Any, list[float]] = {}
    for row in rows:
        finals.setdefault(row["settings"].get(key, DEFAULTS[key]), []).extend(row["finals"][:2])
    return {value: statistics.median(found) for value, found in sorted(finals.items()) if len(found) > 2}  # more than one choice


def effects(searches: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[str]:
    """docs/measuring.md's table."""
    keys = ("n_step", "learning_rate")
    lines = ["| search | " + " | ".join(f"median by `{key}`" for key in keys) + " |", "| --- | --- | --- |"]
    for name, rows in searches.items():
        cells = ["; ".join(f"{value:g}: {median:.1f}".replace("-", "−") for value, median in medians(rows, key).items()) for key in keys]
        lines.append(f"| `{name}` | {' | '.join(cells)} |")
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("searches", nargs="+", choices=sorted(SEARCHES))
    parser.add_argument("--seconds", type=float, default=600, help="for each search (default: %(default)s)")
    parser.add_argument("--width", type=int, default=128, help="runs at once (default: %(default)s)")
    parser.add_argument("--samples", type=int, default=60, help="choices tried for each shape (default: %(default)s)")
    parser.add_argument("--total-timesteps", type=int, help="other than the task's")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--json", type=Path, help="write the results here")
    options = parser.parse_args()
    found: dict[str, Any] = {"machine": machine(threads=1), "searches": {}}
    for name in options.searches:
        results = run(
            SEARCHES[name],
            seconds=options.seconds,
            width=options.width,
            samples=options.samples,
            total_timesteps=options.total_timesteps,
            seed=options.seed,
            device=options.device,
        )
        rows = [
            {"settings": json.loads(key), "finals": [round(curve[-1], 1) for curve in curves]} for key, curves in results.curves.items()
        ]
        rows.sort(key=lambda row: -sum(row["finals"]) / len(row["finals"]))
        found["searches"][name] = rows
        print(f"{name}: {sum(len(row['finals']) for row in rows)} runs of {len(rows)} choices")
        for row in rows[:10]:
            finals = row["finals"]
            print(f"  {sum(finals) / len(finals):.1f} over {len(finals)} runs, worst {min(finals):.1f}: {row['settings']}")
        if options.json:
            options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Statistics over few seeds, as rliable (arXiv:2108.13264) does them: interquartile means and probabilities of improvement, each with a
stratified bootstrap interval of 95%. Beside published runs, of which ours may be only two, means and their difference have Student's and
Welch's intervals: a bootstrap of two values never leaves the two.

A bootstrap takes seconds and its result depends on nothing but the scores, so results are kept in a file beside the records: a page is
rendered from it without rliable, and whatever the file does not hold was not computed from these scores.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rl_training.errors import UserError
from rl_training.experiment.explain import shown
from rl_training.experiment.files import read_json, reason, write_json

REPETITIONS = 2_000
MAX_BYTES = 64 << 20
PROFILE_LEVELS = (0.25, 0.5, 0.75, 0.9, 1.0)


class Estimate(NamedTuple):
    """A statistic and the interval the bootstrap gives it."""

    point: float
    low: float
    high: float


Scores = Sequence[float]


class Statistics:
    """Estimates by what they are of, computed once. `frozen` computes nothing: what is not stored is a KeyError."""

    def __init__(self, stored: Mapping[str, Sequence[float]] | None = None, *, frozen: bool = False) -> None:
        self._stored = {key: tuple(values) for key, values in (stored or {}).items()}
        self._used: set[str] = set()
        self._frozen = frozen

    @classmethod
    def load(cls, path: Path, *, frozen: bool = False) -> Statistics:
        if not path.exists():
            return cls(frozen=frozen)
        try:
            stored = read_json(path, limit=MAX_BYTES)
            if not isinstance(stored, dict):
                raise ValueError("holds no keys and values")
            for key, values in stored.items():
                if not isinstance(values, list) or not values or len(values) % 3 or not all(type(each) in (int, float) for each in values):
                    raise ValueError(f"{shown(key)} has no estimates")
        except (OSError, ValueError) as error:
            raise UserError(f"{path}: cannot be read ({reason(error)})") from None
        return cls(stored, frozen=frozen)

    def save(self, path: Path) -> None:
        """What was asked for since it was loaded: estimates of scores that are no more go."""
        write_json(path, {key: list(self._stored[key]) for key in sorted(self._used)})

    def iqm(self, scores: Scores) -> Estimate:
        """The mean of the middle half of the runs."""
        return Estimate(*self._get("iqm", [list(scores)], lambda: bootstrap_iqm([list(scores)])))

    def iqm_over_tasks(self, scores: Sequence[Scores]) -> Estimate:
        """The same over several tasks, `scores[task][seed]`, each resampled within itself."""
        return Estimate(*self._get("iqm", [list(task) for task in scores], lambda: bootstrap_iqm(scores)))

    def improvement(self, ours: Scores, theirs: Scores) -> Estimate:
        """The probability that a run of ours is better than one of theirs, ties counting half."""
        return Estimate(*self._get("improvement", [list(ours), list(theirs)], lambda: bootstrap_improvement(ours, theirs)))

    def mean(self, scores: Scores) -> Estimate:
        """The mean of two runs or more, with Student's 95% interval: returns of runs taken as normal."""
        return Estimate(*self._get("mean", [list(scores)], lambda: student_mean(scores)))

    def difference(self, ours: Scores, theirs: Scores) -> Estimate:
        """The mean of ours less that of theirs, two runs or more of each, with Welch's 95% interval."""
        return Estimate(*self._get("difference", [list(ours), list(theirs)], lambda: welch_difference(ours, theirs)))

    def profile(self, scores: Sequence[Scores]) -> tuple[Estimate, ...]:
        """The share of runs above each of PROFILE_LEVELS, `scores[task][seed]` on a common scale."""
        flat = self._get("profile", [list(task) for task in scores], lambda: bootstrap_profile(scores))
        return tuple(Estimate(*flat[start : start + 3]) for start in range(0, len(flat), 3))

    def _get(self, what: str, of: list[list[float]], compute: Callable[[], Sequence[float]]) -> tuple[float, ...]:
        key = f"{what} {json.dumps(of)}"
        if key not in self._stored:
            if self._frozen:
                raise KeyError(key)
            self._stored[key] = tuple(float(value) for value in compute())
        self._used.add(key)
        return self._stored[key]


def bootstrap_iqm(scores: Sequence[Scores]) -> list[float]:
    rliable = _rliable()
    matrix = _matrix(scores)

    def aggregate(runs: Any) -> Any:
        return rliable.numpy.array([rliable.metrics.aggregate_iqm(runs)])

    points, intervals = rliable.intervals({"ours": matrix}, aggregate)
    return [points["ours"][0], *intervals["ours"][:, 0]]


def bootstrap_improvement(ours: Scores, theirs: Scores) -> list[float]:
    rliable = _rliable()
    pair = (_matrix([ours]), _matrix([theirs]))
    points, intervals = rliable.intervals({"pair": pair}, rliable.metrics.probability_of_improvement)
    return [points["pair"], *intervals["pair"][:, 0]]


def bootstrap_profile(scores: Sequence[Scores]) -> list[float]:
    rliable = _rliable()

    def shares(runs: Any) -> Any:
        return rliable.numpy.array([(runs >= level).mean() for level in PROFILE_LEVELS])

    points, intervals = rliable.intervals({"ours": _matrix(scores)}, shares)
    return [float(value) for index in range(len(PROFILE_LEVELS)) for value in (points["ours"][index], *intervals["ours"][:, index])]


def student_mean(scores: Scores) -> list[float]:
    """x̄ ± t(n − 1) · s/√n."""
    rliable = _rliable()
    runs = rliable.numpy.array(scores, float)
    squared_error = runs.var(ddof=1) / len(runs)
    return _with_t_interval(runs.mean(), squared_error, len(runs) - 1)


def welch_difference(ours: Scores, theirs: Scores) -> list[float]:
    """x̄ − ȳ ± t(ν) · √(s²/n + s'²/m), ν by Welch and Satterthwaite (Biometrika 34, 1947)."""
    rliable = _rliable()
    pair = [rliable.numpy.array(runs, float) for runs in (ours, theirs)]
    errors = [runs.var(ddof=1) / len(runs) for runs in pair]
    shares = sum(error**2 / (len(runs) - 1) for error, runs in zip(errors, pair, strict=True))
    return _with_t_interval(pair[0].mean() - pair[1].mean(), sum(errors), sum(errors) ** 2 / shares if shares else 1)


def _with_t_interval(point: float, squared_error: float, degrees: float) -> list[float]:
    from scipy.stats import t  # comes with rliable

    half = t.ppf(0.975, degrees) * squared_error**0.5
    return [point, point - half, point + half]


def _matrix(scores: Sequence[Scores]) -> Any:
    """[runs, tasks], as rliable wants it."""
    import numpy as np

    if len({len(task) for task in scores}) != 1 or not scores[0]:
        raise UserError(f"every task needs the same number of runs, at least one, got {[len(task) for task in scores]}")
    return np.array(scores, float).T


class _Rliable(NamedTuple):
    intervals: Callable[..., Any]
    metrics: Any
    numpy: Any


def _rliable() -> _Rliable:
    try:
        import numpy as np
        from rliable import library, metrics
    except ImportError as error:
        raise UserError(f'statistics need the extra `plots`: pip install "rl-training[plots]" ({error})') from None

    def intervals(scores: Mapping[str, Any], function: Callable[..., Any]) -> Any:
        # rliable 1.2 draws from NumPy's global generator, whatever random_state it is given: seeded for this, and put back
        before = np.random.get_state()
        np.random.seed(0)
        try:
            return library.get_interval_estimates(scores, function, reps=REPETITIONS)
        finally:
            np.random.set_state(before)

    return _Rliable(intervals, metrics, np)

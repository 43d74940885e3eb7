"""Whether runs learned, judged by k of n seeds, and how often a sound program would fail such a judgement.

A seed's run on another machine or with another build of torch is a new draw: its numbers differ in the last digit, and then in everything.
So the chance that one run passes is estimated from other seeds, and the judgement is chosen so that k of n fails by bad luck in less than
one case of a hundred.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import comb

from rl_training.ledger.records import Record, by_group
from rl_training.ledger.suites import Group

MAX_FALSE_FAILURES = 0.01
CONFIDENCE = 0.95


def fallen_short(groups: Iterable[Group], records: Iterable[Record]) -> Iterator[str]:
    """One sentence for each config that is judged and did not reach its threshold with as many seeds as it needs."""
    found = by_group(records)
    for group in groups:
        judgement = group.judgement
        if judgement is None:
            continue
        scores = [record.score(judgement.policy) for record in found.get(group.name, ())]
        passed = sum(score >= judgement.threshold for score in scores)
        if passed < judgement.needed:
            yield f"{group.name} reached {judgement.threshold:g} with {passed} of {len(scores)} seeds, {judgement.needed} are needed"


def at_most(k: int, n: int, p: float) -> float:
    """P(X ≤ k) for X binomial(n, p)."""
    return sum(comb(n, i) * p**i * (1 - p) ** (n - i) for i in range(k + 1))


def pass_rate_at_least(passed: int, tried: int, confidence: float = CONFIDENCE) -> float:
    """The one-sided lower confidence bound of Clopper and Pearson (Biometrika 26, 1934) on the chance that a run passes.

    It is the p at which as many passes or more would be seen with probability 1 − confidence: 20 of 20 passes give 0.05^(1/20) = 0.861.
    """
    if passed == 0:
        return 0.0
    low, high = 0.0, 1.0
    for _ in range(60):  # P(X ≥ passed) rises with p
        middle = (low + high) / 2
        if 1 - at_most(passed - 1, tried, middle) < 1 - confidence:
            low = middle
        else:
            high = middle
    return low


def false_failures(passed: int, tried: int, *, needed: int, seeds: int) -> float:
    """How often `needed` of `seeds` runs fails, at the lower bound that `passed` of `tried` other seeds leave for one run's chance.

    With 20 of 20: 1 of 3 fails in 0.139³ = 0.27%, 2 of 4 in 0.139⁴ + 4·0.861·0.139³ = 0.96%.
    """
    return at_most(needed - 1, seeds, pass_rate_at_least(passed, tried))

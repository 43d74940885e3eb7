"""The sum tree against a plain list."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from rl_training.data import sum_tree
from rl_training.data.numba_sum_tree import NumbaSumTree
from rl_training.data.sum_tree import MIN_LEAF

SumTree = NumbaSumTree


@pytest.fixture(autouse=True, params=[NumbaSumTree, sum_tree.SumTree], ids=["numba", "numpy"])
def either_form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("test_sum_tree.SumTree", request.param)


def naive_leaf(priority: float, alpha: float, eps: float) -> float:
    return max((abs(priority) + eps) ** alpha, MIN_LEAF)


def naive_descent(leaves: np.ndarray, values: np.ndarray) -> list[int]:
    """First slot whose cumulative weight exceeds the value."""
    return [int(np.searchsorted(np.cumsum(leaves), value, side="right")) for value in values]


@pytest.mark.parametrize("capacity", [1, 7, 8, 9, 64, 65, 500])
def test_equals_a_naive_list_under_random_operations(capacity: int) -> None:
    rng, tree, naive = np.random.default_rng(capacity), SumTree(capacity), np.zeros(capacity)
    position, size, alpha, eps = 0, 0, 0.7, 1e-3
    for _ in range(1500):
        if size == 0 or rng.random() < 0.5:  # a ring's writes, wrapping around
            count = int(rng.integers(1, min(capacity, 5) + 1))
            priority = float(rng.exponential())
            for start, stop in ((position, min(position + count, capacity)), (0, max(0, position + count - capacity))):
                if stop > start:
                    tree.fill(start, stop, priority, alpha, eps)
                    naive[start:stop] = naive_leaf(priority, alpha, eps)
            size, position = min(size + count, capacity), (position + count) % capacity
        else:
            indices = rng.integers(0, size, rng.integers(1, 9))
            raw = rng.exponential(size=len(indices)) * 10.0 ** rng.integers(-6, 6)
            assert tree.update(indices, raw, size, alpha, eps) == raw.max()
            for index, priority in zip(indices, raw, strict=True):  # of duplicates the last one counts
                naive[index] = naive_leaf(priority, alpha, eps)
        assert np.allclose(tree.leaves(capacity), naive, rtol=1e-12, atol=0)
        assert tree.total == pytest.approx(naive.sum(), rel=1e-12)
        uniforms = rng.random(6)
        values = (np.arange(6) + uniforms) * naive.sum() / 6
        indices, _ = tree.sample(uniforms.copy(), 0.5)
        expected = naive_descent(naive, values)
        edges = np.concatenate(([0.0], np.cumsum(naive)))
        near_an_edge = np.abs(edges[:, None] - values).min(axis=0) < 1e-9 * naive.sum()  # rounding may decide there
        assert (near_an_edge | (indices == expected)).all()


def test_sums_do_not_drift() -> None:
    rng, tree = np.random.default_rng(0), SumTree(1000)
    tree.fill(0, 1000, 1.0, 1.0, 0.0)
    for _ in range(3000):
        tree.update(rng.integers(0, 1000, 32), rng.random(32) * 10.0 ** rng.integers(-12, 12), 1000, 1.0, 0.0)
    rebuilt = SumTree(1000)
    rebuilt.load(tree.leaves(1000))
    assert rebuilt.total == tree.total  # to the last bit


def test_one_draw_from_each_stratum() -> None:
    # 10 equal leaves, 10 strata: each leaf exactly once, whatever the uniforms; with 20 draws exactly twice
    tree = SumTree(10)
    tree.fill(0, 10, 3.0, 1.0, 0.0)
    for seed in range(50):
        rng = np.random.default_rng(seed)
        assert tree.sample(rng.random(10), 1.0)[0].tolist() == list(range(10))
        assert tree.sample(rng.random(20), 1.0)[0].tolist() == np.repeat(np.arange(10), 2).tolist()


def test_frequencies_match_priorities() -> None:
    rng, size = np.random.default_rng(1), 300
    tree, raw = SumTree(512), rng.random(300) ** 3
    tree.fill(0, size, 1.0, 0.6, 1e-6)
    tree.update(np.arange(size), raw, size, 0.6, 1e-6)
    drawn = np.concatenate([tree.sample(rng.random(1), 0.4)[0] for _ in range(60_000)])  # one draw a batch: independent
    weights = (raw + 1e-6) ** 0.6
    assert stats.chisquare(np.bincount(drawn, minlength=size), weights / weights.sum() * len(drawn)).pvalue > 1e-3


@pytest.mark.parametrize("last", [np.nextafter(1.0, 0.0), 1.0, 1.0 + 1e-12])
def test_rounding_at_the_last_stratum_never_reaches_an_empty_slot(last: float) -> None:
    for size in (1, 3, 8, 9, 21, 57):
        tree = SumTree(64)
        tree.fill(0, size, 0.1, 1.0, 0.0)
        for batch in (1, 3, 32):
            indices, weights = tree.sample(np.full(batch, last), 1.0)
            assert indices.max() == size - 1 and np.isfinite(weights).all()


def test_slots_without_weight_beside_heavy_ones_are_stepped_over() -> None:
    # slots 3 and 60 hold all weight; 0 … 2 and 4 … 59 are in use at priority 0 (as good as never drawn), 61 … 63 empty
    tree, raw = SumTree(64), np.zeros(61)
    raw[[3, 60]] = 1.0, 1e6
    tree.fill(0, 61, 1.0, 1.0, 0.0)
    tree.update(np.arange(61), raw, 61, 1.0, 0.0)
    rng = np.random.default_rng(0)
    for _ in range(200):
        assert set(tree.sample(rng.random(64), 0.5)[0].tolist()) <= {3, 60}
    assert tree.sample(np.zeros(1), 0.5)[0].tolist() == [3] or tree.leaves(1)[0] > 0  # value 0 may hit the first slot in use
    assert tree.sample(np.ones(1), 0.5)[0].tolist() == [60]


def test_all_priorities_zero_is_uniform() -> None:
    tree = SumTree(16)
    tree.fill(0, 10, 0.0, 0.6, 0.0)
    indices, weights = tree.sample(np.random.default_rng(0).random(10), 1.0)
    assert indices.tolist() == list(range(10)) and weights.tolist() == [1.0] * 10


def test_weights_stay_finite_at_extreme_ratios() -> None:
    tree = SumTree(2)
    tree.fill(0, 2, 1.0, 1.0, 0.0)
    tree.update(np.arange(2), np.array([0.0, 1e300]), 2, 1.0, 0.0)
    for beta in (0.0, 0.5, 1.0):
        indices, weights = tree.sample(np.array([0.0, 0.5]), beta)
        assert indices.tolist() == [0, 1] and weights[0] == 1.0 and np.isfinite(weights).all()


def test_refused_updates_change_nothing() -> None:
    tree = SumTree(8)
    tree.fill(0, 4, 1.0, 1.0, 0.0)
    before = tree.leaves(8).copy()
    for index, priority in ((0, np.nan), (1, np.inf), (4, 1.0), (-1, 1.0)):
        assert tree.update(np.array([2, index]), np.array([5.0, priority]), 4, 1.0, 0.0) == -1.0
        assert np.array_equal(tree.leaves(8), before)


def test_both_forms_are_the_same_tree() -> None:
    rng, trees = np.random.default_rng(0), [NumbaSumTree(500), sum_tree.SumTree(500)]
    for step in range(200):
        start = int(rng.integers(0, 480))
        indices, raw = rng.integers(0, 500, 16), rng.exponential(size=16)
        uniforms, drawn = rng.random(32), []
        for tree in trees:
            if step == 0:
                tree.fill(0, 500, 1.0, 0.6, 1e-6)
            tree.fill(start, start + 20, float(raw[0]), 0.6, 1e-6)
            tree.update(indices, raw, 500, 0.6, 1e-6)
            drawn.append(tree.sample(uniforms.copy(), 0.4))
        # a power may round otherwise in its last bit, and a draw within that of an edge then fall on the other side
        np.testing.assert_allclose(trees[0].leaves(500), trees[1].leaves(500), rtol=1e-14)
        np.testing.assert_array_equal(drawn[0][0], drawn[1][0])
        np.testing.assert_allclose(drawn[0][1], drawn[1][1], rtol=1e-6)

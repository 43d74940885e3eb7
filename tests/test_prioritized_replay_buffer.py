"""Prioritized replay: frequencies, weights and priorities against the formulas, for the tree and the flat sampler alike."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch
from scipy import stats

from rl_training.data import PrioritizedReplayBuffer
from rl_training.data.samplers import FlatSampler, Sampler, SumTreeSampler
from rl_training.errors import RunError, UserError

CPU = torch.device("cpu")


def filled(count: int, capacity: int = 64, **options: float) -> PrioritizedReplayBuffer:
    buffer = PrioritizedReplayBuffer(capacity, (2,), **options)
    add(buffer, 0, count)
    return buffer


def add(buffer: PrioritizedReplayBuffer, start: int, count: int) -> None:
    i = np.arange(start, start + count)
    obs = np.stack([i, i], axis=1)
    buffer.add_batch(obs=obs, actions=i, rewards=i, next_obs=obs, dones=np.zeros(count))


def make_sampler(kind: str, capacity: int, *, alpha: float, eps: float, seed: int) -> Sampler:
    if kind == "tree":
        return SumTreeSampler(capacity, alpha=alpha, eps=eps, seed=seed)
    return FlatSampler(capacity, alpha=alpha, eps=eps, seed=seed, device=CPU)


both = pytest.mark.parametrize("kind", ["tree", "flat"])


@both
def test_sampling_frequencies_match(kind: str) -> None:
    size, rng = 100, np.random.default_rng(0)
    sampler, raw = make_sampler(kind, 128, alpha=0.6, eps=1e-2, seed=1), rng.random(size) ** 2
    sampler.insert(0, size)
    sampler.update(np.arange(size), raw, size)
    # one draw a batch, so that draws are independent and the chi-square law holds
    drawn = np.concatenate([np.asarray(sampler.sample(1, size, 0.4)[0]) for _ in range(20_000)])
    probability = (raw + 1e-2) ** 0.6
    expected = probability / probability.sum() * len(drawn)
    assert stats.chisquare(np.bincount(drawn, minlength=size), expected).pvalue > 1e-3


@both
@pytest.mark.parametrize("beta", [0.0, 0.4, 1.0])
def test_weights_are_the_formula(kind: str, beta: float) -> None:
    size, rng = 50, np.random.default_rng(2)
    sampler, raw = make_sampler(kind, 64, alpha=0.7, eps=1e-6, seed=3), rng.exponential(size=size)
    sampler.insert(0, size)
    sampler.update(torch.arange(size), torch.as_tensor(-raw), size)  # the sign does not count
    probability = (raw + 1e-6) ** 0.7
    probability /= probability.sum()
    for _ in range(20):
        indices, batch = sampler.sample(16, size, beta)
        expected = (size * probability[np.asarray(indices)]) ** -beta
        weights = batch["weights"]
        assert weights.dtype == torch.float32 and batch["indices"].tolist() == indices.tolist()
        np.testing.assert_allclose(weights, expected / expected.max(), rtol=2e-6)


@both
def test_strata(kind: str) -> None:
    # priorities 1, 1, 2 with alpha 1 and four strata of weight 1: slots 0, 1, 2, 2 in every batch
    sampler = make_sampler(kind, 8, alpha=1.0, eps=0.0, seed=0)
    sampler.insert(0, 3)
    sampler.update([0, 1, 2], [1.0, 1.0, 2.0], 3)
    for _ in range(50):
        assert sampler.sample(4, 3, 1.0)[0].tolist() == [0, 1, 2, 2]


@both
def test_alpha_zero_is_uniform_even_at_priority_zero(kind: str) -> None:
    sampler = make_sampler(kind, 8, alpha=0.0, eps=0.0, seed=0)
    sampler.insert(0, 4)
    sampler.update([0, 1], [0.0, 1e6], 4)
    indices, batch = sampler.sample(4, 4, 1.0)
    assert indices.tolist() == [0, 1, 2, 3] and batch["weights"].tolist() == [1.0] * 4


@both
def test_empty_slots_are_never_drawn(kind: str) -> None:
    rng = np.random.default_rng(0)
    for size in (1, 2, 7, 8, 9, 30):
        sampler = make_sampler(kind, 64, alpha=0.5, eps=0.0, seed=size)
        sampler.insert(0, size)
        sampler.update(np.arange(size), rng.exponential(size=size) * 10.0 ** rng.integers(-9, 9, size), size)
        for _ in range(100):
            indices, batch = sampler.sample(33, size, 1.0)
            assert int(indices.min()) >= 0 and int(indices.max()) < size
            assert bool(torch.isfinite(batch["weights"]).all()) and float(batch["weights"].max()) == 1.0


@both
def test_restored_sampler_draws_the_same(kind: str) -> None:
    sampler, other = (make_sampler(kind, 32, alpha=0.6, eps=1e-6, seed=seed) for seed in (1, 2))
    sampler.insert(0, 20)
    sampler.update(np.arange(20), np.arange(20.0), 20)
    sampler.sample(5, 20, 0.5)
    other.insert(0, 32)  # what was there before is forgotten
    other.load_state_dict(sampler.state_dict(20))
    for one in (sampler, other):
        one.insert(20, 21)
    for _ in range(5):
        (_, first), (_, second) = sampler.sample(8, 21, 0.5), other.sample(8, 21, 0.5)
        assert all(torch.equal(first[key], second[key]) for key in ("indices", "weights"))


def test_flat_and_tree_states_are_interchangeable() -> None:
    tree, flat = make_sampler("tree", 16, alpha=0.6, eps=1e-6, seed=0), make_sampler("flat", 16, alpha=0.1, eps=1.0, seed=0)
    tree.insert(0, 10)
    tree.update(np.arange(10), np.arange(10.0), 10)
    flat.load_state_dict(tree.state_dict(10))
    assert torch.equal(flat.state_dict(10)["priorities"], torch.as_tensor(tree.state_dict(10)["priorities"]))
    assert flat.state_dict(10)["max_priority"] == 9.0 and flat.state_dict(10)["alpha"] == 0.6


def test_a_batch_carries_its_items_indices_and_weights() -> None:
    batch = filled(30).sample(16, beta=0.5)
    assert set(batch) == {"obs", "actions", "rewards", "next_obs", "dones", "indices", "weights"}
    assert torch.equal(batch["actions"], batch["indices"]) and batch["indices"].dtype == torch.int64


def test_new_items_get_the_largest_raw_priority_seen() -> None:
    buffer = filled(2, alpha=1.0, priority_eps=0.0)

    def leaves() -> list[float]:
        return buffer.state_dict()["sampler"]["priorities"].tolist()

    assert leaves() == [1.0, 1.0]  # 1 at the start
    buffer.update_priorities([0, 1], [0.5, 0.25])
    add(buffer, 2, 1)
    assert leaves() == [0.5, 0.25, 1.0]
    buffer.update_priorities([1], [-8.0])
    buffer.update_priorities([1], [2.0])
    add(buffer, 3, 1)
    assert leaves() == [0.5, 2.0, 1.0, 8.0]  # the largest ever, not the largest now; raw, so alpha is applied once


@both
def test_items_may_bring_their_first_priority(kind: str) -> None:
    buffer = PrioritizedReplayBuffer(4, (2,), alpha=1.0, priority_eps=0.0)
    if kind == "flat":
        buffer._ring.sampler = FlatSampler(4, alpha=1.0, eps=0.0, seed=0, device=CPU)

    def held() -> list[float]:
        return buffer.state_dict()["sampler"]["priorities"].tolist()

    i = np.arange(3)
    items = {"obs": np.stack([i, i], axis=1), "next_obs": np.stack([i, i], axis=1), "actions": i, "rewards": i, "dones": i * 0}
    buffer.add_items({**items, "priorities": np.array([0.5, 3.0, 0.25])})
    assert held() == [0.5, 3.0, 0.25]
    buffer.add_items({**items, "priorities": np.array([7.0, 0.125, 5.0])})  # around the ring's end: slots 3, 0, 1
    assert held() == [0.125, 5.0, 0.25, 7.0]
    buffer.add_items(items)  # without: the largest seen, which the items' own count towards
    assert held() == [7.0, 5.0, 7.0, 7.0]


def test_overwritten_slots_lose_their_old_priority() -> None:
    buffer = filled(8, capacity=8, alpha=1.0, priority_eps=0.0)
    buffer.update_priorities(np.arange(8), np.full(8, 0.001))
    add(buffer, 8, 11)  # wraps: slots 0, 1, 2 twice
    assert buffer.state_dict()["sampler"]["priorities"].tolist() == [1.0] * 8
    assert sorted(buffer.sample(8, beta=1.0)["actions"].tolist()) == list(range(11, 19))


def test_restored_buffer_goes_on_identically() -> None:
    buffer, other = filled(40, capacity=32, seed=1), PrioritizedReplayBuffer(32, (2,), alpha=0.1, priority_eps=0.5, seed=2)
    rng = np.random.default_rng(0)
    for _ in range(10):
        batch = buffer.sample(8, beta=0.5)
        buffer.update_priorities(batch["indices"], torch.as_tensor(rng.exponential(size=8)))
    assert (other.alpha, other.priority_eps) == (0.1, 0.5)
    other.load_state_dict(buffer.state_dict())
    assert (other.alpha, other.priority_eps) == (buffer.alpha, buffer.priority_eps) == (0.6, 1e-6)
    for step in range(10):
        first, second = buffer.sample(8, beta=0.5), other.sample(8, beta=0.5)
        assert all(torch.equal(first[key], second[key]) for key in first)
        for one in (buffer, other):
            one.update_priorities(first["indices"], first["rewards"] / 7)
            add(one, 40 + step, 1)


def test_only_used_rows_and_priorities_are_saved() -> None:
    state = filled(5, capacity=1000).state_dict()
    assert len(state["sampler"]["priorities"]) == 5
    assert len(state["storage"]["rows"]) == 5


def test_a_priority_that_is_not_finite_is_named() -> None:
    buffer = filled(4)
    for bad in (float("nan"), float("inf")):
        with pytest.raises(RunError, match="not finite"):
            buffer.update_priorities([0, 1], [1.0, bad])
    with pytest.raises(IndexError, match=r"0 … 3"):
        buffer.update_priorities([4], [1.0])
    with pytest.raises(ValueError, match="2 indices but 1"):
        buffer.update_priorities([0, 1], [1.0])


def test_the_tree_counts_in_the_memory_check(monkeypatch: pytest.MonkeyPatch) -> None:
    # 1,000 transitions of (2 + 2 + 3) float32 and one int64, in whole words, are 40,000 bytes; the tree adds 8·8/7 bytes each
    monkeypatch.setattr("rl_training.resources.available_memory", lambda device: 40_000)
    with pytest.raises(UserError, match=r"47\.99 KiB on cpu, but only 39\.06 KiB"):
        PrioritizedReplayBuffer(1000, (2,))


def test_numba_is_loaded_only_for_a_prioritized_buffer_on_the_cpu() -> None:
    script = (
        "import sys; from rl_training.data import PrioritizedReplayBuffer, ReplayBuffer; ReplayBuffer(2, (1,)); "
        "assert 'numba' not in sys.modules; PrioritizedReplayBuffer(2, (1,)); assert 'numba' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True)

"""Chunk priorities: the same formulas as for transitions, and part of the state."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from rl_training.data import PrioritizedRecurrentReplayBuffer

STATE = (np.zeros((1, 2), np.float32), np.zeros((1, 2), np.float32))


def make(capacity: int = 400, **options: Any) -> PrioritizedRecurrentReplayBuffer:
    return PrioritizedRecurrentReplayBuffer(capacity, 1, (1,), 4, 2, **options)


def add_chunk(buffer: PrioritizedRecurrentReplayBuffer, number: int, *, end: bool = True) -> None:
    """An episode of three steps whose observations are all `number`: one chunk."""
    for t in range(3):
        last = end and t == 2
        buffer.add(
            env_index=0,
            obs=[number],
            actions=0,
            rewards=0.0,
            next_obs=[number],
            dones=last,
            episode_start=t == 0,
            initial_state=STATE,
        )


def leaves(buffer: PrioritizedRecurrentReplayBuffer) -> list[float]:
    priorities: list[float] = buffer.state_dict()["sampler"]["priorities"].tolist()
    return priorities


def test_a_batch_carries_indices_and_weights_per_chunk() -> None:
    buffer = make()
    for number in range(9):
        add_chunk(buffer, number)
    batch = buffer.sample(6, beta=0.5)
    assert batch["indices"].shape == batch["weights"].shape == (6,)
    assert batch["obs"].shape == (4, 6, 1) and batch["obs"][0, :, 0].tolist() == batch["indices"].tolist()
    assert batch["weights"].tolist() == [1.0] * 6  # all new, so equal


def test_new_chunks_get_the_largest_raw_priority_seen() -> None:
    buffer = make(alpha=0.5, priority_eps=0.0)
    add_chunk(buffer, 0)
    buffer.update_priorities([0], [16.0])
    buffer.update_priorities([0], [4.0])
    add_chunk(buffer, 1)
    assert leaves(buffer) == [2.0, 4.0]


def test_frequencies_and_weights_match_the_formulas() -> None:
    buffer, raw = make(alpha=0.9, priority_eps=1e-3, seed=4), np.random.default_rng(0).random(30) + 0.05
    for number in range(30):
        add_chunk(buffer, number)
    buffer.update_priorities(torch.arange(30), torch.as_tensor(raw))
    probability = (raw + 1e-3) ** 0.9
    probability /= probability.sum()
    drawn = np.concatenate([buffer.sample(1, beta=0.6)["indices"].numpy() for _ in range(3000)])
    assert stats.chisquare(np.bincount(drawn, minlength=30), probability * 3000).pvalue > 1e-3
    batch = buffer.sample(8, beta=0.6)
    expected = (30 * probability[batch["indices"].numpy()]) ** -0.6
    np.testing.assert_allclose(batch["weights"], expected / expected.max(), rtol=2e-6)


def test_an_overwritten_chunk_loses_its_priority() -> None:
    buffer = make(capacity=8, alpha=1.0, priority_eps=0.0)  # two chunks
    for number in range(2):
        add_chunk(buffer, number)
    buffer.update_priorities([0, 1], [0.25, 0.5])
    add_chunk(buffer, 2)
    assert leaves(buffer) == [1.0, 0.5]
    assert buffer.sample(1, beta=1.0)["obs"].shape == (4, 1, 1)


def test_priorities_open_chunks_alpha_and_eps_persist() -> None:
    buffer, other = make(alpha=0.7, priority_eps=0.01, seed=1), make(alpha=0.1, priority_eps=0.9, seed=2)
    for number in range(12):
        add_chunk(buffer, number)
    buffer.update_priorities(np.arange(12), np.arange(12.0))
    add_chunk(buffer, 50, end=False)
    assert (buffer.alpha, buffer.priority_eps, other.alpha, other.priority_eps) == (0.7, 0.01, 0.1, 0.9)
    other.load_state_dict(buffer.state_dict())
    assert (other.alpha, other.priority_eps) == (0.7, 0.01)
    assert other.num_transitions == 12 * 3 + 3
    for one in (buffer, other):  # closes the open chunk of 50 as truncated, then adds another
        add_chunk(one, 60)
        one.update_priorities([12], [5.0])
    assert leaves(buffer) == leaves(other)
    for _ in range(4):
        first, second = buffer.sample(8, beta=0.4), other.sample(8, beta=0.4)
        assert all(torch.equal(first[key], second[key]) for key in first)


def test_sampling_before_the_first_chunk_is_refused() -> None:
    buffer = make()
    add_chunk(buffer, 1, end=False)
    with pytest.raises(ValueError, match="empty"):
        buffer.sample(1)

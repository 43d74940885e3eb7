"""R2D2: weights, sequence priorities, value rescaling and double-Q, in closed form."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rl_training.algorithms import DRQN, R2D2, drqn_loss, r2d2_loss
from rl_training.algorithms.backups import DoubleBackup, MaxBackup
from rl_training.algorithms.drqn import sequence_priorities
from rl_training.algorithms.rules import rescale, unrescale
from sequence_chunks import TableNetwork, lstm, random_chunks, table_chunk

pytestmark = pytest.mark.numeric


def test_weights_multiply_and_the_mask_divides() -> None:
    # Chunk 0: δ = 0.5 and 3 (H = 0.125, 2.5), weight ½. Chunk 1: δ = 1 (H = 0.5), then padding, weight 1.
    # Σ weight·mask·H = ½·2.625 + 0.5 = 1.8125, over Σ mask = 3 (not Σ weight·mask)
    batch = {
        "chosen_q_values": torch.zeros(2, 2),
        "target_q_values": torch.tensor([[0.5, 1.0], [3.0, 100.0]]),
        "mask": torch.tensor([[1.0, 1.0], [1.0, 0.0]]),
        "weights": torch.tensor([0.5, 1.0]),
    }
    result = r2d2_loss(batch)
    assert float(result["loss"]) == pytest.approx(1.8125 / 3)
    # Metrics are plain means over the three valid steps: the weights are the loss's alone.
    assert float(result["td_error_mean"]) == pytest.approx(1.5)
    assert float(result["target_mean"]) == pytest.approx(1.5)


@given(seed=st.integers(0, 1000))
def test_weights_of_one_give_drqns_loss(seed: int) -> None:
    batch = random_chunks(seed, length=5, burn_in=1) | {"weights": torch.ones(4)}
    unweighted = {key: value for key, value in batch.items() if key != "weights"}
    r2d2 = R2D2(lstm(seed), 1e-3, 0.9, 10, n_step=2, burn_in=1)
    drqn = DRQN(lstm(seed), 1e-3, 0.9, 10, double_q=True, n_step=2, burn_in=1)
    assert torch.equal(r2d2.evaluate_loss(batch)[0], drqn.evaluate_loss(unweighted)[0])
    values = {"chosen_q_values": torch.randn(5, 4), "target_q_values": torch.randn(5, 4), "mask": batch["mask"]}
    assert torch.equal(r2d2_loss(values | {"weights": torch.ones(4)})["loss"], drqn_loss(values)["loss"])


def test_sequence_priorities_mix_maximum_and_mean_over_valid_steps() -> None:
    # Q = Q⁻ = 0 and rewards 1, 4 (terminal), padding's reward 99: |δ| = 1, 4. η·4 + (1 − η)·2.5 with η = 0.9 is 3.85
    net = TableNetwork([[0.0, 0.0]] * 4)
    learner = R2D2(net, 1e-3, 0.5, 1000)
    learner.update(table_chunk([1, 2, 3], [1, 4], terminated=True, length=4), global_step=1)
    assert learner.last_sequence_priorities.shape == (1,)
    assert float(learner.last_sequence_priorities) == pytest.approx(3.85)


def test_the_burn_in_has_no_part_in_the_priority() -> None:
    net = TableNetwork([[0.0, 0.0]] * 5)
    learner = R2D2(net, 1e-3, 0.5, 1000, burn_in=2)
    learner.update(table_chunk([1, 2, 3, 4, 1], [50, 60, 1, 3], terminated=True), global_step=1)
    # |δ| = 1, 3 → 0.9·3 + 0.1·2
    assert float(learner.last_sequence_priorities) == pytest.approx(2.9)


@pytest.mark.parametrize("eta", [0.0, 0.9, 1.0])
def test_a_chunk_without_a_valid_step_has_priority_zero(eta: float) -> None:
    priorities = sequence_priorities(torch.tensor([[3.0, 2.0], [1.0, 4.0]]), torch.tensor([[0.0, 1.0], [0.0, 1.0]]), eta)
    assert priorities.tolist() == pytest.approx([0.0, eta * 4 + (1 - eta) * 3])


def test_value_rescaling_target_in_closed_form() -> None:
    # h(x) = √(x+1) − 1 + x/1000 for x ≥ 0. Chunk 1 → 2 → 3, r = 1, 2, n = 2, γ = ½, Q⁻(3) = h(8) = 2.008.
    # t = 0: y = h(1 + ½·2 + ¼·8) = h(4) = √5 − 1 + 0.004 = 1.2400680; t = 1: y = h(2 + ½·8) = h(6) = √7 − 1 + 0.006 = 1.6517513
    net = TableNetwork([[0.0, 0.0], [0.0, 0.0], [0.0, 0.0], [2.008, 0.0]])
    learner = R2D2(net, 1e-9, 0.5, 1000, n_step=2, value_rescaling=True)
    result = learner.update(table_chunk([1, 2, 3], [1, 2]), global_step=1)
    y = [5**0.5 - 1 + 0.004, 7**0.5 - 1 + 0.006]
    assert float(result.metrics["target_mean"]) == pytest.approx(sum(y) / 2, abs=1e-6)
    # δ and with it the priority are in the rescaled space; the online values are 0.
    assert float(learner.last_sequence_priorities) == pytest.approx(0.9 * y[1] + 0.1 * sum(y) / 2, abs=1e-6)


def test_rescaling_round_trip_keeps_five_digits_from_tiny_to_huge() -> None:
    sizes = torch.logspace(-8, 8, 4001)
    x = torch.cat([-sizes, torch.zeros(1), sizes])
    assert x.dtype == torch.float32
    torch.testing.assert_close(unrescale(rescale(x)), x, rtol=1e-5, atol=0)
    torch.testing.assert_close(rescale(unrescale(x)), x, rtol=1e-5, atol=0)
    # Against the paper's form in float64 (which cancels in float32): h⁻¹(x) = sign(x)(((√(1 + 4ε(|x| + 1 + ε)) − 1)/2ε)² − 1)
    y = torch.logspace(-2, 4, 500, dtype=torch.float64)
    eps = 1e-3
    paper = ((torch.sqrt(1 + 4 * eps * (y + 1 + eps)) - 1) / (2 * eps)) ** 2 - 1
    torch.testing.assert_close(unrescale(y.float()).double(), paper, rtol=1e-5, atol=0)


def test_double_q_is_the_default_and_can_be_turned_off() -> None:
    assert isinstance(R2D2(lstm(), 1e-3, 0.9, 10).backup, DoubleBackup)
    assert isinstance(R2D2(lstm(), 1e-3, 0.9, 10, double_q=False).backup, MaxBackup)
    # Online prefers action 1 in state 2 (Q⁻ = 4 there, 8 for action 0): y = ½·4, with plain Q-learning ½·8.
    table = [[0.0, 0.0], [0.0, 0.0], [1.0, 2.0]]
    for double_q, expected in ((True, 2.0), (False, 4.0)):
        learner = R2D2(TableNetwork(table), 1e-9, 0.5, 1000, double_q=double_q)
        with torch.no_grad():
            learner.target_network.head.table[2] = torch.tensor([8.0, 4.0])
        assert float(learner.update(table_chunk([1, 2], [0]), global_step=1).metrics["target_mean"]) == expected


def test_prioritized_update_reports_one_priority_per_chunk() -> None:
    learner = R2D2(lstm(), 1e-3, 0.99, 100, n_step=3, burn_in=2, max_grad_norm=10.0, tau=0.5, stored_state=False)
    result = learner.update(random_chunks(0, length=8, burn_in=2, batch=7), global_step=100)
    assert learner.last_sequence_priorities.shape == (7,)
    assert bool((learner.last_sequence_priorities > 0).all()) and not learner.last_sequence_priorities.requires_grad
    assert set(result.metrics) == {"loss", "q_value_mean", "target_mean", "td_error_mean"}
    assert all(torch.isfinite(value) for value in result.metrics.values())


def test_masked_steps_change_nothing_in_the_update() -> None:
    # The same chunks with other numbers in the padding: identical parameters afterwards, bit for bit.
    batch = random_chunks(9, length=8, burn_in=2, batch=6)
    other = copy.deepcopy(batch)
    padding = other["mask"] == 0
    other["rewards"][padding] = 1234.0
    other["actions"][padding] = 0
    learners = [R2D2(lstm(), 1e-2, 0.9, 100, n_step=3, burn_in=2) for _ in range(2)]
    for learner, chunks in zip(learners, (batch, other), strict=True):
        learner.update(chunks, global_step=1)
    for a, b in zip(*(learner.q_network.parameters() for learner in learners), strict=True):
        assert torch.equal(a, b)
    assert torch.equal(learners[0].last_sequence_priorities, learners[1].last_sequence_priorities)

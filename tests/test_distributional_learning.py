"""Learning on tasks whose return distributions are known: seconds, fixed seeds."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from learners import one_hot
from rl_training.algorithms import C51DQN, IQN, QRDQN
from rl_training.algorithms.schedules import LinearSchedule
from rl_training.models import Draws, MLPC51QNetwork, MLPIQNetwork, MLPQRQNetwork
from rl_training.types import Batch

pytestmark = pytest.mark.numeric

UPDATES = 800
RATE = LinearSchedule(1e-2, 1e-4, UPDATES)


def two_point_batch(generator: torch.Generator, rows: int = 64) -> Batch:
    """State 0 leads to state 1 by action 0 without reward; state 1 ends with −1 (probability ¼) or 3 (¾). Action 1 ends at once with 0.

    With γ = .5 the return of (0, 0) is −.5 or 1.5 (mean 1), of (1, ·) it is −1 or 3 (mean 2), of (0, 1) it is 0.
    """
    states, actions = torch.randint(2, (rows,), generator=generator), torch.randint(2, (rows,), generator=generator)
    lottery = torch.where(torch.rand(rows, generator=generator) < 0.25, -1.0, 3.0)
    goes_on = (states == 0) & (actions == 0)
    return {
        "obs": one_hot(*states.tolist(), size=2),
        "actions": actions,
        "rewards": torch.where(states == 1, lottery, torch.zeros(rows)),
        "next_obs": one_hot(*[1] * rows, size=2),
        "dones": (~goes_on).float(),
    }


def learn(algorithm: Any, updates: int = UPDATES) -> Any:
    generator = torch.Generator().manual_seed(0)
    for step in range(updates):
        algorithm.update(two_point_batch(generator), global_step=step)
    return algorithm.q_network


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def test_qr_dqn_learns_the_quantiles_of_a_two_point_return() -> None:
    # 8 quantiles at 1/16, 3/16, …: two lie below ¼, where the return is the low one
    network = learn(QRDQN(MLPQRQNetwork(2, 2, 8, (32,)), RATE, 0.5, 50, num_quantiles=8, kappa=0.05))
    quantiles = network(one_hot(0, 1, size=2)).detach()
    low_high = torch.tensor([[-0.5] * 2 + [1.5] * 6, [-1.0] * 2 + [3.0] * 6])
    torch.testing.assert_close(quantiles[:, 0], low_high, atol=0.2, rtol=0)
    torch.testing.assert_close(quantiles[0, 1], torch.zeros(8), atol=0.1, rtol=0)


def test_c51_learns_the_atoms_of_a_two_point_return() -> None:
    # Atoms −2, −1.5, …, 4: both returns lie on atoms of the support
    network = learn(C51DQN(MLPC51QNetwork(2, 2, 13, -2.0, 4.0, (32,)), RATE, 0.5, 50))
    p = network(one_hot(0, 1, size=2)).softmax(-1).detach()
    support = network.head.support.tolist()
    for state, (low, high) in ((0, (-0.5, 1.5)), (1, (-1.0, 3.0))):
        assert float(p[state, 0, support.index(low)]) == pytest.approx(0.25, abs=0.06)
        assert float(p[state, 0, support.index(high)]) == pytest.approx(0.75, abs=0.06)
    assert float(p[0, 1, support.index(0.0)]) > 0.97
    torch.testing.assert_close(network.q_values(one_hot(0, 1, size=2))[:, 0].detach(), torch.tensor([1.0, 2.0]), atol=0.15, rtol=0)


def test_iqn_learns_the_quantile_function_of_a_two_point_return() -> None:
    algorithm = IQN(MLPIQNetwork(2, 2, (32, 32), num_quantiles=16, num_target_quantiles=16, embedding_dim=16), RATE, 0.5, 50, kappa=0.05)
    network = learn(algorithm)
    # A continuous function of τ meets a step at ¼: looked at away from it
    taus = torch.tensor([0.05, 0.15, 0.4, 0.6, 0.8, 0.95])
    out = network(one_hot(0, 1, size=2), Draws(taus=taus.expand(2, 6))).detach()
    low_high = torch.tensor([[-0.5] * 2 + [1.5] * 4, [-1.0] * 2 + [3.0] * 4])
    torch.testing.assert_close(out[:, 0], low_high, atol=0.5, rtol=0)
    torch.testing.assert_close(network.q_values(one_hot(0, 1, size=2)).detach()[:, 0], torch.tensor([1.0, 2.0]), atol=0.25, rtol=0)


def test_c51_on_a_deterministic_chain_converges_to_point_masses() -> None:
    """Five states in a row, reward 1 at the end, γ = ½: returns 1, ½, ¼, ⅛, 1/16 from the end, all atoms of [0, 1] with 17 atoms."""
    length = 5
    algorithm = C51DQN(MLPC51QNetwork(length, 1, 17, 0.0, 1.0, ()), LinearSchedule(0.1, 1e-3, 1000), 0.5, 20)
    states = list(range(length))
    batch = {
        "obs": one_hot(*states, size=length),
        "actions": torch.zeros(length, dtype=torch.int64),
        "rewards": torch.tensor([0.0] * (length - 1) + [1.0]),
        "next_obs": one_hot(*[min(s + 1, length - 1) for s in states], size=length),
        "dones": torch.tensor([0.0] * (length - 1) + [1.0]),
    }
    for step in range(1000):
        result = algorithm.update(batch, global_step=step)
    p = algorithm.q_network(batch["obs"]).softmax(-1)[:, 0].detach()
    atoms = [round(16 * 0.5 ** (length - 1 - s)) for s in states]  # 1, 2, 4, 8, 16
    assert p[states, atoms].tolist() == pytest.approx([1.0] * length, abs=0.01)
    # What prioritized replay ranks by falls to 0 with it.
    assert float(algorithm.last_priorities.max()) < 0.02
    assert float(result.metrics["clipped_share"]) == 0

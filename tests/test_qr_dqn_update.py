"""QR-DQN's update against numbers worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from learners import batch_of, check_goes_on_bit_for_bit, check_sequences_are_rows, one_hot, set_outputs
from rl_training.algorithms import DQN, QRDQN
from rl_training.algorithms.backups import Bootstrap
from rl_training.algorithms.by_head import make_rule
from rl_training.algorithms.dqn import ScalarRule
from rl_training.algorithms.qr_dqn import QuantileRule
from rl_training.models import MLPQNetwork, MLPQRQNetwork

pytestmark = pytest.mark.numeric

# Two states as one-hot observations, two actions, two quantiles (τ̂ = ¼, ¾). In state 1 the networks disagree on the best mean:
#             online                 target
#   state 0   (0, 2)   (9, 9)        (0, 0)   (0, 0)
#   state 1   (1, 7)   (2, 2)        (1, 5)   (4, 8)
ONLINE = [[[0.0, 2.0], [9.0, 9.0]], [[1.0, 7.0], [2.0, 2.0]]]
TARGET = [[[0.0, 0.0], [0.0, 0.0]], [[1.0, 5.0], [4.0, 8.0]]]


def table_qr_dqn(**options: Any) -> QRDQN:
    algorithm = QRDQN(MLPQRQNetwork(2, 2, 2, ()), 0.0, 0.5, 10**9, num_quantiles=2, **options)
    set_outputs(algorithm.q_network, ONLINE)
    set_outputs(algorithm.target_network, TARGET)
    return algorithm


def step_01(rows: int = 1, **fields: Any) -> dict[str, Tensor]:
    """`rows` transitions from state 0 by action 0, reward −1, to state 1."""
    made = {"actions": [0] * rows, "rewards": [-1.0] * rows, "dones": [0.0] * rows}
    obs, next_obs = one_hot(*[0] * rows, size=2), one_hot(*[1] * rows, size=2)
    return batch_of(rows, **{**made, "obs": obs, "next_obs": next_obs, **fields})


def metrics_of(algorithm: QRDQN, batch: dict[str, Tensor]) -> dict[str, float]:
    return {name: float(value) for name, value in algorithm.update(batch, global_step=1).metrics.items()}


def test_the_whole_update_by_hand() -> None:
    # The target network's means are 3 and 6: action 1. Targets −1 + .5·(4, 8) = (1, 3), mean 2; θ = (0, 2), mean 1.
    #   θ₁ = 0, τ = ¼: u = 1, 3    H = .5, 2.5    weights ¼, ¼  → (.125 + .625)/2 = .375
    #   θ₂ = 2, τ = ¾: u = −1, 1   H = .5, .5     weights ¼, ¾  → (.125 + .375)/2 = .25
    # mean |u| = (1 + 3 + 1 + 1)/4 = 1.5
    metrics = metrics_of(table_qr_dqn(), step_01())
    assert metrics == pytest.approx({"loss": 0.625, "q_value_mean": 1.0, "target_mean": 2.0, "td_error_mean": 1.5})


def test_double_q_lets_the_online_network_select() -> None:
    # Online means in state 1 are 4 and 2: action 0, targets −1 + .5·(1, 5) = (−.5, 1.5)
    assert metrics_of(table_qr_dqn(double_q=True), step_01())["target_mean"] == pytest.approx(0.5)


def test_termination_and_discounts() -> None:
    assert metrics_of(table_qr_dqn(), step_01(dones=[1.0]))["target_mean"] == pytest.approx(-1.0)
    # Γ = .125 of a three-step return: −1 + .125·6 = −.25; dones must not matter beside `discounts`
    assert metrics_of(table_qr_dqn(), step_01(discounts=[0.125], dones=[1.0]))["target_mean"] == pytest.approx(-0.25)


def test_kappa_0_is_the_plain_quantile_loss() -> None:
    # As above with |u|: θ₁: ¼·(1 + 3)/2 = .5; θ₂: (¼·1 + ¾·1)/2 = .5
    assert metrics_of(table_qr_dqn(kappa=0.0), step_01())["loss"] == pytest.approx(1.0)


def test_importance_weights_scale_each_sample_s_loss_and_gradient() -> None:
    algorithm = table_qr_dqn()
    loss = algorithm.evaluate_loss(step_01(2, weights=[0.5, 2.0]))[0]
    assert float(loss.detach()) == pytest.approx(0.625 * 1.25)
    grad = algorithm.gradient(step_01(2, weights=[0.5, 2.0])).parameters[1]  # weight, bias
    # dL/dθ₁ = −(¼·1 + ¼·1)/2 = −.25; dL/dθ₂ = −(¼·(−1) + ¾·1)/2 = −.25; nothing for action 1
    torch.testing.assert_close(grad, 1.25 * torch.tensor([-0.25, -0.25, 0.0, 0.0]))


def test_last_td_errors_are_the_mean_absolute_pairwise_errors() -> None:
    # rewards −1 and 1: targets (1, 3) and (3, 5): mean |u| 1.5 and (3 + 5 + 1 + 3)/4 = 3
    algorithm = table_qr_dqn()
    algorithm.update(step_01(2, rewards=[-1.0, 1.0]), global_step=1)
    torch.testing.assert_close(algorithm.last_td_errors, torch.tensor([1.5, 3.0]))
    torch.testing.assert_close(algorithm.last_priorities, algorithm.last_td_errors)


def test_one_quantile_is_dqn_with_half_the_loss() -> None:
    """N = 1: the same targets and errors, and half of Huber's loss and gradient."""
    torch.manual_seed(0)
    scalar, quantile = MLPQNetwork(4, 2, (16,)), MLPQRQNetwork(4, 2, 1, (16,))
    quantile.load_state_dict(scalar.state_dict())
    dqn, qr_dqn = DQN(scalar, 1e-3, 0.9, 10**9, double_q=True), QRDQN(quantile, 1e-3, 0.9, 10**9, double_q=True)
    batch = batch_of(weights=torch.rand(16))
    torch.testing.assert_close(qr_dqn.evaluate_loss(batch)[0], 0.5 * dqn.evaluate_loss(batch)[0])
    grads = [algorithm.gradient(batch).parameters for algorithm in (dqn, qr_dqn)]
    for of_dqn, of_qr_dqn in zip(*grads, strict=True):
        torch.testing.assert_close(of_qr_dqn, 0.5 * of_dqn)
    dqn.update(batch, global_step=1), qr_dqn.update(batch, global_step=1)
    torch.testing.assert_close(qr_dqn.last_td_errors, dqn.last_td_errors)


def test_the_rule_on_sequences_is_the_rule_on_rows() -> None:
    check_sequences_are_rows(QuantileRule(), outputs=5, next_outputs=6)


def test_rescaled_quantiles_are_the_quantiles_of_rescaled_returns() -> None:
    """h rises, so it maps quantiles to quantiles: each moved quantile is the scalar rule's target."""
    bootstrap, rewards, discounts = torch.tensor([[-3.0, 0.5, 40.0]]), torch.tensor([2.0]), torch.tensor([0.9])
    moved = QuantileRule(value_rescaling=True).target(Bootstrap(bootstrap), rewards, discounts)
    scalar = ScalarRule(value_rescaling=True).target(Bootstrap(bootstrap[0]), rewards.expand(3), discounts.expand(3))
    torch.testing.assert_close(moved[0], scalar)


def test_a_saved_learner_goes_on_bit_for_bit() -> None:
    def make(seed: int) -> QRDQN:
        torch.manual_seed(seed)
        network = MLPQRQNetwork(4, 2, 7, (16,), dueling=True, noisy=True)
        return QRDQN(network, 1e-2, 0.9, 3, num_quantiles=7, max_grad_norm=1.0, seed=seed)

    check_goes_on_bit_for_bit(make)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="num_quantiles is 3, but the network's head has 2"):
        QRDQN(MLPQRQNetwork(2, 2, 2, ()), 1e-3, 0.9, 1, num_quantiles=3)
    with pytest.raises(ValueError, match="kappa"):
        QRDQN(MLPQRQNetwork(2, 2, 2, ()), 1e-3, 0.9, 1, num_quantiles=2, kappa=-1.0)
    assert isinstance(make_rule("quantile", kappa=0.5), QuantileRule)
    assert make_rule("quantile", kappa=0.5).kappa == 0.5

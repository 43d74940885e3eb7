"""IQN's update: what is drawn for whom, and the loss it makes of it, against numbers worked out by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from learners import batch_of, check_goes_on_bit_for_bit, one_hot, parameters_of
from rl_training.algorithms import IQN
from rl_training.algorithms.by_head import make_rule
from rl_training.algorithms.distributional_losses import pairwise_td_error, quantile_huber_loss
from rl_training.algorithms.qr_dqn import QuantileRule
from rl_training.models import Draws, MLPIQNetwork

pytestmark = pytest.mark.numeric


def cosine_iqn(levels: Any = "stratified", **options: Any) -> IQN:
    """A network whose quantile function is known: Z_τ(s, a) = s·w_a·relu(1 − cos πτ), rising in τ from 0 to 2·s·w_a.

    hidden_sizes=(): ψ is the observation. Embedding of two cosines: φ = relu(1·cos 0 − 1·cos πτ), the same for both features.
    """
    net = MLPIQNetwork(2, 2, (), num_quantiles=3, num_target_quantiles=4, embedding_dim=2, quantile_levels=levels)
    algorithm = IQN(net, 0.0, 0.5, 10**9, **options)
    for network, table in ((algorithm.q_network, [[1.0, 2.0], [5.0, 3.0]]), (algorithm.target_network, [[0.0, 0.0], [4.0, 6.0]])):
        with torch.no_grad():
            network.head.embedding.weight.copy_(torch.tensor([[1.0, -1.0], [1.0, -1.0]]))
            network.head.embedding.bias.zero_()
            network.head.advantage.layers[0].weight.copy_(torch.tensor(table).T)  # [A, states]
            network.head.advantage.layers[0].bias.zero_()
    return algorithm


def step_01(rows: int = 1, **fields: Any) -> dict[str, Tensor]:
    """`rows` transitions from state 0 by action 0, reward 1, to state 1."""
    made = {"actions": [0] * rows, "rewards": [1.0] * rows, "dones": [0.0] * rows}
    obs, next_obs = one_hot(*[0] * rows, size=2), one_hot(*[1] * rows, size=2)
    return batch_of(rows, **{**made, "obs": obs, "next_obs": next_obs, **fields})


def spy_on_draws(algorithm: IQN) -> list[Draws]:
    """The draws of the following updates: online, target, online, target, …"""
    seen: list[Draws] = []
    for network in (algorithm.q_network, algorithm.target_network):
        draw = network.draw

        def spy(*args: Any, draw: Any = draw) -> Draws:
            seen.append(draw(*args))
            return seen[-1]

        network.draw = spy
    return seen


def rise(taus: Tensor) -> Tensor:
    return 1 - torch.cos(math.pi * taus)


@pytest.mark.parametrize(("double_q", "best"), [(False, 6.0), (True, 4.0)])
@pytest.mark.parametrize(("levels", "rows"), [("stratified", 1), ("independent", 7)])
def test_the_whole_update_from_its_own_levels(levels: str, rows: int, double_q: bool, best: float) -> None:
    """y_j = 1 + .5·w⁻·(1 − cos πτ'_j) with w⁻ of the selected action: 6, or 4 where the online network (5 against 3) selects.

    The levels are the same for all 7 transitions, or each transition's own."""
    algorithm = cosine_iqn(levels, double_q=double_q)
    seen = spy_on_draws(algorithm)
    result = algorithm.update(step_01(7), global_step=1)
    online, target = seen[0].taus, seen[1].taus
    assert online.shape == (rows, 3) and target.shape == (rows, 4)
    theta, y = rise(online).expand(7, 3), 1 + 0.5 * best * rise(target).expand(7, 4)
    torch.testing.assert_close(result.metrics["target_mean"], y.mean(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(result.metrics["q_value_mean"], theta.mean(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(result.metrics["loss"], quantile_huber_loss(theta, online, y).mean(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(algorithm.last_td_errors, pairwise_td_error(theta, y), rtol=1e-5, atol=1e-5)


def test_levels_are_drawn_anew_per_update_and_per_network() -> None:
    algorithm = cosine_iqn()
    seen = spy_on_draws(algorithm)
    for step in range(3):
        algorithm.update(step_01(5), global_step=step)
    taus = torch.cat([draws.taus.flatten() for draws in seen])
    assert len(taus) == 3 * (3 + 4) and len(taus.unique()) == len(taus)


def test_termination_and_discounts() -> None:
    # Γ = 0: all targets are the reward
    assert float(cosine_iqn().update(step_01(dones=[1.0]), global_step=1).metrics["target_mean"]) == pytest.approx(1.0)
    algorithm = cosine_iqn()
    seen = spy_on_draws(algorithm)
    mean = algorithm.update(step_01(discounts=[0.125], dones=[1.0]), global_step=1).metrics["target_mean"]
    torch.testing.assert_close(mean, 1 + 0.125 * 6 * rise(seen[1].taus).mean(), rtol=1e-5, atol=1e-5)


def test_importance_weights_scale_each_sample_s_loss() -> None:
    algorithm = cosine_iqn()
    _, parts, _ = algorithm.evaluate_loss(step_01(2))
    algorithm.generator.manual_seed(0)
    plain = algorithm.evaluate_loss(step_01(2))[1].loss
    algorithm.generator.manual_seed(0)
    weighted = algorithm.evaluate_loss(step_01(2, weights=[0.5, 2.0]))[0]
    torch.testing.assert_close(weighted, (plain * torch.tensor([0.5, 2.0])).mean())
    assert parts.loss.shape == (2,)


def test_gradients_reach_the_embedding_and_not_the_target() -> None:
    torch.manual_seed(0)
    algorithm = IQN(MLPIQNetwork(4, 2, (8, 8), embedding_dim=4), 1e-2, 0.9, 10**9)
    before, target = parameters_of(algorithm.q_network.head.embedding), parameters_of(algorithm.target_network)
    algorithm.update(batch_of(), global_step=1)
    assert (parameters_of(algorithm.q_network.head.embedding) != before).any()
    assert torch.equal(parameters_of(algorithm.target_network), target)


@pytest.mark.parametrize("dueling", [False, True])
def test_the_implicit_head_has_autograd_s_gradients(dueling: bool) -> None:
    """In float64 against finite differences, through embedding, product and streams."""
    torch.manual_seed(0)
    head = MLPIQNetwork(3, 2, (4,), embedding_dim=3, dueling=dueling).double().head
    taus = torch.rand(2, 5, dtype=torch.float64)
    features = torch.randn(2, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: head(x, Draws(taus=taus)), features)
    weight = head.embedding.weight

    def of_weight(w: Tensor) -> Tensor:
        return torch.func.functional_call(head, {"embedding.weight": w}, (features.detach(), Draws(taus=taus)))

    assert torch.autograd.gradcheck(of_weight, weight)


def test_evaluation_is_deterministic_and_training_is_not() -> None:
    torch.manual_seed(0)
    network = MLPIQNetwork(4, 2, (8,))
    obs, generator = torch.randn(3, 4), torch.Generator().manual_seed(0)
    assert torch.equal(network.q_values(obs), network.q_values(obs))
    draws = [network.draw(generator, (3,), "acting") for _ in range(2)]
    assert not torch.equal(network.q_values(obs, draws[0]), network.q_values(obs, draws[1]))


@pytest.mark.parametrize("noisy", [False, True])
def test_a_saved_learner_goes_on_bit_for_bit(noisy: bool) -> None:
    """Levels included: the generator is part of the state."""

    def make(seed: int) -> IQN:
        torch.manual_seed(seed)
        network = MLPIQNetwork(4, 2, (16, 16), num_quantiles=4, num_target_quantiles=5, dueling=True, noisy=noisy)
        return IQN(network, 1e-2, 0.9, 3, double_q=True, max_grad_norm=1.0, seed=seed)

    check_goes_on_bit_for_bit(make)


def test_the_counts_are_the_networks_own() -> None:
    network = MLPIQNetwork(2, 2, (), num_quantiles=3, num_target_quantiles=5)
    assert IQN(network, 1e-3, 0.9, 1, num_quantiles=3, num_target_quantiles=5).q_network.head.counts["online"] == 3
    with pytest.raises(ValueError, match="num_quantiles is 5, but the network's head has 3"):
        IQN(network, 1e-3, 0.9, 1, num_quantiles=5)
    with pytest.raises(ValueError, match="num_target_quantiles is 3, but the network's head has 5"):
        IQN(network, 1e-3, 0.9, 1, num_target_quantiles=3)


def test_the_rule_is_the_quantile_rule() -> None:
    assert isinstance(make_rule("implicit"), QuantileRule)
    with pytest.raises(ValueError, match="kappa"):
        IQN(MLPIQNetwork(2, 2, ()), 1e-3, 0.9, 1, kappa=-0.5)

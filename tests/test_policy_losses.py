"""PPO's losses in closed form, and their gradients against autograd."""

from __future__ import annotations

import math

import pytest
import torch

from rl_training.algorithms.policy_losses import approximate_kl, clipped_surrogate, normalized, value_loss
from rl_training.speed.hand_policy import surrogate_gradient, value_gradient

pytestmark = pytest.mark.numeric


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "gradient"),
    [
        # ε = 0.2. Inside the clip L = −ρA and ∂L/∂log π = −ρA (dρ/dlog π = ρ).
        (1.0, 2.0, -2.0, -2.0),
        (1.1, -2.0, 2.2, 2.2),
        # Beyond it, where moving on would pay: L = −1.2·2 = −2.4 and −0.8·(−2) = 1.6, both flat.
        (1.5, 2.0, -2.4, 0.0),
        (0.5, -2.0, 1.6, 0.0),
        # Beyond it the other way, where the step back is still worth making: the unclipped term is the smaller one.
        (0.5, 2.0, -1.0, -1.0),
        (1.5, -2.0, 3.0, 3.0),
    ],
)
def test_the_surrogate_inside_and_beyond_the_clip(ratio: float, advantage: float, loss: float, gradient: float) -> None:
    of = torch.tensor([math.log(ratio) - 1.0]), torch.tensor([-1.0]), torch.tensor([advantage]), 0.2
    assert float(clipped_surrogate(*of)) == pytest.approx(loss, rel=1e-6)
    assert float(surrogate_gradient(*of)) == pytest.approx(gradient, rel=1e-6)


def test_at_the_clip_itself_the_gradient_still_flows() -> None:
    # ρ = exp(0) = 1 = 1 + ε with ε = 0: both terms are equal, and a first step with clip 0 still has a direction.
    of = torch.zeros(1), torch.zeros(1), torch.tensor([3.0]), 0.0
    assert (float(clipped_surrogate(*of)), float(surrogate_gradient(*of))) == (-3.0, -3.0)


def test_the_value_loss_with_and_without_a_clip() -> None:
    values, returns = torch.tensor([2.0, 2.0, 0.5, 2.0]), torch.tensor([5.0, 1.0, 5.0, 1.9])
    old = torch.tensor([0.0, 1.5, 0.4, 0.0])
    # (V − R)²: 9, 1, 20.25, 0.01; slope 2(V − R)
    torch.testing.assert_close(value_loss(values, returns), torch.tensor([9.0, 1.0, 20.25, 0.01]))
    torch.testing.assert_close(value_gradient(values, returns, None, None), torch.tensor([-6.0, 2.0, -9.0, 0.2]))
    # clip 1 around V_old:
    #   0: V_c = 0 + 1 = 1, (1 − 5)² = 16 > 9: flat           1: |V − V_old| = 0.5, V_c = V: as above
    #   2: V_c = 0.5 = V: as above                           3: V_c = 1, (1 − 1.9)² = 0.81 > 0.01: flat
    torch.testing.assert_close(value_loss(values, returns, old, 1.0), torch.tensor([16.0, 1.0, 20.25, 0.81]))
    torch.testing.assert_close(value_gradient(values, returns, old, 1.0), torch.tensor([0.0, 2.0, -9.0, 0.0]))
    # Beyond the clip, but the unclipped error is the larger one: V_c = 3 + 1 = 4, (4 − 3.5)² = 0.25 < (6 − 3.5)² = 6.25, so it flows.
    away = torch.tensor([6.0]), torch.tensor([3.5]), torch.tensor([3.0]), 1.0
    assert (float(value_loss(*away)), float(value_gradient(*away))) == (6.25, 5.0)


@pytest.mark.parametrize("clip", [None, 0.3])
def test_gradients_are_autograds(clip: float | None) -> None:
    torch.manual_seed(0)
    x, old, target = torch.randn(200, requires_grad=True), torch.randn(200), torch.randn(200)
    of = 0.3 * x, 0.3 * old, target, 0.2
    (by_autograd,) = torch.autograd.grad(clipped_surrogate(*of).sum(), x)
    torch.testing.assert_close(0.3 * surrogate_gradient(*of).detach(), by_autograd)
    (by_autograd,) = torch.autograd.grad(value_loss(x, target, old, clip).sum(), x)
    torch.testing.assert_close(value_gradient(x, target, old, clip).detach(), by_autograd)


def test_the_kl_estimate_is_unbiased_and_not_negative() -> None:
    p, q = torch.tensor([0.2, 0.3, 0.5]), torch.tensor([0.1, 0.6, 0.3])
    estimate = approximate_kl((q / p).log())
    assert (estimate >= 0).all() and float(approximate_kl(torch.zeros(1))) == 0
    # E_p[(ρ − 1) − log ρ] = Σ p·(q/p) − 1 − Σ p log(q/p) = KL(p ‖ q)
    torch.testing.assert_close((p * estimate).sum(), (p * (p / q).log()).sum())


def test_advantages_are_normalised_over_the_steps_that_count() -> None:
    advantages = torch.tensor([[1.0, 4.0], [3.0, 99.0]])
    mask = torch.tensor([[1.0, 1.0], [1.0, 0.0]])
    # 1, 4, 3: mean 8/3, unbiased variance ((5/3)² + (4/3)² + (1/3)²)/2 = 7/3
    expected = (torch.tensor([1.0, 4.0, 3.0]) - 8 / 3) / math.sqrt(7 / 3)
    torch.testing.assert_close(normalized(advantages, mask)[mask > 0], expected[[0, 1, 2]])
    assert float(normalized(advantages, mask)[1, 1]) == 0
    torch.testing.assert_close(normalized(torch.tensor([1.0, 4.0, 3.0]), None), expected)
    # One step has no spread: it keeps its sign and size instead of becoming 0 or NaN.
    assert float(normalized(torch.tensor([5.0]), None)) == 5.0
    assert normalized(torch.tensor([[5.0, 7.0]]), torch.tensor([[1.0, 0.0]])).tolist() == [[5.0, 0.0]]

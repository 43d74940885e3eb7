"""Projection and quantile loss: closed forms, properties, and the hand-written gradient against autograd."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from rl_training.algorithms.c51_dqn import CategoricalRule
from rl_training.algorithms.distributional_losses import (
    clipped_share,
    cross_entropy,
    entropy,
    midpoints,
    pairwise_td_error,
    project,
    quantile_huber_loss,
)
from rl_training.speed.numba_rules import NumbaCategoricalRule, ScatteredCategoricalRule, quantile_huber_pass


def by_rule(kind: Any, probabilities: Tensor, atoms: Tensor, v_min: float, v_max: float) -> Tensor:
    plain = CategoricalRule(num_atoms=probabilities.shape[-1], v_min=v_min, v_max=v_max)
    return kind(plain).project(probabilities, atoms)


FAST = [partial(by_rule, NumbaCategoricalRule), partial(by_rule, ScatteredCategoricalRule)]


pytestmark = pytest.mark.numeric

# Projection. Atoms 0, 1, 2, 3 throughout the closed forms: N = 4, one step = 1.


@pytest.mark.parametrize(
    ("masses", "moved", "expected"),
    [
        # r = 0, γ = 1: every atom is hit exactly, nothing moves
        ([0.1, 0.2, 0.3, 0.4], [0.0, 1.0, 2.0, 3.0], [0.1, 0.2, 0.3, 0.4]),
        # r = 1, γ = 1: one step up; atoms 2 and 3 both end at 3
        ([0.1, 0.2, 0.3, 0.4], [1.0, 2.0, 3.0, 4.0], [0.0, 0.1, 0.2, 0.7]),
        # r = .25, γ = .5: atoms at .25, .75, 1.25, 1.75 share with their neighbours by nearness:
        # atom 0: .75·.1 + .25·.2 = .125; atom 1: .25·.1 + .75·.2 + .75·.3 + .25·.4 = .5; atom 2: .25·.3 + .75·.4 = .375
        ([0.1, 0.2, 0.3, 0.4], [0.25, 0.75, 1.25, 1.75], [0.125, 0.5, 0.375, 0.0]),
        # terminal, r = 1.5: all mass between atoms 1 and 2
        ([0.1, 0.2, 0.3, 0.4], [1.5, 1.5, 1.5, 1.5], [0.0, 0.5, 0.5, 0.0]),
        # beyond both ends
        ([0.5, 0.0, 0.0, 0.5], [-9.0, 0.0, 0.0, 99.0], [0.5, 0.0, 0.0, 0.5]),
    ],
)
@pytest.mark.parametrize("form", [project, *FAST])
def test_projection_by_hand(form: Callable[..., Tensor], masses: list[float], moved: list[float], expected: list[float]) -> None:
    torch.testing.assert_close(form(torch.tensor(masses), torch.tensor(moved), 0.0, 3.0), torch.tensor(expected))


@pytest.mark.parametrize("form", FAST)
def test_all_forms_of_the_projection_agree(form: Callable[..., Tensor]) -> None:
    g = torch.Generator().manual_seed(0)
    p, z = torch.rand(64, 51, generator=g).softmax(-1), 30 * torch.randn(64, 51, generator=g)
    torch.testing.assert_close(project(p, z, -10.0, 10.0), form(p, z, -10.0, 10.0), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("where", ["probabilities", "atoms"])
def test_a_nan_in_the_projection_is_not_hidden(where: str) -> None:
    values = {"probabilities": torch.full((2, 3), 1 / 3), "atoms": torch.tensor([0.0, 1.0, 2.0]).repeat(2, 1)}
    values[where][0, 1] = math.nan
    assert project(values["probabilities"], values["atoms"], 0.0, 2.0).isnan().any(-1).tolist() == [True, False]


floats = st.floats(-20, 20, width=32)


@given(st.lists(floats, min_size=7, max_size=7), st.lists(st.floats(-5, 5, width=32), min_size=7, max_size=7))
def test_projection_keeps_mass_and_the_mean_of_what_is_not_clipped(moved: list[float], logits: list[float]) -> None:
    p, z = torch.softmax(torch.tensor(logits), -1), torch.tensor(moved)
    support = torch.linspace(-3.0, 4.0, 7)
    out = project(p, z, -3.0, 4.0)
    assert float(out.min()) >= 0
    assert float(out.sum()) == pytest.approx(1, abs=1e-5)
    # The mean after clipping is kept exactly: each atom's two shares have their atom as mean.
    assert float(out @ support) == pytest.approx(float(p @ z.clamp(-3.0, 4.0)), abs=1e-4)


def test_projection_is_exact_on_the_support_of_every_size() -> None:
    """The fault this guards: where b is an integer, l = u, and mass shared as (u − b) and (b − l) is lost."""
    for n in (2, 3, 51, 101):
        for v_min, v_max in ((-10.0, 10.0), (0.0, 100.0), (-1.3, 7.1)):
            p = torch.rand(8, n, generator=torch.Generator().manual_seed(n)).softmax(-1)
            support = torch.linspace(v_min, v_max, n).expand(8, n)
            torch.testing.assert_close(project(p, support, v_min, v_max), p, atol=1e-5, rtol=0)


def test_projection_works_on_sequences() -> None:
    g = torch.Generator().manual_seed(0)
    p, z = torch.rand(3, 4, 6, generator=g).softmax(-1), 4 * torch.rand(3, 4, 6, generator=g)
    flat = project(p.reshape(12, 6), z.reshape(12, 6), 0.0, 3.0)
    torch.testing.assert_close(project(p, z, 0.0, 3.0).reshape(12, 6), flat)


def test_clipped_share_is_the_mass_outside() -> None:
    # atoms at −1 (out), 0 (the end itself), 2, 4 (out): .1 + .4
    share = clipped_share(torch.tensor([0.1, 0.2, 0.3, 0.4]), torch.tensor([-1.0, 0.0, 2.0, 4.0]), 0.0, 3.0)
    assert float(share) == pytest.approx(0.5)
    # r + γ·v_max = 1 + .99·100 = 100 up to rounding: nothing is clipped
    top = torch.tensor(1.0) + torch.tensor(0.99) * torch.linspace(0, 100, 51)
    assert float(clipped_share(torch.full((51,), 1 / 51), top + 1e-5, 0.0, 100.0)) == 0


def test_cross_entropy_and_entropy_by_hand() -> None:
    # p = softmax(log 1, log 3) = (1/4, 3/4), m = (1/2, 1/2): −½ ln ¼ − ½ ln ¾
    logits, m = torch.tensor([0.0, math.log(3)]), torch.tensor([0.5, 0.5])
    assert float(cross_entropy(logits, m)) == pytest.approx(-0.5 * math.log(0.25) - 0.5 * math.log(0.75))
    assert float(entropy(m)) == pytest.approx(math.log(2))
    assert float(entropy(torch.tensor([1.0, 0.0]))) == 0  # 0 ln 0 = 0
    # KL(m ‖ m) = 0
    assert float(cross_entropy(m.log(), m) - entropy(m)) == pytest.approx(0, abs=1e-7)


# Quantile Huber loss


def naive(theta: Tensor, tau: Tensor, target: Tensor, kappa: float) -> Tensor:
    """Equation 10 as it stands, pair by pair, differentiated by autograd."""
    u = target.unsqueeze(-2) - theta.unsqueeze(-1)
    weight = (tau.unsqueeze(-1) - (u.detach() < 0).to(u)).abs()
    if kappa == 0:
        return (weight * u.abs()).mean(-1).sum(-1)
    return (weight * torch.nn.functional.huber_loss(u, torch.zeros_like(u), reduction="none", delta=kappa) / kappa).mean(-1).sum(-1)


def test_quantile_huber_by_hand() -> None:
    # θ = (0, 1) at τ = (.25, .75), targets (.5, 3), κ = 1. u_ij = target_j − θ_i:
    #   i = 0: u = .5, 3    H = .125, 2.5    weight .25       → .25·(.125 + 2.5)/2          = .328125
    #   i = 1: u = −.5, 2   H = .125, 1.5    weights .25, .75 → (.25·.125 + .75·1.5)/2      = .578125
    # dL/dθ_i = −mean_j weight·clip(u): i = 0: −.25·(.5 + 1)/2 = −.1875;  i = 1: −(.25·(−.5) + .75·1)/2 = −.3125
    theta = torch.tensor([0.0, 1.0], requires_grad=True)
    out = quantile_huber_loss(theta[None], midpoints(2), torch.tensor([[0.5, 3.0]]))
    assert out.tolist() == pytest.approx([0.90625])
    torch.testing.assert_close(torch.autograd.grad(out.sum(), theta)[0], torch.tensor([-0.1875, -0.3125]))
    assert pairwise_td_error(theta.detach()[None], torch.tensor([[0.5, 3.0]])).tolist() == pytest.approx([(0.5 + 3 + 0.5 + 2) / 4])


def test_each_term_is_divided_by_kappa() -> None:
    # One pair, τ = ½, u = 3, κ = 2: H = 2·(3 − 1) = 4, /κ = 2, · ½ = 1; slope −½ · clip(3/2, −1, 1) = −½
    theta = torch.zeros(1, 1, requires_grad=True)
    out = quantile_huber_loss(theta, torch.tensor([0.5]), torch.tensor([[3.0]]), kappa=2.0)
    assert float(out.detach()) == pytest.approx(1.0)
    assert float(torch.autograd.grad(out.sum(), theta)[0]) == pytest.approx(-0.5)


def test_kappa_0_is_plain_quantile_regression() -> None:
    # τ = .25, θ = 0, targets (−2, 4, 0): mean(.75·2, .25·4, 0) = 2.5/3; slope −mean(−.75, .25, 0) = .5/3
    theta = torch.zeros(1, 1, requires_grad=True)
    out = quantile_huber_loss(theta, torch.tensor([0.25]), torch.tensor([[-2.0, 4.0, 0.0]]), kappa=0.0)
    assert float(out.detach()) == pytest.approx(2.5 / 3)
    assert float(torch.autograd.grad(out.sum(), theta)[0]) == pytest.approx(0.5 / 3)


@given(floats, floats)
def test_one_quantile_is_half_the_scalar_huber_loss(theta: float, target: float) -> None:
    """N = 1: τ̂ = ½, and both weights are ½."""
    out = quantile_huber_loss(torch.tensor([[theta]]), midpoints(1), torch.tensor([[target]]))
    huber = torch.nn.functional.huber_loss(torch.tensor(theta), torch.tensor(target))
    assert float(out) == pytest.approx(0.5 * float(huber), abs=1e-5)
    assert float(pairwise_td_error(torch.tensor([[theta]]), torch.tensor([[target]]))) == pytest.approx(
        abs(float(torch.tensor(target) - torch.tensor(theta)))
    )


def torch_pass(theta: Tensor, tau: Tensor, target: Tensor, kappa: float) -> tuple[Tensor, Tensor, Tensor]:
    theta = theta.detach().requires_grad_()
    loss = quantile_huber_loss(theta, tau, target, kappa)
    return loss.detach(), torch.autograd.grad(loss.sum(), theta)[0], pairwise_td_error(theta.detach(), target)


@pytest.mark.parametrize("evaluate", [quantile_huber_pass, torch_pass])
@pytest.mark.parametrize("kappa", [0.0, 0.3, 1.0, 5.0])
@pytest.mark.parametrize(("n", "m"), [(1, 1), (51, 51), (8, 33), (200, 200)])
def test_both_forms_equal_autograd_of_the_naive_pairs(
    evaluate: Callable[..., tuple[Tensor, Tensor, Tensor]], kappa: float, n: int, m: int
) -> None:
    g = torch.Generator().manual_seed(n)
    theta = (3 * torch.randn(6, n, generator=g)).requires_grad_()
    target, tau = 3 * torch.randn(6, m, generator=g) + 1, torch.rand(6, n, generator=g)
    reference = naive(theta, tau, target, kappa)
    gradient = torch.autograd.grad(reference.sum(), theta)[0]
    loss, own, error = evaluate(theta.detach(), tau, target, kappa)
    torch.testing.assert_close(loss, reference.detach(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(own, gradient, rtol=0, atol=1e-5)
    torch.testing.assert_close(error, (target[:, None, :] - theta.detach()[:, :, None]).abs().mean((1, 2)), rtol=1e-5, atol=1e-5)


def test_the_gradient_passes_gradcheck_in_double() -> None:
    g = torch.Generator().manual_seed(0)
    theta = torch.randn(2, 3, 4, generator=g, dtype=torch.float64, requires_grad=True)
    target, tau = torch.randn(2, 3, 5, generator=g, dtype=torch.float64), torch.rand(4, generator=g, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda x: quantile_huber_loss(x, tau, target, 0.7), theta)


@pytest.mark.parametrize("per_element", [False, True])
def test_the_quantile_loss_works_on_sequences(per_element: bool) -> None:
    g = torch.Generator().manual_seed(0)
    theta, target = torch.randn(3, 4, 5, generator=g), torch.randn(3, 4, 6, generator=g)
    tau = torch.rand(3, 4, 5, generator=g) if per_element else midpoints(5)
    flat = quantile_huber_loss(theta.reshape(12, 5), tau.reshape(12, 5) if per_element else tau, target.reshape(12, 6))
    out = quantile_huber_loss(theta, tau, target)
    torch.testing.assert_close(out.reshape(12), flat)
    error = pairwise_td_error(theta, target)
    torch.testing.assert_close(error.reshape(12), pairwise_td_error(theta.reshape(12, 5), target.reshape(12, 6)))


def test_values_far_from_zero_keep_their_digits() -> None:
    g = torch.Generator().manual_seed(0)
    theta, target = torch.randn(4, 51, generator=g), torch.randn(4, 51, generator=g)
    near, far = (quantile_huber_loss(theta + shift, midpoints(51), target + shift) for shift in (0.0, 4096.0))
    torch.testing.assert_close(near, far, rtol=1e-3, atol=0)


@pytest.mark.parametrize("kappa", [0.0, 1.0])
@pytest.mark.parametrize("where", ["theta", "target"])
def test_a_nan_is_not_hidden(kappa: float, where: str) -> None:
    values: dict[str, Any] = {"theta": torch.randn(2, 3), "target": torch.randn(2, 3)}
    values[where][0, 1] = math.nan
    theta = values["theta"].requires_grad_()
    out = quantile_huber_loss(theta, midpoints(3), values["target"], kappa)
    assert out.isnan().tolist() == [True, False] and pairwise_td_error(theta.detach(), values["target"]).isnan().tolist() == [True, False]
    assert torch.autograd.grad(out.sum(), theta)[0][0].isnan().any()


@pytest.mark.parametrize(("kappa", "expected"), [(0.0, [1.0, 4.0, 9.0]), (1e-3, [1.0, 4.0, 9.0])])
def test_the_minimum_is_at_the_quantiles(kappa: float, expected: list[float]) -> None:
    """Targets (1, 4, 9): at τ = 1/6, 3/6, 5/6 the best θ are the three of them (up to κ)."""
    theta = torch.tensor([[3.0, 3.0, 3.0]], requires_grad=True)
    optimizer = torch.optim.SGD([theta], lr=0.05)
    for _ in range(2000):
        optimizer.zero_grad()
        quantile_huber_loss(theta, midpoints(3), torch.tensor([[1.0, 4.0, 9.0]]), kappa).sum().backward()
        optimizer.step()
    torch.testing.assert_close(theta.detach(), torch.tensor([expected]), atol=0.05, rtol=0)

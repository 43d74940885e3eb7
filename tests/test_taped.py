"""The gradient by hand equals autograd's, for every head, dueling and noisy, and any depth."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from rl_training.algorithms.q_learner import QLearner
from rl_training.algorithms.rules import make_rule
from rl_training.algorithms.value_losses import put_action, take_action
from rl_training.algorithms.views import TransitionView
from rl_training.models.build import build_mlp_q_network


def network(head: Any, dueling: bool, noisy: bool, hidden: tuple[int, ...]) -> Any:
    torch.manual_seed(0)
    return build_mlp_q_network(
        5, 3, hidden_sizes=hidden, head=head, dueling=dueling, noisy=noisy, num_atoms=7, num_quantiles=6, v_min=-3.0, v_max=3.0
    ).double()


@pytest.mark.parametrize("hidden", [(), (8,), (8, 4), (8, 4, 6)])
@pytest.mark.parametrize("noisy", [False, True])
@pytest.mark.parametrize("dueling", [False, True])
@pytest.mark.parametrize("head", ["scalar", "categorical", "quantile"])
def test_pullback_equals_autograd(head: str, dueling: bool, noisy: bool, hidden: tuple[int, ...]) -> None:
    net = network(head, dueling, noisy, hidden)
    obs = torch.randn(11, 5, dtype=torch.float64)
    draws = net.draw(torch.Generator().manual_seed(1), (11,), "online")
    if draws.noise is not None:
        draws = draws._replace(noise=draws.noise.double())
    out = net(obs, draws)
    outer = torch.randn_like(out)
    expected = torch.autograd.grad(out, list(net.parameters()), outer)
    with torch.no_grad():
        taped, pullback = net.taped(obs, draws)
        grads = pullback(outer)
    torch.testing.assert_close(taped, out.detach())
    assert len(grads) == len(expected)
    for mine, autograd, (name, parameter) in zip(grads, expected, net.named_parameters(), strict=True):
        assert mine.shape == parameter.shape, name
        torch.testing.assert_close(mine, autograd, msg=name)


def test_an_implicit_head_has_no_tape_and_learns_by_autograd() -> None:
    net = build_mlp_q_network(5, 3, hidden_sizes=(8,), head="implicit", num_quantiles=4)
    assert net.taped(torch.randn(2, 5)) is None


def test_put_action_is_the_transpose_of_take_action() -> None:
    # <take(out), v> = <out, put(v)> for every out and v is what makes one the gradient of the other
    actions = torch.tensor([2, 0, 1, 1])
    for shape in ((4, 3), (4, 3, 5)):
        out = torch.randn(shape)
        v = torch.randn_like(take_action(out, actions))
        torch.testing.assert_close((take_action(out, actions) * v).sum(), (out * put_action(v, actions, out)).sum())


@pytest.mark.parametrize("head", ["scalar", "categorical", "quantile"])
def test_a_learner_without_tape_makes_the_same_update(head: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = {
        "obs": torch.randn(16, 5),
        "next_obs": torch.randn(16, 5),
        "actions": torch.randint(3, (16,)),
        "rewards": torch.randn(16),
        "dones": (torch.rand(16) < 0.3).float(),
        "weights": torch.rand(16),
    }
    learned = []
    for with_tape in (True, False):
        net = network(head, True, True, (8, 8)).float()
        learner = QLearner(
            net,
            view=TransitionView(gamma=0.9),
            rule=make_rule(head, num_atoms=7, v_min=-3.0, v_max=3.0),
            learning_rate=1e-2,
            target_update_interval=3,
            double_q=True,
            max_grad_norm=0.5,
        )
        if not with_tape:
            monkeypatch.setattr(type(net), "taped", lambda *args: None)
        for step in range(10):
            learner.update(batch, global_step=step)
        learned.append(torch.cat([p.detach().flatten() for p in net.parameters()]))
    torch.testing.assert_close(learned[0], learned[1], rtol=1e-4, atol=1e-6)

"""The gradient by hand equals autograd's, for every head, dueling and noisy, and any depth."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from learners import check_pullback
from rl_training.algorithms import DQN
from rl_training.algorithms.backups import Bootstrap, DoubleBackup, take_action
from rl_training.algorithms.by_head import make_rule
from rl_training.algorithms.q_learner import QLearner
from rl_training.algorithms.qr_dqn import QuantileRule
from rl_training.algorithms.rules import Rule, TDLoss, bellman
from rl_training.algorithms.views import TransitionView
from rl_training.models import MLPQNetwork
from rl_training.models.build import build_q_network
from rl_training.speed.hand_gradients import HandGradient, loss_gradient, put_action, use_hand_gradients
from rl_training.speed.numba_rules import numba_rule
from rl_training.speed.tapes import has_tape

pytestmark = pytest.mark.numeric


def network(head: Any, dueling: bool, noisy: bool, hidden: tuple[int, ...], **layers: Any) -> Any:
    torch.manual_seed(0)
    made = build_q_network(
        (5,), 3, hidden_sizes=hidden, head=head, dueling=dueling, noisy=noisy, num_atoms=7, num_quantiles=6, v_min=-3.0, v_max=3.0, **layers
    )
    for module in made.modules():
        if isinstance(module, torch.nn.LayerNorm):  # gains of 1 and biases of 0 would hide a gain or a bias left out
            torch.nn.init.normal_(module.weight)
            torch.nn.init.normal_(module.bias)
    return made.double()


@pytest.mark.parametrize("hidden", [(), (8,), (8, 4), (8, 4, 6)])
@pytest.mark.parametrize("noisy", [False, True])
@pytest.mark.parametrize("dueling", [False, True])
@pytest.mark.parametrize("head", ["scalar", "categorical", "quantile"])
@pytest.mark.parametrize("layers", [{}, {"layer_norm": True, "activation": "tanh"}], ids=["plain", "layer_norm"])
def test_pullback_equals_autograd(head: str, dueling: bool, noisy: bool, hidden: tuple[int, ...], layers: Any) -> None:
    net = network(head, dueling, noisy, hidden, **layers)
    check_pullback(net, torch.randn(11, 5, dtype=torch.float64))


def test_only_what_is_ours_has_a_tape() -> None:
    class Own(MLPQNetwork):
        def forward(self, obs: Any, draws: Any = None) -> Any:
            return 2 * super().forward(obs)

    assert has_tape(MLPQNetwork(5, 3, (8,)))
    assert not has_tape(build_q_network((5,), 3, hidden_sizes=(8,), head="implicit", num_quantiles=4))
    assert not has_tape(build_q_network((5,), 3, hidden_sizes=(8,), head="quantile", num_quantiles=1))
    assert not has_tape(Own(5, 3, (8,)))
    changed = MLPQNetwork(5, 3, (8,))
    changed.torso.activation = torch.nn.functional.gelu
    assert not has_tape(changed)
    learner = DQN(Own(5, 3, (8,)), 1e-3, 0.9, 10)
    use_hand_gradients(learner)
    assert learner.gradient == learner.autograd


def test_put_action_is_the_transpose_of_take_action() -> None:
    # <take(out), v> = <out, put(v)> for every out and v is what makes one the gradient of the other
    actions = torch.tensor([2, 0, 1, 1])
    for shape in ((4, 3), (4, 3, 5)):
        out = torch.randn(shape)
        v = torch.randn_like(take_action(out, actions))
        torch.testing.assert_close((take_action(out, actions) * v).sum(), (out * put_action(v, actions, out)).sum())


class Squared(Rule):
    """A rule of a user's own: its gradient by the network's outputs is autograd's."""

    def target(self, bootstrap: Bootstrap, rewards: Tensor, discounts: Tensor) -> Tensor:
        return bellman(rewards, discounts, bootstrap)

    def loss(self, chosen: Tensor, target: Tensor, taus: Tensor | None = None) -> Tensor:
        return (chosen - target) ** 2


@pytest.mark.parametrize("numba", [False, True])
@pytest.mark.parametrize("head", ["scalar", "squared", "categorical", "quantile", "own"])
def test_a_learner_with_hand_gradients_makes_the_same_update(head: Any, numba: bool) -> None:
    batch = {
        "obs": torch.randn(16, 5),
        "next_obs": torch.randn(16, 5),
        "actions": torch.randint(3, (16,)),
        "rewards": torch.randn(16),
        "dones": (torch.rand(16) < 0.3).float(),
        "weights": torch.rand(16),
    }
    learned, reported = [], []
    for by_hand in (True, False):
        kind = "scalar" if head in ("own", "squared") else head
        net = network(kind, True, True, (8, 8)).float()
        options: Any = {"num_atoms": 7, "v_min": -3.0, "v_max": 3.0, "loss": "mse" if head == "squared" else "huber"}
        learner = QLearner(
            net,
            view=TransitionView(gamma=0.9),
            backup=DoubleBackup(),
            rule=Squared() if head == "own" else make_rule(kind, **options),
            learning_rate=1e-2,
            target_update_interval=3,
            max_grad_norm=0.5,
            adam_eps=1e-2,
        )
        if by_hand:
            use_hand_gradients(learner)
            assert isinstance(learner.gradient, HandGradient)
        elif numba:
            learner.rule = numba_rule(learner.rule)
        for step in range(10):
            metrics = learner.update(batch, global_step=step).metrics
        learned.append(torch.cat([p.detach().flatten() for p in net.parameters()]))
        reported.append({**metrics, "priorities": learner.last_priorities, "td_errors": learner.last_td_errors})
    # With Adam's eps = lr each of the ten steps is off by no more than its gradient is, about 1e-7.
    torch.testing.assert_close(learned[0], learned[1], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(reported[0], reported[1], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kappa", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("drawn", [False, True])
def test_the_quantile_gradient_that_a_compiler_takes_is_autograds(kappa: float, drawn: bool) -> None:
    generator = torch.Generator().manual_seed(3)
    chosen, target = (torch.randn(6, n, generator=generator, dtype=torch.float64) for n in (5, 7))
    taus = torch.rand(6, 5, generator=generator, dtype=torch.float64) if drawn else None
    rule = QuantileRule(kappa=kappa)
    leaf = chosen.clone().requires_grad_()
    expected = torch.autograd.grad(rule.loss(leaf, target, taus).sum(), leaf)[0]
    torch.testing.assert_close(loss_gradient(TDLoss(rule, chosen, target, taus)), expected)

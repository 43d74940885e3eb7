"""A learner's gradient by hand: the loss in closed form, the network by its tape (tapes.py)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from rl_training.algorithms.backups import take_action
from rl_training.algorithms.c51_dqn import CategoricalRule
from rl_training.algorithms.distributional_losses import pairwise
from rl_training.algorithms.dqn import ScalarRule
from rl_training.algorithms.pqn import PQN, MinibatchGradient
from rl_training.algorithms.q_learner import Gradient, QLearner
from rl_training.algorithms.qr_dqn import QuantileRule
from rl_training.algorithms.rules import Rule, TDLoss
from rl_training.algorithms.views import TransitionView
from rl_training.models.heads import NO_DRAWS, Draws, ScalarHead
from rl_training.speed.numba_rules import NumbaCategoricalRule, NumbaQuantileRule, ScatteredCategoricalRule
from rl_training.speed.tapes import has_tape, taped_q_network
from rl_training.types import Batch


def use_hand_gradients(learner: QLearner) -> None:
    """Where the learner's network has a tape and it learns from transitions; else its gradient stays autograd's."""
    if has_tape(learner.q_network) and type(learner.view) is TransitionView:
        learner.gradient = HandGradient(learner)


def use_hand_gradients_of_returns(learner: PQN) -> None:
    """The same for PQN, which learns from rollouts."""
    if type(learner) is PQN and has_tape(learner.q_network) and type(learner.q_network.head) is ScalarHead:
        learner.gradient = HandReturnsGradient(learner)


class HandReturnsGradient:
    """What `PQN.autograd` gives of ½(R − Q(s, a))², up to rounding."""

    def __init__(self, learner: PQN) -> None:
        self._network = learner.q_network

    @torch.no_grad()
    def __call__(self, batch: Batch) -> MinibatchGradient:
        outputs, pullback = taped_q_network(self._network, batch["obs"], NO_DRAWS)
        chosen = take_action(outputs, batch["actions"])
        mask, error = batch.get("mask"), chosen - batch["returns"]
        grad = error / len(chosen) if mask is None else error * mask / mask.sum().clamp(min=1)  # each step's share in the mean
        return MinibatchGradient(pullback(put_action(grad, batch["actions"], outputs)), chosen)


class HandGradient:
    """What `QLearner.autograd` gives, up to rounding."""

    def __init__(self, learner: QLearner) -> None:
        self._learner = learner

    def __call__(self, batch: Batch, online: Any = None, target: Any = None, parameters: Sequence[Tensor] | None = None) -> Gradient:
        learner = self._learner
        tape = _Taped(learner.q_network if online is None else online)
        with torch.no_grad():
            td, aligned = learner.td_loss(batch, tape, target)
            grad = loss_gradient(td)
            # The reduction is mean(weight · loss), so ∂/∂chosen is weight/B · ∂loss/∂chosen.
            share = 1 / aligned.rewards.numel()
            if aligned.weights is None:
                grad = grad * share
            else:
                weights = aligned.weights * share
                grad = grad * (weights if grad.ndim == weights.ndim else weights.unsqueeze(-1))
            return Gradient(tape.pullback(put_action(grad, batch["actions"], tape.outputs)), td, aligned)


class _Taped:
    """A network whose pass over a batch's observations is taped."""

    outputs: Tensor
    pullback: Callable[[Tensor], list[Tensor]]

    def __init__(self, network: Any) -> None:
        self._network, self.head, self.draw, self.q_values = network, network.head, network.draw, network.q_values

    def __call__(self, obs: Tensor, draws: Draws) -> Tensor:
        self.outputs, self.pullback = taped_q_network(self._network, obs, draws)
        return self.outputs


def put_action(values: Tensor, actions: Tensor, like: Tensor) -> Tensor:
    """The transpose of `take_action`: zeros shaped as `like` but for the given actions' outputs."""
    if like.ndim == actions.ndim + 1:
        return torch.zeros_like(like).scatter_(-1, actions.unsqueeze(-1), values.unsqueeze(-1))
    index = actions[..., None, None].expand(*actions.shape, 1, like.shape[-1])
    return torch.zeros_like(like).scatter_(-2, index, values.unsqueeze(-2))


def loss_gradient(td: TDLoss) -> Tensor:
    """∂loss/∂chosen, [...] or [..., N]: in closed form, or by autograd of the loss alone for a rule of a user's own."""
    closed_form = _CLOSED_FORMS.get(type(td.rule))
    if closed_form is not None:
        return closed_form(td)
    with torch.enable_grad():
        chosen = td.chosen.detach().requires_grad_()
        loss = td.rule.loss(chosen, td.target, td.taus).sum()
    return torch.autograd.grad(loss, chosen)[0]


def _scalar(td: TDLoss) -> Tensor:
    assert isinstance(td.rule, ScalarRule)
    difference = td.chosen - td.target
    return difference.mul_(2) if td.rule.squared else difference.clamp_(-1, 1)  # H₁'(x) = x where |x| ≤ 1, else its sign


def _cross_entropy(td: TDLoss) -> Tensor:
    return torch.softmax(td.chosen, -1) - td.target  # of the logits, where the target's mass is 1


def _quantile(td: TDLoss) -> Tensor:
    assert isinstance(td.rule, NumbaQuantileRule)
    return td.rule.gradient(td.chosen, td.target, td.taus)


def _pairwise_quantile(td: TDLoss) -> Tensor:
    """∂L/∂theta_i = −mean_j |τ_i − 1{u_ij < 0}| · clip(u_ij/κ, −1, 1), of torch's operations alone: what a compiler takes."""
    assert isinstance(td.rule, QuantileRule)
    u, tau, kappa = pairwise(td.chosen, td.target), td.rule.levels(td.chosen, td.taus).unsqueeze(-1), td.rule.kappa
    slope = (u / kappa).clamp_(-1, 1) if kappa > 0 else u.sign()
    return -(torch.where(u < 0, 1 - tau, tau) * slope).mean(-1)


_CLOSED_FORMS: dict[type[Rule], Callable[[TDLoss], Tensor]] = {
    ScalarRule: _scalar,
    CategoricalRule: _cross_entropy,
    NumbaCategoricalRule: _cross_entropy,
    ScatteredCategoricalRule: _cross_entropy,
    QuantileRule: _pairwise_quantile,
    NumbaQuantileRule: _quantile,
}

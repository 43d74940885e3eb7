"""Rules: what a network's numbers mean, how they become a TD target, and the loss between the two.

A rule works on any rank: `...` is [B] for transitions and [T, B] for sequences. It never sees networks, batches or time; a view
(views.py) has aligned those. Loss = view ∘ rule.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from rl_training.algorithms.value_losses import huber, rescale, td_target, unrescale


class RuleLoss(NamedTuple):
    """Per element, all [...]: the loss (with gradient), what prioritized replay should rank it by, and what is reported."""

    loss: Tensor
    priority: Tensor
    q_value: Tensor
    target: Tensor
    td_error: Tensor  # |δ|


class Rule(Protocol):
    """One kind of TD learning."""

    def target(self, bootstrap: Tensor, rewards: Tensor, discounts: Tensor) -> Tensor:
        """The finished target, from the target network's numbers for the chosen next action, [...] or [..., N]."""
        ...

    def loss(self, chosen: Tensor, target: Tensor, taus: Tensor | None) -> RuleLoss:
        """The loss between the online network's numbers for the action taken and the target."""
        ...


class ScalarRule:
    """Huber loss on the TD error, δ = y − Q(s, a) (Mnih et al. 2015); by option in R2D2's rescaled space:
    y = h(R + Γ·h⁻¹(Q')), and δ and the priority live there too."""

    def __init__(self, *, value_rescaling: bool = False) -> None:
        self.value_rescaling = value_rescaling

    def target(self, bootstrap: Tensor, rewards: Tensor, discounts: Tensor) -> Tensor:
        if self.value_rescaling:
            return rescale(td_target(rewards, discounts, unrescale(bootstrap)))
        return td_target(rewards, discounts, bootstrap)

    def loss(self, chosen: Tensor, target: Tensor, taus: Tensor | None = None) -> RuleLoss:
        error = (chosen - target).detach().abs_()
        loss = torch.nn.functional.huber_loss(chosen, target, reduction="none") if chosen.requires_grad else huber(chosen - target)
        return RuleLoss(loss, error, chosen, target, error)

"""DQN (Mnih et al. 2015), Double DQN (arXiv:1509.06461) by option; dueling and noisy are the network's."""

from __future__ import annotations

from typing import get_args

import torch
from torch import Tensor, nn
from typing_extensions import Unpack

from rl_training.algorithms.backups import Backup, Bootstrap, greedy_backup, take_action
from rl_training.algorithms.q_learner import OptimizerOptions, QLearner, Schedule
from rl_training.algorithms.rules import LazyMetrics, Rule, TDLoss, bellman, reduce_loss
from rl_training.algorithms.views import TransitionView
from rl_training.models.network import ValueNetwork
from rl_training.types import Batch, LossName


class ScalarRule(Rule):
    """Huber loss on the TD error, δ = y − Q(s, a) with y = R + Γ·Q', or δ² (`loss="mse"`, as Dopamine's DQN has it); by option in R2D2's
    rescaled space: y = h(R + Γ·h⁻¹(Q')), and δ and the priority live there too."""

    def __init__(self, *, loss: LossName = "huber", value_rescaling: bool = False) -> None:
        if loss not in get_args(LossName):
            raise ValueError(f"loss must be one of {', '.join(get_args(LossName))}, got {loss!r}")
        self.squared, self.value_rescaling = loss == "mse", value_rescaling

    def target(self, bootstrap: Bootstrap, rewards: Tensor, discounts: Tensor) -> Tensor:
        return bellman(rewards, discounts, bootstrap, value_rescaling=self.value_rescaling)

    def loss(self, chosen: Tensor, target: Tensor, taus: Tensor | None = None) -> Tensor:
        distance = torch.nn.functional.mse_loss if self.squared else torch.nn.functional.huber_loss
        return distance(chosen, target, reduction="none")


def dqn_loss(batch: Batch) -> dict[str, Tensor]:
    """mean(weights · H₁(y − Q(s, a))) with the reported metrics.

    batch: `q_values` [B, A], `actions` [B], `target_q_values` [B] (the finished TD target), optional `weights` [B].
    """
    chosen = take_action(batch["q_values"], batch["actions"].long())
    td = TDLoss(ScalarRule(), chosen, batch["target_q_values"].detach())
    return {**LazyMetrics(td), "loss": reduce_loss(td.loss, None, batch.get("weights"))}


class DQN(QLearner):
    """One update, of transitions [B] with R and Γ = γ·(1 − terminated) (or what an n-step replay stored):

    view      Q(s, a) of the online network, Q⁻(s', ·) of the target network
    backup    max_a Q⁻(s', a), or with `double_q` Q⁻(s', argmax_a Q(s', a))
    rule      y = R + Γ·backup, loss Huber(y − Q(s, a)), or its square
    learner   mean(weights · loss) → gradient → clipped to `max_grad_norm` → Adam; θ⁻ ← θ every `target_update_interval` steps, or the
              part τ of it
    """

    def __init__(
        self,
        q_network: ValueNetwork | nn.Module,
        learning_rate: float | Schedule,
        gamma: float,
        target_update_interval: int,
        double_q: bool = False,
        tau: float = 1.0,
        max_grad_norm: float | None = None,
        *,
        loss: LossName = "huber",
        backup: Backup | None = None,
        **options: Unpack[OptimizerOptions],
    ) -> None:
        """backup: in place of the one that `double_q` names."""
        super().__init__(
            q_network,
            view=TransitionView(gamma=gamma),
            backup=backup or greedy_backup(double_q),
            rule=ScalarRule(loss=loss),
            learning_rate=learning_rate,
            target_update_interval=target_update_interval,
            tau=tau,
            max_grad_norm=max_grad_norm,
            **options,
        )

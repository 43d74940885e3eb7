"""DQN (Mnih et al. 2015), Double DQN (arXiv:1509.06461) by option; dueling and noisy are the network's."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from rl_training.algorithms.q_learner import LazyMetrics, QLearner, Schedule, reduce_loss
from rl_training.algorithms.rules import ScalarRule
from rl_training.algorithms.value_losses import take_action
from rl_training.algorithms.views import TransitionView
from rl_training.types import Batch


def dqn_loss(batch: Batch) -> dict[str, Tensor]:
    """mean(weights · H₁(y − Q(s, a))) with the reported metrics.

    batch: `q_values` [B, A], `actions` [B], `target_q_values` [B] (the finished TD target), optional `weights` [B].
    """
    chosen = take_action(batch["q_values"], batch["actions"].long())
    parts = ScalarRule().loss(chosen, batch["target_q_values"].detach())
    loss = reduce_loss(parts.loss, None, batch.get("weights"))
    return {**LazyMetrics(parts), "loss": loss}


class DQN(QLearner):
    """y = R + Γ·max_a Q⁻(s', a), or Q⁻(s', argmax_a Q(s', a)) with `double_q`; Huber loss."""

    def __init__(
        self,
        q_network: Any,
        learning_rate: float | Schedule,
        gamma: float,
        target_update_interval: int,
        double_q: bool = False,
        tau: float = 1.0,
        max_grad_norm: float | None = None,
        *,
        adam_eps: float = 1e-8,
        seed: int = 0,
    ) -> None:
        super().__init__(
            q_network,
            view=TransitionView(gamma=gamma),
            rule=ScalarRule(),
            learning_rate=learning_rate,
            target_update_interval=target_update_interval,
            double_q=double_q,
            tau=tau,
            max_grad_norm=max_grad_norm,
            adam_eps=adam_eps,
            seed=seed,
        )

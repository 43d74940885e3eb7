"""QR-DQN (arXiv:1710.10044): quantile regression of the return's distribution at fixed levels."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from typing_extensions import Unpack

from rl_training.algorithms.backups import Backup, Bootstrap, greedy_backup
from rl_training.algorithms.distributional_losses import midpoints, pairwise_td_error, quantile_huber_loss
from rl_training.algorithms.q_learner import LearnerOptions, QLearner, Schedule
from rl_training.algorithms.rules import Rule, TDLoss, bellman
from rl_training.algorithms.views import TransitionView
from rl_training.models.network import ValueNetwork


class QuantileRule(Rule):
    """Quantile regression of R + Γ·Z', Huber-smoothed: QR-DQN at fixed levels, IQN (arXiv:1806.06923) at sampled ones.

    Priority and TD error are the mean absolute TD error over all pairs of quantiles, mean_ij |target_j − θ_i|: for a single quantile DQN's
    |δ|. With `value_rescaling` quantiles are in h-space.
    """

    def __init__(self, *, kappa: float = 1.0, value_rescaling: bool = False) -> None:
        if kappa < 0:
            raise ValueError(f"kappa must be >= 0, got {kappa}")
        self.kappa, self.value_rescaling = kappa, value_rescaling
        self._midpoints = midpoints(1)

    def levels(self, chosen: Tensor, taus: Tensor | None) -> Tensor:
        """The levels of `chosen`: those drawn for it, or the midpoints."""
        if taus is not None:
            return taus
        if len(self._midpoints) != chosen.shape[-1] or self._midpoints.device != chosen.device:
            self._midpoints = midpoints(chosen.shape[-1], chosen.device)
        return self._midpoints

    def target(self, bootstrap: Bootstrap, rewards: Tensor, discounts: Tensor) -> Tensor:
        """The moved quantiles, [..., M]."""
        return bellman(rewards, discounts, bootstrap, value_rescaling=self.value_rescaling)

    def loss(self, chosen: Tensor, target: Tensor, taus: Tensor | None = None) -> Tensor:
        return quantile_huber_loss(chosen, self.levels(chosen, taus), target, self.kappa)

    def q_value(self, chosen: Tensor) -> Tensor:
        return chosen.mean(-1)

    def target_value(self, target: Tensor) -> Tensor:
        return target.mean(-1)

    def td_error(self, td: TDLoss) -> Tensor:
        return pairwise_td_error(td.chosen.detach(), td.target)


class QRDQN(QLearner):
    """DQN's update (dqn.py) with y_j = R + Γ·θ⁻_j(s', a*), a* greedy in the mean, and the quantile Huber loss (κ = 0: the plain one).

    `q_network` gives [B, A, num_quantiles], as MLPQRQNetwork does; a number given here must be the same.
    """

    def __init__(
        self,
        q_network: ValueNetwork,
        learning_rate: float | Schedule,
        gamma: float,
        target_update_interval: int,
        double_q: bool = False,
        *,
        num_quantiles: int | None = None,
        kappa: float = 1.0,
        backup: Backup | None = None,
        **options: Unpack[LearnerOptions],
    ) -> None:
        head: Any = q_network.head  # a QuantileHead, or one that says as much of itself
        if num_quantiles is not None and num_quantiles != head.num_quantiles:
            raise ValueError(f"num_quantiles is {num_quantiles}, but the network's head has {head.num_quantiles}")
        super().__init__(
            q_network,
            view=TransitionView(gamma=gamma),
            backup=backup or greedy_backup(double_q),
            rule=QuantileRule(kappa=kappa),
            learning_rate=learning_rate,
            target_update_interval=target_update_interval,
            **options,
        )

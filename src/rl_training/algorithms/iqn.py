"""IQN (arXiv:1806.06923): quantile regression of the return's distribution at sampled levels."""

from __future__ import annotations

from typing import Any

from typing_extensions import Unpack

from rl_training.algorithms.backups import Backup, greedy_backup
from rl_training.algorithms.q_learner import LearnerOptions, QLearner, Schedule
from rl_training.algorithms.qr_dqn import QuantileRule
from rl_training.algorithms.views import TransitionView
from rl_training.models.network import ValueNetwork


class IQN(QLearner):
    """QR-DQN's update (qr_dqn.py) at levels τ and τ' drawn anew for each update: y_j = R + Γ·Z⁻_{τ'_j}(s', a*) against Z_{τ_i}(s, a).

    `q_network` has an ImplicitHead, as MLPIQNetwork does. The counts N and N' are the head's; one given here must be the same.
    Departures: by default the head draws its levels once for the whole batch, one from each of N equal strata (see ImplicitHead). The next
    action is greedy in the mean over the N' levels already drawn for the target instead of over K more: one forward pass less. With
    double-Q the online network selects as it acts, at the K midpoints.
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
        num_target_quantiles: int | None = None,
        kappa: float = 1.0,
        backup: Backup | None = None,
        **options: Unpack[LearnerOptions],
    ) -> None:
        head: Any = q_network.head  # an ImplicitHead, or one that says as much of itself
        counts = head.counts
        for name, given, held in (
            ("num_quantiles", num_quantiles, counts["online"]),
            ("num_target_quantiles", num_target_quantiles, counts["target"]),
        ):
            if given is not None and given != held:
                raise ValueError(f"{name} is {given}, but the network's head has {held}")
        super().__init__(
            q_network,
            view=TransitionView(gamma=gamma),
            backup=backup or greedy_backup(double_q),
            rule=QuantileRule(kappa=kappa),
            learning_rate=learning_rate,
            target_update_interval=target_update_interval,
            **options,
        )

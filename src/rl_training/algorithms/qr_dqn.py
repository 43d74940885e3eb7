"""QR-DQN (arXiv:1710.10044): quantile regression of the return's distribution at fixed levels."""

from __future__ import annotations

from typing import Any

from typing_extensions import Unpack

from rl_training.algorithms.q_learner import LearnerOptions, QLearner, Schedule
from rl_training.algorithms.rules import QuantileRule
from rl_training.algorithms.views import TransitionView


class QRDQN(QLearner):
    """y_j = R + Γ·θ⁻_j(s', a*) with a* greedy in the mean; quantile Huber loss (κ = 0: the plain quantile loss).

    `q_network` gives [B, A, num_quantiles], as MLPQRQNetwork does; a number given here must be the same.
    """

    def __init__(
        self,
        q_network: Any,
        learning_rate: float | Schedule,
        gamma: float,
        target_update_interval: int,
        *,
        num_quantiles: int | None = None,
        kappa: float = 1.0,
        **options: Unpack[LearnerOptions],
    ) -> None:
        if num_quantiles is not None and num_quantiles != q_network.head.num_quantiles:
            raise ValueError(f"num_quantiles is {num_quantiles}, but the network's head has {q_network.head.num_quantiles}")
        super().__init__(
            q_network,
            view=TransitionView(gamma=gamma),
            rule=QuantileRule(kappa=kappa),
            learning_rate=learning_rate,
            target_update_interval=target_update_interval,
            **options,
        )

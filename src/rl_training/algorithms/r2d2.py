"""R2D2 (Kapturowski et al., ICLR 2019): double Q-learning over prioritized sequences, with n-step returns, burn-in and value rescaling.

Defaults are narrow (no burn-in, no rescaling, one step); the paper's setting is n_step=5, burn_in=40 of 120 steps, value_rescaling=True.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from rl_training.algorithms.drqn import DRQN, drqn_loss
from rl_training.algorithms.q_learner import Schedule
from rl_training.models.network import RecurrentValueNetwork
from rl_training.types import Batch


def r2d2_loss(batch: Batch) -> dict[str, Tensor]:
    """Σ weight·mask·H₁(δ) / Σ mask with the reported metrics; weights of 1 (or none) give DRQN's.

    batch: `chosen_q_values`, `target_q_values`, `mask` [T, B] and the sequences' importance `weights` [B]. With value rescaling both values
    are in the rescaled space, and so is δ.
    """
    return drqn_loss(batch)


class R2D2(DRQN):
    """DRQN with double-Q and sequence priorities as the paper has them; further options are DRQN's."""

    def __init__(
        self,
        q_network: RecurrentValueNetwork,
        learning_rate: float | Schedule,
        gamma: float,
        target_update_interval: int,
        priority_eta: float = 0.9,
        n_step: int = 1,
        burn_in: int = 0,
        value_rescaling: bool = False,
        double_q: bool = True,
        **options: Any,
    ) -> None:
        super().__init__(
            q_network,
            learning_rate,
            gamma,
            target_update_interval,
            double_q,
            priority_eta=priority_eta,
            n_step=n_step,
            burn_in=burn_in,
            value_rescaling=value_rescaling,
            **options,
        )

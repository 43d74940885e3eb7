"""DRQN (arXiv:1507.06527): Q-learning over sequences of a recurrent network; R2D2 (r2d2.py) is the same learner with other defaults."""

from __future__ import annotations

from torch import Tensor
from typing_extensions import Unpack

from rl_training.algorithms.backups import Backup, greedy_backup
from rl_training.algorithms.dqn import ScalarRule
from rl_training.algorithms.q_learner import OptimizerOptions, QLearner, Schedule
from rl_training.algorithms.rules import LazyMetrics, Rule, TDLoss, reduce_loss
from rl_training.algorithms.sequence_view import SequenceView
from rl_training.algorithms.views import Aligned
from rl_training.models.network import RecurrentValueNetwork
from rl_training.types import Batch


def drqn_loss(batch: Batch) -> dict[str, Tensor]:
    """Σ mask·H₁(y − Q(s, a)) / Σ mask with the reported metrics, over valid steps only.

    batch: `chosen_q_values`, `target_q_values` (the finished TD target) and `mask`, all [T, B]; optional `weights` [B] multiply the loss.
    """
    mask = batch["mask"]
    td = TDLoss(ScalarRule(), batch["chosen_q_values"], batch["target_q_values"].detach())
    return {**LazyMetrics(td, mask), "loss": reduce_loss(td.loss, mask, batch.get("weights"))}


def sequence_priorities(errors: Tensor, mask: Tensor, eta: float) -> Tensor:
    """p = η·max_t |δ_t| + (1 − η)·mean_t |δ_t| over valid steps (Kapturowski et al., ICLR 2019, §2.3). errors, mask: [T, B] → [B].

    errors are not negative, so a masked step (0) never is the maximum of a sequence with a valid one; without any the priority is 0.
    """
    errors = errors * mask
    mean = errors.sum(0) / mask.sum(0).clamp(min=1)
    return mean.lerp(errors.amax(0), eta)


class DRQN(QLearner):
    """Learns from chunks of recurrent replay: `view` unrolls, `rule` is DQN's unless another is given.

    `n_step` returns, `double_q`, `burn_in`, `value_rescaling` (which is the scalar rule's) and `stored_state` (false: chunks start from the
    zero state) are R2D2's parts by option; `priority_eta` mixes the chunk's priority where the replay is prioritized.
    """

    def __init__(
        self,
        q_network: RecurrentValueNetwork,
        learning_rate: float | Schedule,
        gamma: float,
        target_update_interval: int,
        double_q: bool = False,
        tau: float = 1.0,
        max_grad_norm: float | None = None,
        *,
        n_step: int = 1,
        burn_in: int = 0,
        stored_state: bool = True,
        value_rescaling: bool = False,
        priority_eta: float = 0.9,
        rule: Rule | None = None,
        backup: Backup | None = None,
        **options: Unpack[OptimizerOptions],
    ) -> None:
        if rule is not None and value_rescaling:
            raise ValueError("value_rescaling belongs to the rule: give it to the one passed as `rule`")
        super().__init__(
            q_network,
            view=SequenceView(gamma=gamma, n_step=n_step, burn_in=burn_in, use_stored_state=stored_state),
            backup=backup or greedy_backup(double_q),
            rule=rule or ScalarRule(value_rescaling=value_rescaling),
            learning_rate=learning_rate,
            target_update_interval=target_update_interval,
            tau=tau,
            max_grad_norm=max_grad_norm,
            **options,
        )
        self.priority_eta = priority_eta

    def priorities(self, td: TDLoss, aligned: Aligned) -> Tensor:
        """One per chunk, [B]."""
        assert aligned.mask is not None, "a sequence view always masks"
        return sequence_priorities(td.priority, aligned.mask, self.priority_eta)

    @property
    def last_sequence_priorities(self) -> Tensor:
        """What the last update says of its chunks' priorities, [B]."""
        return self.last_priorities

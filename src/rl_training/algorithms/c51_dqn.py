"""C51 (arXiv:1707.06887): the return's distribution on fixed atoms, by cross-entropy to its projected Bellman update."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from typing_extensions import Unpack

from rl_training.algorithms.backups import Backup, Bootstrap, greedy_backup
from rl_training.algorithms.distributional_losses import clipped_share, cross_entropy, entropy, project
from rl_training.algorithms.q_learner import LearnerOptions, QLearner, Schedule
from rl_training.algorithms.rules import Rule, TDLoss, bellman, mixed
from rl_training.algorithms.views import TransitionView
from rl_training.models.network import ValueNetwork


class CategoricalRule(Rule):
    """Cross-entropy to the projected distribution of R + Γ·Z'. Outputs are logits over the N atoms of [v_min, v_max].

    The priority is the KL divergence from target to prediction (arXiv:1710.02298), which unlike the cross-entropy falls to 0 where the
    prediction is right; the TD error reported is the difference of the means. With `value_rescaling` atoms and means are in h-space.
    """

    def __init__(self, *, num_atoms: int, v_min: float, v_max: float, value_rescaling: bool = False) -> None:
        if num_atoms < 2 or not v_min < v_max:
            raise ValueError(f"a support needs num_atoms >= 2 and v_min < v_max, got {num_atoms}, {v_min} and {v_max}")
        self.num_atoms, self.v_min, self.v_max, self.value_rescaling = num_atoms, v_min, v_max, value_rescaling
        self.support = torch.linspace(v_min, v_max, num_atoms)
        self.extra_metrics = {"clipped_share": self.clipped_share}

    def _moved(self, rewards: Tensor, discounts: Tensor) -> Tensor:
        """Where a reward and a discount [...] take the atoms, [..., N]."""
        self.support = self.support.to(rewards.device)  # moves once, then is free
        support = self.support.expand(*rewards.shape, self.num_atoms)
        return bellman(rewards, discounts, Bootstrap(support), value_rescaling=self.value_rescaling)

    def project(self, probabilities: Tensor, atoms: Tensor) -> Tensor:
        return project(probabilities, atoms, self.v_min, self.v_max)

    def target(self, bootstrap: Bootstrap, rewards: Tensor, discounts: Tensor) -> Tensor:
        """The projected distribution, [..., N]: after a termination Γ is 0 and all mass is at R. Of a mixture, that of its actions'
        distributions, each moved by its own shift."""
        moved = self._moved(*_per_action(bootstrap, rewards, discounts))
        target = self.project(torch.softmax(bootstrap.outputs, -1), moved)
        return target if bootstrap.probabilities is None else mixed(target, bootstrap.probabilities, None)

    def clipped_share(self, bootstrap: Bootstrap, rewards: Tensor, discounts: Tensor) -> Tensor:
        """The target mass that left the support: returns that this run has and its atoms cannot say, [...]."""
        moved = self._moved(*_per_action(bootstrap, rewards, discounts))
        share = clipped_share(torch.softmax(bootstrap.outputs, -1), moved, self.v_min, self.v_max)
        return share if bootstrap.probabilities is None else mixed(share, bootstrap.probabilities, None)

    def loss(self, chosen: Tensor, target: Tensor, taus: Tensor | None = None) -> Tensor:
        return cross_entropy(chosen, target)

    def q_value(self, chosen: Tensor) -> Tensor:
        return torch.softmax(chosen, -1) @ self.support

    def target_value(self, target: Tensor) -> Tensor:
        return target @ self.support

    def priority(self, td: TDLoss) -> Tensor:
        return (td.loss.detach() - entropy(td.target)).clamp_(min=0)  # rounding alone makes it negative


def _per_action(bootstrap: Bootstrap, rewards: Tensor, discounts: Tensor) -> tuple[Tensor, Tensor]:
    """Of a mixture [..., A], since R + Γ(z + shift) = (R + Γ·shift) + Γz; else as they are."""
    if bootstrap.probabilities is None:
        return rewards, discounts
    rewards, discounts = (x.unsqueeze(-1).expand_as(bootstrap.probabilities) for x in (rewards, discounts))
    return rewards if bootstrap.shift is None else rewards + discounts * bootstrap.shift, discounts


class C51DQN(QLearner):
    """DQN's update (dqn.py) with m = Φ(R + Γ·Z⁻(s', a*)), a* greedy in the mean, for a target and −Σ m log p for a loss.

    `q_network` gives logits [B, A, num_atoms] on the atoms of [v_min, v_max], as MLPC51QNetwork does; the support is the network's, and one
    given here must be the same. `last_priorities` is the KL divergence, `last_td_errors` the difference of the means.
    """

    def __init__(
        self,
        q_network: ValueNetwork,
        learning_rate: float | Schedule,
        gamma: float,
        target_update_interval: int,
        double_q: bool = False,
        *,
        num_atoms: int | None = None,
        v_min: float | None = None,
        v_max: float | None = None,
        backup: Backup | None = None,
        **options: Unpack[LearnerOptions],
    ) -> None:
        head: Any = q_network.head  # a CategoricalHead, or one that says as much of itself
        for name, given in (("num_atoms", num_atoms), ("v_min", v_min), ("v_max", v_max)):
            if given is not None and given != getattr(head, name):
                raise ValueError(f"{name} is {given}, but the network's head has {getattr(head, name)}")
        super().__init__(
            q_network,
            view=TransitionView(gamma=gamma),
            backup=backup or greedy_backup(double_q),
            rule=CategoricalRule(num_atoms=head.num_atoms, v_min=head.v_min, v_max=head.v_max),
            learning_rate=learning_rate,
            target_update_interval=target_update_interval,
            **options,
        )

"""C51 (arXiv:1707.06887): the return's distribution on fixed atoms, by cross-entropy to its projected Bellman update."""

from __future__ import annotations

from typing import Any

from typing_extensions import Unpack

from rl_training.algorithms.q_learner import LearnerOptions, QLearner, Schedule
from rl_training.algorithms.rules import CategoricalRule
from rl_training.algorithms.views import TransitionView


class C51DQN(QLearner):
    """m = Φ(R + Γ·Z⁻(s', a*)) with a* greedy in the mean; loss −Σ m log p.

    `q_network` gives logits [B, A, num_atoms] on the atoms of [v_min, v_max], as MLPC51QNetwork does; the support is the network's, and one
    given here must be the same. `last_priorities` is the KL divergence, `last_td_errors` the difference of the means.
    """

    def __init__(
        self,
        q_network: Any,
        learning_rate: float | Schedule,
        gamma: float,
        target_update_interval: int,
        *,
        num_atoms: int | None = None,
        v_min: float | None = None,
        v_max: float | None = None,
        **options: Unpack[LearnerOptions],
    ) -> None:
        head = q_network.head
        for name, given in (("num_atoms", num_atoms), ("v_min", v_min), ("v_max", v_max)):
            if given is not None and given != getattr(head, name):
                raise ValueError(f"{name} is {given}, but the network's head has {getattr(head, name)}")
        super().__init__(
            q_network,
            view=TransitionView(gamma=gamma),
            rule=CategoricalRule(num_atoms=head.num_atoms, v_min=head.v_min, v_max=head.v_max),
            learning_rate=learning_rate,
            target_update_interval=target_update_interval,
            **options,
        )

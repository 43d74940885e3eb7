"""Recurrent PPO (arXiv:2205.11104): PPO on whole sequences of a network with memory, each unrolled from its true starting state."""

from __future__ import annotations

from torch import Tensor

from rl_training.algorithms.ppo import PPO
from rl_training.algorithms.rollouts import SequenceRolloutView, initial_state, previous_in
from rl_training.types import Batch


class RecurrentPPO(PPO):
    """PPO on the sequences of a rollout (see SequenceRolloutView): one LSTM call per minibatch, padding masked. The state a sequence begins
    from stays as it was through the epochs, while the weights move. `minibatch_size` counts steps."""

    view = SequenceRolloutView

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        outputs, values = self.actor_critic(batch["obs"], initial_state(batch), *previous_in(batch))
        return outputs, values

"""Recurrent PPO (arXiv:2205.11104): PPO on whole sequences of a network with memory, each unrolled from its true starting state."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from rl_training.algorithms.ppo import PPO, Evaluation
from rl_training.data.rollout_buffer import RolloutBuffer, Sequences
from rl_training.models.network import CoreState, reads_previous
from rl_training.types import Array, Batch, Previous, stored_state


class RecurrentPPO(PPO):
    """A sequence is what one episode did within a rollout, so nothing starts inside it: one LSTM call per minibatch, padding masked.

    It begins from zeros with its episode, or from the state the network carried into the rollout (kept as it was through the epochs,
    while the weights move). `minibatch_size` counts steps; a minibatch takes whole sequences until its share of them is reached.
    """

    def _epochs(self, rollout: RolloutBuffer, items: Batch) -> Iterator[Batch]:
        sequences = rollout.sequences()
        states = rollout.initial_states(sequences)
        return rollout.sequence_minibatches(items, sequences, states, self.minibatch_size, epochs=self.update_epochs)

    @torch.no_grad()
    def evaluate(self, rollout: RolloutBuffer) -> Evaluation:
        """One unroll over all sequences, each one step longer than its actions: the last observation it led to closes it, so that the
        value bootstrapped from comes from the carried state too."""
        sequences = rollout.sequences()
        shape = rollout.field("valid").shape
        obs, next_obs = (rollout.field(name).reshape(-1, *rollout.field(name).shape[2:]) for name in ("obs", "next_obs"))
        columns = np.arange(len(sequences.env))
        lengths = sequences.mask.sum(0).astype(np.int64)
        unrolled = obs[np.concatenate([sequences.steps, sequences.steps[-1:]])]  # [L + 1, S, ...]
        unrolled[lengths, columns] = next_obs[sequences.steps[-1]]
        states = rollout.initial_states(sequences)
        previous = self._previous(rollout, sequences, lengths)
        outputs, values = self.actor_critic(torch.from_numpy(unrolled).to(rollout.device), states, *previous)
        index = torch.from_numpy(sequences.steps.reshape(-1)).to(rollout.device)
        items = {name: x.index_select(0, index).view(*sequences.steps.shape, *x.shape[1:]) for name, x in rollout.items().items()}
        log_probs = self.policy(outputs[:-1], items).log_prob.cpu().numpy()
        host = values.cpu().numpy()
        real = sequences.mask > 0
        found = [np.zeros(shape, np.float32) for _ in range(3)]
        for array, per_sequence in zip(found, (log_probs, host[:-1], host[1:]), strict=True):
            array.reshape(-1)[sequences.steps[real]] = per_sequence[real]
        return Evaluation(*found)

    def _previous(self, rollout: RolloutBuffer, sequences: Sequences, lengths: Array) -> tuple[Previous, ...]:
        """What led to each observation of these sequences, one step longer than their actions; () where the network does not read it."""
        if not reads_previous(self.actor_critic):
            return ()
        columns, last = np.arange(len(sequences.env)), sequences.steps[-1]
        found = []
        for stored, then in (("previous_actions", "actions"), ("previous_rewards", "rewards")):
            led = rollout.field(stored).reshape(-1)[np.concatenate([sequences.steps, sequences.steps[-1:]])]
            led[lengths, columns] = rollout.field(then).reshape(-1)[last]
            found.append(torch.from_numpy(led).to(rollout.device))
        return (Previous(*found),)

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        outputs, values = self.actor_critic(batch["obs"], initial_state(batch), *previous_in(batch))
        return outputs, values


def previous_in(batch: Batch) -> tuple[Previous, ...]:
    """What led to the observations of a minibatch; () where it does not say."""
    return (Previous(batch["previous_actions"], batch["previous_rewards"]),) if "previous_actions" in batch else ()


def initial_state(batch: Batch) -> CoreState | None:
    """The state its sequences begin from; None: zeros."""
    return stored_state(batch) or None

"""`initial_priority: actor`: how surprising an item is to the network that acted, by the learner's own rule (arXiv:1803.00933, §3).

The acting network is its own target. In return a new item is drawn by what is in it, not by the largest priority so far, before the learner
has seen it: with many actors most items are otherwise drawn once for nothing.
"""

from __future__ import annotations

import torch

from rl_training.algorithms.drqn import sequence_priorities
from rl_training.algorithms.q_learner import QLearner
from rl_training.algorithms.rules import TDLoss
from rl_training.data.recurrent_replay_buffer import time_first
from rl_training.data.sequences import ChunkAssembler
from rl_training.models.modes import evaluating
from rl_training.models.network import Network
from rl_training.runtime.actor import ItemMaker
from rl_training.types import Array, Batch, Items


class FirstPriorities:
    """Raw priorities of finished items, as `QLearner.priorities` would give them."""

    def __init__(self, learner: QLearner, *, seed: int) -> None:
        self._view, self._backup, self._rule = learner.view, learner.backup, learner.rule
        self._eta = getattr(learner, "priority_eta", 0.0)  # of chunks
        self._seed = seed
        self._generator: torch.Generator | None = None

    def __call__(self, items: Items, network: Network, maker: ItemMaker) -> Array:
        """[items] float32. maker: what made them."""
        if self._generator is None:  # made where it is used
            self._generator = torch.Generator().manual_seed(self._seed)
        with torch.inference_mode(), evaluating(network):
            aligned = self._view.align(as_batch(items, maker), network, network, backup=self._backup, generator=self._generator)
            goal = self._rule.target(aligned.bootstrap, aligned.rewards, aligned.discounts)
            errors = TDLoss(self._rule, aligned.chosen, goal, aligned.taus).priority
            priorities = errors if aligned.mask is None else sequence_priorities(errors, aligned.mask, self._eta)
        array: Array = priorities.numpy()
        return array


def as_batch(items: Items, maker: ItemMaker) -> Batch:
    """Items as a replay would give them in a batch."""
    batch = {name: torch.tensor(value) for name, value in items.items()}
    if not isinstance(maker, ChunkAssembler):
        return batch
    time = torch.arange(maker.layout.length)[:, None]
    return time_first(batch, time=time, trained=time >= maker.layout.burn_in, extra=maker.carried)

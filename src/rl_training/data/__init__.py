"""Replay and rollout buffers, and what they are made of."""

from __future__ import annotations

from rl_training.data.n_step import NStepAccumulator
from rl_training.data.prioritized_recurrent_replay_buffer import PrioritizedRecurrentReplayBuffer
from rl_training.data.prioritized_replay_buffer import PrioritizedReplayBuffer
from rl_training.data.recurrent_replay_buffer import RecurrentReplayBuffer
from rl_training.data.replay_buffer import ReplayBuffer
from rl_training.data.rollout_buffer import RolloutBuffer, generalized_advantages

__all__ = [
    "NStepAccumulator",
    "PrioritizedRecurrentReplayBuffer",
    "PrioritizedReplayBuffer",
    "RecurrentReplayBuffer",
    "ReplayBuffer",
    "RolloutBuffer",
    "generalized_advantages",
]

"""The managed classes: train, evaluate, resume, predict. Importing them loads no torch; using them does."""

from __future__ import annotations

from rl_training.api.algorithms import DQN, DoubleDQN, DuelingDQN, ManagedAlgorithm, NoisyDQN, NStepDQN, PrioritizedDQN
from rl_training.experiment.config import TrainConfig

__all__ = ["DQN", "DoubleDQN", "DuelingDQN", "ManagedAlgorithm", "NStepDQN", "NoisyDQN", "PrioritizedDQN", "TrainConfig"]

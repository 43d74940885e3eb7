"""The managed classes: train, evaluate, resume, predict. Importing them loads no torch; using them does."""

from __future__ import annotations

from rl_training.api.algorithms import (
    BTR,
    C51DQN,
    DQN,
    DRQN,
    IQN,
    PPO,
    PQN,
    QRDQN,
    R2D2,
    DoubleDQN,
    DuelingDQN,
    ManagedAlgorithm,
    MunchausenDQN,
    MunchausenIQN,
    NoisyDQN,
    NStepDQN,
    PrioritizedDQN,
    RainbowDQN,
    RecurrentPPO,
    RecurrentPQN,
)
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.network_parts import register_core, register_torso
from rl_training.experiment.registry import register_algorithm
from rl_training.experiment.schedules import register_schedule
from rl_training.runtime.callbacks import Callback, CheckpointEvery, SaveBest, StopAtReturn

__all__ = [
    "BTR",
    "C51DQN",
    "DQN",
    "DRQN",
    "IQN",
    "PPO",
    "PQN",
    "QRDQN",
    "R2D2",
    "Callback",
    "CheckpointEvery",
    "DoubleDQN",
    "DuelingDQN",
    "ManagedAlgorithm",
    "MunchausenDQN",
    "MunchausenIQN",
    "NStepDQN",
    "NoisyDQN",
    "PrioritizedDQN",
    "RainbowDQN",
    "RecurrentPPO",
    "RecurrentPQN",
    "SaveBest",
    "StopAtReturn",
    "TrainConfig",
    "register_algorithm",
    "register_core",
    "register_schedule",
    "register_torso",
]

"""Every value-based row, small: its parts as its trainer builds them, and batches its replay gave."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from rl_training.algorithms.r2d2 import R2D2
from rl_training.experiment.config import TrainConfig
from rl_training.runtime import dqn_trainer, drqn_trainer
from rl_training.runtime.accelerate import accelerate_learner
from rl_training.runtime.actor import Actor
from rl_training.runtime.behaviour import EpsilonGreedy
from rl_training.runtime.trainer_setup import prepare
from rl_training.runtime.value_based import ValueParts

CPU = torch.device("cpu")
RECURRENT = ("drqn", "r2d2")
_SUPPORT = {"v_min": -100.0, "v_max": 100.0, "num_atoms": 11}
_SEQUENCES = {"features_dim": 8, "recurrent_hidden_size": 8, "sequence_length": 6, "head_hidden_sizes": [8]}
ROWS: dict[str, dict[str, Any]] = {
    "dqn": {"lr_schedule": "linear"},
    "double_dqn": {"tau": 0.5, "optimizer": "radam", "weight_decay": 0.01, "layer_norm": True},
    "dueling_dqn": {"max_grad_norm": 0.1, "activation": "elu", "optimizer": "adamw", "weight_decay": 0.01},
    "noisy_dqn": {"max_grad_norm": None, "layer_norm": True, "activation": "tanh"},
    "prioritized_dqn": {},
    "n_step_dqn": {"n_step": 3},
    "c51_dqn": _SUPPORT,
    "qr_dqn": {"num_quantiles": 7},
    "iqn": {"num_quantiles": 5, "num_target_quantiles": 6, "embedding_dim": 8, "layer_norm": True, "activation": "silu"},
    "rainbow_dqn": _SUPPORT,
    "munchausen_dqn": {"n_step": 3},
    "munchausen_iqn": {"num_quantiles": 5, "num_target_quantiles": 6, "embedding_dim": 8, "munchausen_tau": 0.5},
    "btr": {"num_quantiles": 5, "num_target_quantiles": 6, "embedding_dim": 8},
    "drqn": {**_SEQUENCES, "layer_norm": True, "activation": "gelu", "optimizer": "radam"},
    "r2d2": {**_SEQUENCES, "burn_in": 2, "n_step": 2, "value_rescaling": True},
}
"""Row → settings that between them use every option a step has."""

ADAM = {"learning_rate": 1e-3, "adam_eps": 1e-3}
"""For tests that compare two ways to compute an update by the parameters they end with.

Beside Adam's usual eps of 1e-8 a gradient that is only rounding moves its parameter by a whole step. With eps = lr a step is off by no more
than the gradient is: 1e-7, where losses are of order 1.
"""
LEARNED = {"rtol": 1e-4, "atol": 1e-5}
"""How near two such ways are after 100 updates: 100 · 1e-7. Parameters move by some 1e-2 meanwhile."""


def config_of(algo: str, **changes: Any) -> TrainConfig:
    kwargs = {"hidden_sizes": [16, 16], "batch_size": 16, "buffer_capacity": 600, "target_update_interval": 40, "train_frequency": 1}
    kwargs |= {**ADAM, "learning_starts": 50, **ROWS[algo], **changes.pop("algo_kwargs", {})}
    settings: dict[str, Any] = {"env_id": "CartPole-v1", "seed": 3, "total_timesteps": 400, "output_dir": "unused", "device": "cpu"}
    return TrainConfig(algo=algo, algo_kwargs=kwargs, **{"num_envs": 2, **settings, **changes})


def parts_of(algo: str, env: Any = None, **changes: Any) -> ValueParts:
    """The row's network, learner and replay, with a few hundred random steps in the replay."""
    setup = prepare(config_of(algo, **changes), env)
    if algo in RECURRENT:
        parts = drqn_trainer.build_parts(setup, R2D2) if algo == "r2d2" else drqn_trainer.build_parts(setup)
    else:
        parts = dqn_trainer.build_parts(setup)
    accelerate_learner(parts.learner)  # as a run does
    random = EpsilonGreedy(lambda env_steps: 1.0, num_actions=setup.spaces["num_actions"], learning_starts=0, seed=0)
    actor = Actor(setup.envs, parts.network, parts.feed, behaviour=random, device=setup.device, seed=0)
    for step in range(150):
        actor.step(step)
    parts.feed.flush()
    setup.envs.close()
    return parts


def batches(replay: Any, count: int, size: int = 16) -> Iterator[Any]:
    for _ in range(count):
        yield replay.sample(size)

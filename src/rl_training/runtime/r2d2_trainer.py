"""`train_r2d2`: DRQN's wiring with R2D2's update rule; prioritized replay and double-Q come with the row."""

from __future__ import annotations

from typing import Any

from rl_training.algorithms.backups import Backup
from rl_training.algorithms.r2d2 import R2D2
from rl_training.algorithms.rules import Rule
from rl_training.experiment.config import TrainConfig
from rl_training.runtime.drqn_trainer import build_network, train_recurrent
from rl_training.runtime.run import RunOptions, TrainResult

__all__ = ["build_network", "train_r2d2"]


def train_r2d2(
    config: TrainConfig, run_suffix: str | None = None, *, rule: Rule | None = None, backup: Backup | None = None, **options: Any
) -> TrainResult:
    """Train R2D2. `options`, `rule` and `backup` are as train_drqn's."""
    return train_recurrent(R2D2, config, RunOptions(run_suffix=run_suffix, **options), rule, backup)

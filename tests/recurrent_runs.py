"""What the smoke tests of the recurrent trainers share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rl_training.experiment.config import TrainConfig
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.run import Run

VELOCITY_FREE: dict[str, Any] = {"wrappers": [{"keep": {"indices": [0, 2]}}]}


def small_config(folder: Path, algo: str, **changes: Any) -> TrainConfig:
    """A run of 300 steps on velocity-free CartPole that updates from step 100 on."""
    settings: dict[str, Any] = {
        "hidden_sizes": [],
        "features_dim": 8,
        "recurrent_hidden_size": 8,
        "sequence_length": 6,
        "batch_size": 8,
        "buffer_capacity": 600,
        "learning_starts": 100,
        "train_frequency": 4,
    }
    settings |= changes.pop("algo_kwargs", {})
    values = {"env_id": "CartPole-v1", "env_kwargs": VELOCITY_FREE, "seed": 5, "total_timesteps": 300, "output_dir": str(folder)}
    often = {"eval_episodes": 2, "eval_interval": 150, "log_interval": 50, "checkpoint_interval": 150, "threads": 1}
    return TrainConfig(**{"algo": algo, **values, **often, **changes, "algo_kwargs": settings})


class Keep(Callback):
    """The parts of a run as they were at its end."""

    parts: Any = None

    def on_end(self, run: Run) -> None:
        self.parts = run.parts

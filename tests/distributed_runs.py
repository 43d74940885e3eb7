"""Small distributed runs on a Ray of one process, and what they are watched by."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fake_ray import FakeCluster
from resume_harness import run_config
from rl_training.experiment.config import TrainConfig
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.distributed import actor_process
from rl_training.runtime.distributed import start as start_module
from rl_training.runtime.run import Run
from rl_training.types import EnvStep

LOCKSTEP = {"actors": 1, "lockstep": True}


def config(folder: Path, algo: str = "dqn", *, steps: int = 240, num_envs: int = 4, **changes: Any) -> TrainConfig:
    return TrainConfig(
        **{**run_config(algo, num_envs=num_envs, total_timesteps=steps), "output_dir": folder, "log_interval": 60, **changes}
    )


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeCluster:
    made = FakeCluster()
    monkeypatch.setattr(start_module, "Cluster", lambda config, in_flight_bytes: made)
    monkeypatch.setattr(start_module, "require_answer", lambda address: None)
    monkeypatch.setattr(actor_process, "fetch", made.ray.get)
    return made


class Steps(Callback):
    """What a run was told."""

    def __init__(self) -> None:
        self.steps: list[EnvStep] = []
        self.updates: list[tuple[int, int]] = []  # (environment steps, updates) after every block
        self.records: list[dict[str, float]] = []

    def on_step(self, run: Run, step: EnvStep) -> None:
        self.steps.append(step)
        self.updates.append((run.clock.env_steps, run.clock.updates))

    def on_log(self, run: Run, record: Any) -> None:
        self.records.append(dict(record))


class Killer(Callback):
    """Kills an actor's process after so many blocks."""

    def __init__(self, fake: FakeCluster, place: int, after: int) -> None:
        self.fake, self.place, self.after = fake, place, after

    def on_step(self, run: Run, step: EnvStep) -> None:
        self.after -= 1
        if self.after == 0:
            self.fake.process(self.place).alive = False

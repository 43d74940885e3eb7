"""`RL_TRAINING_SPEED=0`: without what is there for speed alone every row trains, and the run says so."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

import rl_training.speed
from rl_training.errors import ConfigError
from rl_training.experiment.config import TrainConfig
from rl_training.runtime.accelerate import resolve_compile
from rl_training.runtime.workflows import train
from value_rows import CPU, ROWS, config_of, parts_of

POLICIES: dict[str, dict[str, Any]] = {
    "ppo": {"num_steps": 20, "minibatch_size": 20, "update_epochs": 2, "hidden_sizes": [8]},
    "pqn": {"num_steps": 20, "minibatch_size": 20, "update_epochs": 2, "hidden_sizes": [8]},
    "recurrent_pqn": {"num_steps": 20, "minibatch_size": 20, "update_epochs": 2, "hidden_sizes": [8], "recurrent_hidden_size": 8},
    "recurrent_ppo": {"num_steps": 20, "minibatch_size": 20, "update_epochs": 2, "hidden_sizes": [8], "recurrent_hidden_size": 8},
}


@pytest.fixture
def no_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the folder and numba were not there: importing either raises."""
    monkeypatch.setenv("RL_TRAINING_SPEED", "0")
    folder = Path(rl_training.speed.__file__).parent
    names = ["numba", "rl_training.speed", "rl_training.data.numba_sum_tree"]
    for name in names + [f"rl_training.speed.{file.stem}" for file in folder.glob("*.py")]:
        monkeypatch.setitem(sys.modules, name, None)


def small(algo: str, output: Path) -> TrainConfig:
    reports: dict[str, Any] = {"output_dir": str(output), "eval_interval": 0, "eval_episodes": 1, "total_timesteps": 90, "log_interval": 0}
    if algo in ROWS:
        return config_of(algo, **reports)
    return TrainConfig(algo=algo, env_id="CartPole-v1", seed=1, num_envs=2, device="cpu", algo_kwargs=POLICIES[algo], **reports)


@pytest.mark.parametrize("algo", [*ROWS, *POLICIES])
@pytest.mark.usefixtures("no_speed")
def test_every_row_trains_without(algo: str, tmp_path: Path) -> None:
    result = train(small(algo, tmp_path))
    assert result.metrics["num_updates"] > 3
    assert json.loads((result.run_dir / "metadata.json").read_text())["speed"] == "off (RL_TRAINING_SPEED=0)"


@pytest.mark.usefixtures("no_speed")
def test_what_is_plain_stays_plain() -> None:
    learner = parts_of("rainbow_dqn").learner
    assert learner.gradient == learner.autograd and learner.gradient_step == learner.eager_step
    assert type(learner.rule).__module__ == "rl_training.algorithms.c51_dqn"
    assert not resolve_compile("auto", device=CPU, planned_updates=10**9, recurrent=False).on
    with pytest.raises(ConfigError, match="compile: true cannot be had: RL_TRAINING_SPEED=0"):
        resolve_compile(True, device=CPU, planned_updates=10**9, recurrent=False)


def test_with_it_the_run_says_on(tmp_path: Path) -> None:
    result = train(small("dqn", tmp_path))
    assert json.loads((result.run_dir / "metadata.json").read_text())["speed"] == "on"

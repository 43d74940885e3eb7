"""Rainbow is all six of its parts (arXiv:1710.02298): asserted on the row, and on a run's own objects."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from rl_training.algorithms.backups import DoubleBackup
from rl_training.data import PrioritizedReplayBuffer
from rl_training.errors import ConfigError
from rl_training.experiment.config import TrainConfig, load_config
from rl_training.experiment.registry import get_algorithm_spec
from rl_training.models import CategoricalHead
from rl_training.models.layers import NoisyLinear
from rl_training.runtime.callbacks import Callback


def config_of(folder: Path, **algo_kwargs: Any) -> TrainConfig:
    sizes = {"learning_starts": 40, "hidden_sizes": [8, 8], "buffer_capacity": 500, "batch_size": 8}
    kwargs: dict[str, Any] = {**sizes, "v_min": 0.0, "v_max": 100.0, **algo_kwargs}
    return TrainConfig(
        algo="rainbow_dqn",
        env_id="CartPole-v1",
        seed=1,
        total_timesteps=120,
        output_dir=str(folder),
        eval_episodes=1,
        algo_kwargs=kwargs,
    )


def test_the_row_is_all_six_parts() -> None:
    settings = get_algorithm_spec("rainbow_dqn").parse({})
    parts = {name: getattr(settings, name) for name in ("head", "dueling", "noisy", "double_q", "prioritized", "n_step")}
    assert parts == {"head": "categorical", "dueling": True, "noisy": True, "double_q": True, "prioritized": True, "n_step": 3}


@pytest.mark.parametrize(
    "off", [{"dueling": False}, {"noisy": False}, {"double_q": False}, {"prioritized": False}, {"head": "scalar"}, {"n_step": 1}]
)
def test_a_rainbow_without_one_of_them_is_refused(off: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"{next(iter(off))}.*every rainbow_dqn"):
        get_algorithm_spec("rainbow_dqn").parse(off)


def test_a_run_has_all_six_parts_and_explores_by_its_noise_alone(tmp_path: Path) -> None:
    seen: dict[str, Any] = {}

    class Look(Callback):
        def on_start(self, run: Any) -> None:
            seen["parts"] = run.parts

    config = config_of(tmp_path)
    get_algorithm_spec("rainbow_dqn").train_fn(config, callbacks=[Look()])
    parts = seen["parts"]
    network, learner = parts.learner.q_network, parts.learner
    assert isinstance(network.head, CategoricalHead) and network.head.value is not None
    assert all(isinstance(layer, NoisyLinear) for stream in (network.head.advantage, network.head.value) for layer in stream.layers)
    assert isinstance(learner.backup, DoubleBackup)
    assert isinstance(parts.replay, PrioritizedReplayBuffer)
    # γ³ in the replay: three steps were summed
    discounts = parts.replay.sample(64)["discounts"]
    assert bool(torch.isclose(discounts, torch.tensor(0.99**3)).any())
    # ε is 0 once learning starts, 1 before
    assert parts.exploration_rate(39) == 1 and parts.exploration_rate(40) == 0


def test_priorities_are_the_kl_divergence(tmp_path: Path) -> None:
    """What the loop hands to replay is C51's KL, not |δ|."""
    seen: list[Any] = []

    class Look(Callback):
        def on_update(self, run: Any, result: Any) -> None:
            seen[:] = [run.parts.learner]

    get_algorithm_spec("rainbow_dqn").train_fn(config_of(tmp_path), callbacks=[Look()])
    (learner,) = seen
    assert learner.last_priorities.shape == (8,) and float(learner.last_priorities.min()) >= 0
    assert not torch.allclose(learner.last_priorities, learner.last_td_errors)


def test_the_shipped_config_says_what_the_support_is() -> None:
    settings = load_config("configs/rainbow_dqn/cartpole.yaml").settings
    # Rewards of 1: every return lies in [0, 1/(1 − γ)]
    assert (settings.v_min, settings.v_max) == (0.0, pytest.approx(1 / (1 - settings.gamma)))


def test_a_support_that_returns_leave_is_warned_of_once(tmp_path: Path) -> None:
    """CartPole's returns reach 100, an atom at 1 is the last: nearly all mass is clipped."""
    config = config_of(tmp_path, v_min=0.0, v_max=1.0).replace(log_interval=20)
    with pytest.warns(RuntimeWarning, match=r"\d+% of the target's mass lies outside \[v_min, v_max\]") as caught:
        get_algorithm_spec("rainbow_dqn").train_fn(config)
    assert len([w for w in caught if "target's mass" in str(w.message)]) == 1

"""Networks that behave otherwise while they learn: dropout, batch norm, buffers. Acting, evaluation and targets are in evaluation mode."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from learners import batch_of
from rl_training.algorithms import DQN
from rl_training.experiment import registry
from rl_training.experiment.checkpointing import open_checkpoint
from rl_training.experiment.registry import register_algorithm
from rl_training.models.heads import make_head
from rl_training.models.modes import evaluating, has_modes
from rl_training.models.q_network import QNetwork
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.run import Run
from rl_training.runtime.workflows import evaluate_checkpoint, resume_training, train
from test_dqn_trainer_smoke import smoke_config


class Torso(nn.Module):
    """Linear, batch norm, dropout; notes mode and size of its passes."""

    def __init__(self, obs_dim: int, dropout: float) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(obs_dim, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(dropout))
        self.passes: list[tuple[bool, int]] = []

    def forward(self, obs: Tensor) -> Tensor:
        self.passes.append((self.training, len(obs)))
        features: Tensor = self.layers(obs.float())
        return features


def network_of(settings: Any = None, spaces: Any = None, dropout: float = 0.5) -> QNetwork:
    return QNetwork(Torso(4, dropout), make_head("scalar", 8, 2, hidden_sizes=()))


def learner_of(network: QNetwork, tau: float = 1.0) -> DQN:
    return DQN(network, learning_rate=1e-2, gamma=0.9, target_update_interval=10, tau=tau)


@pytest.fixture(params=[0.5])
def row(request: pytest.FixtureRequest) -> Iterator[str]:
    """A row of such networks; the parameter is what is dropped out."""
    before = dict(registry._TABLE)
    build = partial(network_of, dropout=request.param)
    register_algorithm("moded_dqn", trainer="rl_training.runtime.dqn_trainer:train_dqn", network=build, summary="DQN with modes")
    yield "moded_dqn"
    registry._TABLE.clear()
    registry._TABLE.update(before)


def test_evaluating_puts_the_mode_back() -> None:
    network = network_of()
    for training in (True, False):
        network.train(training)
        with pytest.raises(KeyError), evaluating(network):
            assert not any(module.training for module in network.modules())
            raise KeyError
        assert all(module.training is training for module in network.modules())
    assert has_modes(network) and not has_modes(nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2)))


@pytest.mark.parametrize("tau", [1.0, 0.1])
def test_the_target_gets_the_buffers_when_it_follows(tau: float) -> None:
    learner = learner_of(network_of(), tau)
    online, target = (network.torso.layers[1] for network in (learner.q_network, learner.target_network))
    learner.update(batch_of(), global_step=5)
    assert float(online.running_mean.abs().sum()) > 0  # it learns in training mode
    assert not target.running_mean.any() and int(target.num_batches_tracked) == 0  # and the target only follows
    learner.update(batch_of(seed=1), global_step=10)
    assert torch.equal(online.running_mean, target.running_mean) and torch.equal(online.running_var, target.running_var)
    assert int(target.num_batches_tracked) == int(online.num_batches_tracked) > 0


def test_targets_are_not_dropped_out() -> None:
    learner = learner_of(network_of())
    obs = batch_of()["next_obs"]
    assert torch.equal(learner.target_network(obs), learner.target_network(obs))
    assert not torch.equal(learner.q_network(obs), learner.q_network(obs))
    assert learner.q_network.training and not learner.target_network.training


@pytest.mark.parametrize("row", [0.0], indirect=True)  # dropout draws from torch's global generator, which a run leaves alone
def test_buffers_are_saved_and_resumed(row: str, tmp_path: Path) -> None:
    result = train(smoke_config(tmp_path / "whole", row, total_timesteps=200))
    halves = train(smoke_config(tmp_path / "halves", row, total_timesteps=100, schedule_timesteps=200))
    halves = resume_training(halves.run_dir, total_timesteps=200)
    whole, resumed = (open_checkpoint(each.checkpoint_path) for each in (result, halves))
    for name, saved in whole.load_model().items():
        if "running" in name:
            assert saved.abs().sum() > 0 and torch.equal(saved, resumed.load_model()[name])
    for name, saved in whole.load_training()["learner"]["target_network"].items():
        if "running" in name:
            assert torch.equal(saved, resumed.load_training()["learner"]["target_network"][name])


def test_a_run_asks_in_evaluation_mode_and_learns_in_training_mode(row: str, tmp_path: Path) -> None:
    """With one environment a batch norm in training mode would refuse the single observation."""
    seen: dict[str, Any] = {}

    class Watch(Callback):
        def on_start(self, run: Run) -> None:
            seen["network"] = run.parts.learner.q_network

        def on_eval(self, run: Run, metrics: Any) -> None:
            seen["after"] = seen["network"].training

    config = smoke_config(tmp_path, row, total_timesteps=100, algo_kwargs={"exploration_fraction": 0.0})
    result = train(config, callbacks=[Watch()])
    passes = seen["network"].torso.passes
    assert {size for training, size in passes if training} == {16}  # the batches learned from
    assert {size for training, size in passes if not training} >= {1, 2}  # acting, and the evaluation of two episodes
    assert seen["after"] is True
    # what was measured in the run is what anybody measures afterwards
    assert evaluate_checkpoint(result.checkpoint_path, num_episodes=2)["eval_return_mean"] == result.metrics["eval_return_mean"]
    obs = np.zeros((2, 4), np.float32)
    assert torch.equal(*(seen["network"].eval().q_values(torch.from_numpy(obs)) for _ in range(2)))

"""What can be imported from where, and that looking costs nothing."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

import rl_training
from rl_training import api
from rl_training.api.managed import _CLASSES
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.registry import algorithm_names

CLASSES = {
    "dqn": "DQN",
    "double_dqn": "DoubleDQN",
    "dueling_dqn": "DuelingDQN",
    "noisy_dqn": "NoisyDQN",
    "prioritized_dqn": "PrioritizedDQN",
    "n_step_dqn": "NStepDQN",
    "c51_dqn": "C51DQN",
    "qr_dqn": "QRDQN",
    "iqn": "IQN",
    "rainbow_dqn": "RainbowDQN",
    "munchausen_dqn": "MunchausenDQN",
    "munchausen_iqn": "MunchausenIQN",
    "btr": "BTR",
    "drqn": "DRQN",
    "r2d2": "R2D2",
    "ppo": "PPO",
    "recurrent_ppo": "RecurrentPPO",
    "pqn": "PQN",
    "recurrent_pqn": "RecurrentPQN",
}


@pytest.mark.parametrize("row", algorithm_names())
def test_every_row_has_its_class(row: str) -> None:
    name = CLASSES[row]
    managed = getattr(rl_training, name)
    assert managed is getattr(api, name)
    assert managed.row == managed.algo_name == row and _CLASSES[row] == name
    assert issubclass(managed, api.ManagedAlgorithm)
    assert name in rl_training.__all__ and name in api.__all__ and name in dir(rl_training)
    assert managed.__doc__ and managed.__doc__ != api.ManagedAlgorithm.__doc__


def test_the_config_is_exported() -> None:
    assert rl_training.TrainConfig is api.TrainConfig is TrainConfig


@pytest.mark.parametrize("package", ["rl_training", "rl_training.api", "rl_training.algorithms", "rl_training.models", "rl_training.data"])
def test_everything_promised_is_there(package: str) -> None:
    module = importlib.import_module(package)
    assert module.__all__ and len(set(module.__all__)) == len(module.__all__)
    for name in module.__all__:
        assert getattr(module, name) is not None


@pytest.mark.parametrize(
    ("module", "names"),
    [
        ("rl_training.algorithms", ["DQN", "dqn_loss", "PPO", "RecurrentPPO"]),
        ("rl_training.models", ["MLPQNetwork", "MLPActorCritic", "LSTMActorCritic"]),
        ("rl_training.data", ["ReplayBuffer", "PrioritizedReplayBuffer", "NStepAccumulator", "RolloutBuffer"]),
    ],
)
def test_parts(module: str, names: list[str]) -> None:
    for name in names:
        assert hasattr(importlib.import_module(module), name)


def test_the_trainer_and_the_rule_share_a_name_and_nothing_else() -> None:
    from rl_training import algorithms

    assert rl_training.DQN is not algorithms.DQN


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'DQNN'"):
        rl_training.DQNN  # noqa: B018  (the access is what is tested)
    with pytest.raises(ImportError):
        importlib.import_module("rl_training.nothing")


def test_making_an_agent_loads_no_torch() -> None:
    code = "import sys; from rl_training import DQN; DQN('CartPole-v1', learning_rate=1e-3); assert 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr

"""`train_recurrent_pqn`: PQN's wiring with a recurrent network."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rl_training.algorithms.pqn import RecurrentPQN
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.settings import RecurrentPQNSettings
from rl_training.models.heads import HeadKeywords
from rl_training.models.network import is_recurrent_value_network
from rl_training.models.recurrent import RecurrentQNetwork
from rl_training.runtime.drqn_trainer import recurrent_network
from rl_training.runtime.pqn_trainer import train_q_network
from rl_training.runtime.run import RunOptions, TrainResult
from rl_training.runtime.trainer_setup import prepare


def build_network(settings: RecurrentPQNSettings, spaces: Mapping[str, Any]) -> RecurrentQNetwork:
    keywords = HeadKeywords(dueling=settings.dueling, activation=settings.activation, layer_norm=settings.layer_norm)
    return recurrent_network(settings, spaces, "scalar", **keywords)


def train_recurrent_pqn(config: TrainConfig, run_suffix: str | None = None, **options: Any) -> TrainResult:
    """Train recurrent PQN. `options` are those of RunOptions: callbacks, env, resume_from."""
    run_options = RunOptions(run_suffix=run_suffix, **options)
    setup = prepare(config, run_options.env)
    settings = config.settings
    assert isinstance(settings, RecurrentPQNSettings)  # the row has these
    if not is_recurrent_value_network(setup.network):
        raise setup.wrong_network("a recurrent Q-network")
    return train_q_network(setup, settings, run_options, network=setup.network, algorithm=RecurrentPQN)

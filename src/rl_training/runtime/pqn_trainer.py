"""`train_pqn`, and what recurrent PQN's trainer shares with it: Q-learning on rollouts, with ε-greedy actions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rl_training.algorithms.pqn import PQN
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.network_parts import make_torso
from rl_training.experiment.settings import PQNSettings
from rl_training.models.build import build_q_network
from rl_training.models.network import Network, is_value_network
from rl_training.models.q_network import QNetwork
from rl_training.runtime import schedules
from rl_training.runtime.behaviour import EpsilonGreedy
from rl_training.runtime.rollout_based import rollout_learner_keywords, train_from_rollouts
from rl_training.runtime.run import RunOptions, TrainResult
from rl_training.runtime.trainer_setup import Setup, prepare
from rl_training.runtime.value_based import DRAWN_AHEAD


def build_network(settings: PQNSettings, spaces: Mapping[str, Any]) -> QNetwork:
    return build_q_network(
        spaces["obs_shape"],
        spaces["num_actions"],
        hidden_sizes=settings.hidden_sizes,
        torso=make_torso(settings, spaces),
        dueling=settings.dueling,
        activation=settings.activation,
        layer_norm=settings.layer_norm,
    )


def train_q_network(setup: Setup, settings: PQNSettings, options: RunOptions, *, network: Network, algorithm: type[PQN]) -> TrainResult:
    """Into the loop, with ε-greedy actions."""
    learner = algorithm(network, **rollout_learner_keywords(setup, settings), q_lambda=settings.q_lambda)
    epsilon = schedules.epsilon(settings, setup.config.horizon)
    behaviour = EpsilonGreedy(
        epsilon, num_actions=setup.spaces["num_actions"], learning_starts=0, seed=setup.seeds.actor, ahead=DRAWN_AHEAD
    )
    return train_from_rollouts(
        setup,
        settings,
        options,
        network=network,
        learner=learner,
        behaviour=behaviour,
        masks=("action_masks", "next_action_masks"),
        exploration_rate=epsilon,
    )


def train_pqn(config: TrainConfig, run_suffix: str | None = None, **options: Any) -> TrainResult:
    """Train PQN. `options` are those of RunOptions: callbacks, env, resume_from."""
    run_options = RunOptions(run_suffix=run_suffix, **options)
    setup = prepare(config, run_options.env)
    settings = config.settings
    assert isinstance(settings, PQNSettings)  # the row has these
    if not is_value_network(setup.network):
        raise setup.wrong_network("a Q-network")
    return train_q_network(setup, settings, run_options, network=setup.network, algorithm=PQN)

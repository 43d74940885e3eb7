"""`train_recurrent_ppo`: PPO's wiring with a recurrent network."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rl_training.algorithms.recurrent_ppo import RecurrentPPO
from rl_training.errors import ConfigError
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.network_parts import core_maker, make_torso
from rl_training.experiment.settings import RecurrentPPOSettings
from rl_training.models.actor_critic import ActorCritic
from rl_training.models.distributions import make_distribution
from rl_training.models.recurrent import RecurrentActorCritic, recurrent_actor_critic_parts
from rl_training.runtime.ppo_trainer import learner_keywords, train_actor_critic
from rl_training.runtime.run import RunOptions, TrainResult
from rl_training.runtime.trainer_setup import prepare


def build_network(settings: RecurrentPPOSettings, spaces: Mapping[str, Any]) -> RecurrentActorCritic:
    if settings.previous_action_reward and "num_actions" not in spaces:
        raise ConfigError(f"previous_action_reward needs Discrete actions, and this environment's are {spaces['action']['kind']}")
    previous = spaces["num_actions"] if settings.previous_action_reward else 0
    parts = recurrent_actor_critic_parts(
        spaces["obs_shape"],
        make_distribution(spaces["action"]),
        features_dim=settings.features_dim,
        encoder_hidden_sizes=settings.hidden_sizes,
        head_hidden_sizes=settings.head_hidden_sizes,
        hidden_size=settings.recurrent_hidden_size,
        num_layers=settings.recurrent_num_layers,
        make_core=core_maker(settings.core),
        torso=make_torso(settings, spaces),
        previous_actions=previous,
        activation=settings.activation,
        log_std_init=settings.log_std_init,
        layer_norm=settings.layer_norm,
    )
    return RecurrentActorCritic(*parts, previous_actions=previous)


def train_recurrent_ppo(config: TrainConfig, run_suffix: str | None = None, **options: Any) -> TrainResult:
    """Train recurrent PPO. `options` are those of RunOptions: callbacks, env, resume_from."""
    run_options = RunOptions(run_suffix=run_suffix, **options)
    setup = prepare(config, run_options.env)
    settings = config.settings
    assert isinstance(settings, RecurrentPPOSettings)  # the row has these
    network = setup.network
    if not isinstance(network, ActorCritic):
        raise setup.wrong_network("an actor-critic")
    learner = RecurrentPPO(network, **learner_keywords(setup, settings))
    return train_actor_critic(setup, settings, run_options, network=network, learner=learner)

"""`train_ppo`, and what recurrent PPO's trainer shares with it: from typed settings to the parts' plain keywords, and into the loop."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rl_training.algorithms.ppo import PPO
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.network_parts import make_torso
from rl_training.experiment.settings import PPOSettings
from rl_training.models.actor_critic import ActorCritic
from rl_training.models.build import build_actor_critic
from rl_training.models.distributions import make_distribution
from rl_training.runtime import schedules
from rl_training.runtime.behaviour import Sampling
from rl_training.runtime.rollout_based import rollout_learner_keywords, train_from_rollouts
from rl_training.runtime.run import RunOptions, TrainResult
from rl_training.runtime.trainer_setup import Setup, prepare


def build_network(settings: PPOSettings, spaces: Mapping[str, Any]) -> ActorCritic:
    return build_actor_critic(
        spaces["obs_shape"],
        make_distribution(spaces["action"]),
        hidden_sizes=settings.hidden_sizes,
        torso=make_torso(settings, spaces),
        activation=settings.activation,
        log_std_init=settings.log_std_init,
        layer_norm=settings.layer_norm,
    )


def learner_keywords(setup: Setup, settings: PPOSettings) -> dict[str, Any]:
    """What PPO takes beside its network."""
    s = settings
    return {
        **rollout_learner_keywords(setup, s),
        "gae_lambda": s.gae_lambda,
        "clip_coef": schedules.clip_range(s, setup.config.horizon),
        "ent_coef": s.ent_coef,
        "vf_coef": s.vf_coef,
        "vf_clip": s.vf_clip,
        "target_kl": s.target_kl,
        "normalize_advantage": s.normalize_advantage,
    }


def train_actor_critic(setup: Setup, settings: PPOSettings, options: RunOptions, *, network: ActorCritic, learner: PPO) -> TrainResult:
    """Into the loop, with actions drawn from the policy."""
    distribution = network.distribution
    return train_from_rollouts(
        setup,
        settings,
        options,
        network=network,
        learner=learner,
        behaviour=Sampling(distribution, seed=setup.seeds.actor),
        masks=("action_masks",),
        action_shape=distribution.action_shape,
        action_dtype=distribution.action_dtype,
    )


def train_ppo(config: TrainConfig, run_suffix: str | None = None, **options: Any) -> TrainResult:
    """Train PPO. `options` are those of RunOptions: callbacks, env, resume_from."""
    run_options = RunOptions(run_suffix=run_suffix, **options)
    setup = prepare(config, run_options.env)
    settings = config.settings
    assert isinstance(settings, PPOSettings)  # the row has these
    network = setup.network
    if not isinstance(network, ActorCritic):
        raise setup.wrong_network("an actor-critic")
    learner = PPO(network, **learner_keywords(setup, settings))
    return train_actor_critic(setup, settings, run_options, network=network, learner=learner)

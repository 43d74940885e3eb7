"""`train_ppo`, and what recurrent PPO's trainer shares with it: from typed settings to the parts' plain keywords, and into the loop."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from rl_training.algorithms.ppo import PPO
from rl_training.data.rollout_buffer import RolloutBuffer
from rl_training.data.storage import Field
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.network_parts import make_torso
from rl_training.experiment.settings import PPOSettings
from rl_training.models.actor_critic import ActorCritic
from rl_training.models.build import build_actor_critic
from rl_training.models.distributions import make_distribution
from rl_training.runtime import schedules
from rl_training.runtime.accelerate import accelerate_acting, accelerate_learner
from rl_training.runtime.actor import Actor, RolloutFeed
from rl_training.runtime.behaviour import Sampling
from rl_training.runtime.on_policy import train_on_policy
from rl_training.runtime.run import Parts, Run, RunOptions, TrainResult
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
    s, horizon = settings, setup.config.horizon
    return {
        "learning_rate": schedules.learning_rate(s, horizon),
        "gamma": s.gamma,
        "gae_lambda": s.gae_lambda,
        "update_epochs": s.update_epochs,
        "minibatch_size": s.minibatch_size,
        "clip_coef": schedules.clip_range(s, horizon),
        "ent_coef": s.ent_coef,
        "vf_coef": s.vf_coef,
        "vf_clip": s.vf_clip,
        "target_kl": s.target_kl,
        "normalize_advantage": s.normalize_advantage,
        "max_grad_norm": s.max_grad_norm,
        "adam_eps": s.adam_eps,
        "optimizer": s.optimizer,
        "weight_decay": s.weight_decay,
    }


def train_actor_critic(setup: Setup, settings: PPOSettings, options: RunOptions, *, network: ActorCritic, learner: PPO) -> TrainResult:
    """Put the parts into a run and the run into the loop."""
    config, distribution, masks = setup.config, network.distribution, setup.envs.action_masks
    rollout = RolloutBuffer(
        settings.num_steps,
        config.num_envs,
        setup.spaces["obs_shape"],
        distribution.action_shape,
        setup.spaces["obs_dtype"],
        device=setup.device,
        seed=setup.seeds.replay,
        action_dtype=distribution.action_dtype,
        extra=setup.previous_fields | ({} if masks is None else {"action_masks": Field(masks.shape[1:], torch.bool)}),
    )
    behaviour = Sampling(distribution, seed=setup.seeds.actor)
    feed = RolloutFeed(rollout)
    actor = Actor(setup.envs, network, feed, behaviour=behaviour, device=setup.device, seed=setup.seeds.actor)
    parts = Parts(learner=learner, actor=actor, replay=rollout, evaluate=setup.evaluator(), spaces=setup.spaces, notes=setup.notes)
    run = Run(config, parts, options)
    accelerate_learner(learner)
    accelerate_acting(actor, setup.device, compile=False)
    return train_on_policy(run, actor=actor, learner=learner, rollout=rollout)


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

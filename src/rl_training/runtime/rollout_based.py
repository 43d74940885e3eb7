"""What every on-policy trainer shares: from typed settings to the parts' plain keywords, and into the loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from rl_training.algorithms.ppo import PPO
from rl_training.algorithms.pqn import PQN
from rl_training.data.rollout_buffer import RolloutBuffer
from rl_training.data.storage import Field
from rl_training.experiment.settings import PPOSettings, PQNSettings
from rl_training.models.network import Network
from rl_training.runtime import schedules
from rl_training.runtime.accelerate import accelerate_acting, accelerate_rollouts
from rl_training.runtime.actor import Actor, RolloutFeed
from rl_training.runtime.behaviour import Behaviour
from rl_training.runtime.on_policy import train_on_policy
from rl_training.runtime.run import Parts, Run, RunOptions, TrainResult
from rl_training.runtime.trainer_setup import Setup


def rollout_learner_keywords(setup: Setup, settings: PPOSettings | PQNSettings) -> dict[str, Any]:
    """What every learner from rollouts takes beside its network and what is its own."""
    return {
        "learning_rate": schedules.learning_rate(settings, setup.config.horizon),
        "gamma": settings.gamma,
        "update_epochs": settings.update_epochs,
        "minibatch_size": settings.minibatch_size,
        "max_grad_norm": settings.max_grad_norm,
        "adam_eps": settings.adam_eps,
        "optimizer": settings.optimizer,
        "weight_decay": settings.weight_decay,
    }


def train_from_rollouts(
    setup: Setup,
    settings: PPOSettings | PQNSettings,
    options: RunOptions,
    *,
    network: Network,
    learner: PPO | PQN,
    behaviour: Behaviour,
    masks: Sequence[str],
    action_shape: Sequence[int] = (),
    action_dtype: Any = torch.int64,
    exploration_rate: Callable[[int], float] | None = None,
) -> TrainResult:
    """Put the parts into a run and the run into the loop. masks: the fields of a step that hold them, where the environments have any."""
    config, held = setup.config, setup.envs.action_masks
    rollout = RolloutBuffer(
        settings.num_steps,
        config.num_envs,
        setup.spaces["obs_shape"],
        action_shape,
        setup.spaces["obs_dtype"],
        device=setup.device,
        seed=setup.seeds.replay,
        action_dtype=action_dtype,
        extra=setup.previous_fields | ({} if held is None else dict.fromkeys(masks, Field(held.shape[1:], torch.bool))),
    )
    actor = Actor(setup.envs, network, RolloutFeed(rollout), behaviour=behaviour, device=setup.device, seed=setup.seeds.actor)
    parts = Parts(
        learner=learner,
        actor=actor,
        replay=rollout,
        evaluate=setup.evaluator(),
        spaces=setup.spaces,
        exploration_rate=exploration_rate,
        notes=setup.notes,
    )
    run = Run(config, parts, options)
    how: dict[str, Any] = {"device": setup.device, "compile": config.compile is True}
    accelerate_rollouts(learner, steps=settings.num_steps * config.num_envs, **how)
    accelerate_acting(actor, **how)
    return train_on_policy(run, actor=actor, learner=learner, rollout=rollout)

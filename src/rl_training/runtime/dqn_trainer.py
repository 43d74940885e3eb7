"""`train_dqn`: every feed-forward value-based row."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from rl_training.algorithms.exploration import LinearSchedule, epsilon_ladder
from rl_training.algorithms.q_learner import QLearner
from rl_training.algorithms.rules import ScalarRule
from rl_training.algorithms.views import TransitionView
from rl_training.data import NStepAccumulator, PrioritizedReplayBuffer, ReplayBuffer
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.settings import ValueSettings
from rl_training.models.mlp_q_network import MLPQNetwork
from rl_training.runtime.actor import Actor, TransitionFeed
from rl_training.runtime.off_policy import UpdatePlan, train_off_policy
from rl_training.runtime.run import Parts, Run, RunOptions, TrainResult
from rl_training.runtime.setup import Setup, prepare
from rl_training.types import Array


def build_network(settings: ValueSettings, spaces: Mapping[str, Any]) -> MLPQNetwork:
    s = settings
    return MLPQNetwork(
        spaces["obs_shape"][0], spaces["num_actions"], s.hidden_sizes, dueling=s.dueling, noisy=s.noisy, noisy_sigma=s.noisy_sigma
    )


def learning_rate(settings: ValueSettings, horizon: int) -> float | LinearSchedule:
    if settings.lr_schedule == "constant":
        return settings.learning_rate
    return LinearSchedule(settings.learning_rate, settings.learning_rate_end, horizon)


def exploration(settings: ValueSettings, horizon: int, num_envs: int) -> Callable[[int], float] | Array:
    """ε of the environment steps, or of each environment. A noisy network explores by its noise alone."""
    if settings.noisy:
        return lambda env_steps: 0.0
    if settings.epsilon_ladder:
        return np.array(epsilon_ladder(num_envs))
    return LinearSchedule(settings.epsilon_start, settings.epsilon_end, settings.exploration_fraction * horizon)


def train_value_based(
    setup: Setup, options: RunOptions, *, network: Any, learner: QLearner, replay: Any, feed: Any
) -> TrainResult:
    """What every value-based trainer does with its parts."""
    config, settings = setup.config, setup.config.settings
    assert isinstance(settings, ValueSettings)
    actor = Actor(
        setup.envs,
        network,
        feed,
        epsilon=exploration(settings, config.horizon, config.num_envs),
        learning_starts=settings.learning_starts,
        device=setup.device,
        seed=setup.seeds.actor,
    )
    beta = None
    if settings.prioritized:
        steps = settings.prioritized_beta_fraction * config.horizon
        beta = LinearSchedule(settings.prioritized_beta_start, settings.prioritized_beta_end, steps)
    parts = Parts(
        learner=learner,
        actor=actor,
        replay=replay,
        evaluate=setup.evaluator(network),
        spaces=setup.spaces,
        exploration_rate=lambda env_steps: float(np.mean(actor.epsilon(env_steps))),
        notes=setup.notes,
    )
    plan = UpdatePlan(settings.batch_size, settings.train_frequency, settings.gradient_steps)
    run = Run(config, parts, options)
    return train_off_policy(run, actor=actor, learner=learner, replay=replay, plan=plan, beta=beta)


def train_dqn(config: TrainConfig, run_suffix: str | None = None, **options: Any) -> TrainResult:
    """Train a feed-forward value-based row. `options` are those of RunOptions: callbacks, env, resume_from."""
    run_options = RunOptions(run_suffix=run_suffix, **options)
    setup = prepare(config, run_options.env, small=True)
    settings = setup.config.settings
    assert isinstance(settings, ValueSettings)
    network = setup.build(build_network)
    learner = QLearner(
        network,
        view=TransitionView(gamma=settings.gamma),
        rule=ScalarRule(),
        learning_rate=learning_rate(settings, config.horizon),
        target_update_interval=settings.target_update_interval,
        double_q=settings.double_q,
        tau=settings.tau,
        max_grad_norm=settings.max_grad_norm,
        adam_eps=settings.adam_eps,
        seed=setup.seeds.learner,
    )
    shape = dict(obs_shape=tuple(setup.spaces["obs_shape"]), obs_dtype=setup.spaces["obs_dtype"])
    storage = dict(capacity=settings.buffer_capacity, **shape, device=setup.device, seed=setup.seeds.replay)
    replay = (
        PrioritizedReplayBuffer(**storage, alpha=settings.prioritized_alpha, priority_eps=settings.priority_eps)
        if settings.prioritized
        else ReplayBuffer(**storage)
    )
    feed = TransitionFeed(NStepAccumulator(settings.n_step, settings.gamma, config.num_envs), replay)
    return train_value_based(setup, run_options, network=network, learner=learner, replay=replay, feed=feed)

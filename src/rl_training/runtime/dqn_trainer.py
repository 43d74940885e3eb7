"""`train_dqn`: every feed-forward value-based row."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from rl_training.algorithms.backups import Backup, greedy_backup
from rl_training.algorithms.c51_dqn import C51DQN
from rl_training.algorithms.dqn import DQN
from rl_training.algorithms.iqn import IQN
from rl_training.algorithms.q_learner import QLearner
from rl_training.algorithms.qr_dqn import QRDQN
from rl_training.algorithms.rules import Rule
from rl_training.algorithms.views import TransitionView
from rl_training.data import NStepAccumulator, PrioritizedReplayBuffer, ReplayBuffer
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.network_parts import make_torso
from rl_training.experiment.settings import ValueSettings
from rl_training.models.build import build_q_network
from rl_training.models.initialization import initialize
from rl_training.models.network import ValueNetwork, is_value_network
from rl_training.models.q_network import QNetwork
from rl_training.runtime.replay_place import place_replay
from rl_training.runtime.run import RunOptions, TrainResult
from rl_training.runtime.trainer_setup import Setup, prepare
from rl_training.runtime.value_based import (
    ValueParts,
    head_keywords,
    learner_keywords,
    make_feed,
    own_backup,
    replay_keywords,
    train_value_based,
)


def build_network(settings: ValueSettings, spaces: Mapping[str, Any]) -> QNetwork:
    network = build_q_network(
        spaces["obs_shape"],
        spaces["num_actions"],
        hidden_sizes=settings.hidden_sizes,
        torso=make_torso(settings, spaces),
        head=settings.head,
        **head_keywords(settings),
    )
    return initialize(network, settings.initialization)


def build_learner(setup: Setup, settings: ValueSettings, network: ValueNetwork, rule: Rule | None, backup: Backup | None) -> QLearner:
    """The algorithm of the row's head, or a user's own rule on transitions."""
    gamma, keywords = settings.gamma, learner_keywords(setup, settings)
    if rule is not None:
        double_q = keywords.pop("double_q")
        return QLearner(network, view=TransitionView(gamma=gamma), backup=backup or greedy_backup(double_q), rule=rule, **keywords)
    if settings.head == "categorical":
        return C51DQN(network, gamma=gamma, backup=backup, **keywords)
    if settings.head == "quantile":
        return QRDQN(network, gamma=gamma, backup=backup, kappa=settings.kappa, **keywords)
    if settings.head == "implicit":
        return IQN(network, gamma=gamma, backup=backup, kappa=settings.kappa, **keywords)
    return DQN(network, gamma=gamma, backup=backup, loss=settings.loss, **keywords)


def build_parts(setup: Setup, rule: Rule | None = None, backup: Backup | None = None) -> ValueParts:
    """What a feed-forward value-based row learns with."""
    config, settings = setup.config, setup.config.settings
    assert isinstance(settings, ValueSettings)  # the rows of this trainer have these
    network = setup.network
    if not is_value_network(network):
        raise setup.wrong_network("a Q-network")
    learner = build_learner(setup, settings, network, rule, backup or own_backup(settings))
    buffer = PrioritizedReplayBuffer if settings.prioritized else ReplayBuffer
    make = partial(_transition_buffer, buffer, replay_keywords(setup, settings, learner.backup))
    held, placed = place_replay(setup, make, sample=1)
    accumulator = NStepAccumulator(settings.n_step, settings.gamma, config.num_envs, carried=held.extra)
    replay, feed = make_feed(setup, accumulator, placed, clip_rewards=settings.n_step == 1)
    return ValueParts(network, learner, replay, feed, make)


def _transition_buffer(kind: type[ReplayBuffer], keywords: dict[str, Any], **changes: Any) -> ReplayBuffer:
    buffer = kind(**{**keywords, **changes})
    buffer.expect_discounts()  # n-step windows give each transition its own
    return buffer


def train_dqn(
    config: TrainConfig, run_suffix: str | None = None, *, rule: Rule | None = None, backup: Backup | None = None, **options: Any
) -> TrainResult:
    """Train a feed-forward value-based row. `options` are those of RunOptions: callbacks, env, resume_from.

    rule, backup: of a row of one's own, in place of what its head, `double_q` and `munchausen` ask for.
    """
    run_options = RunOptions(run_suffix=run_suffix, **options)
    setup = prepare(config, run_options.env)
    return train_value_based(setup, run_options, build_parts(setup, rule, backup))

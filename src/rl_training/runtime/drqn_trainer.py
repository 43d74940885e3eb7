"""`train_drqn`, and what R2D2's trainer shares with it: a recurrent network, replay of sequences, the loop of every value-based row."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from typing_extensions import Unpack

from rl_training.algorithms.backups import Backup
from rl_training.algorithms.by_head import make_rule
from rl_training.algorithms.drqn import DRQN
from rl_training.algorithms.rules import Rule
from rl_training.data import PrioritizedRecurrentReplayBuffer, RecurrentReplayBuffer
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.network_parts import core_maker, make_torso
from rl_training.experiment.settings import RecurrentPQNSettings, RecurrentSettings
from rl_training.models.heads import HeadKeywords, HeadKind
from rl_training.models.initialization import initialize
from rl_training.models.network import is_recurrent_value_network
from rl_training.models.recurrent import RecurrentQNetwork, recurrent_q_parts
from rl_training.runtime.replay_place import place_replay
from rl_training.runtime.run import RunOptions, TrainResult
from rl_training.runtime.trainer_setup import Setup, prepare
from rl_training.runtime.value_based import (
    ValueParts,
    all_envs,
    head_keywords,
    learner_keywords,
    make_feed,
    own_backup,
    replay_keywords,
    train_value_based,
)


def build_network(settings: RecurrentSettings, spaces: Mapping[str, Any]) -> RecurrentQNetwork:
    return initialize(recurrent_network(settings, spaces, settings.head, **head_keywords(settings)), settings.initialization)


def recurrent_network(
    settings: RecurrentSettings | RecurrentPQNSettings, spaces: Mapping[str, Any], head: HeadKind, **keywords: Unpack[HeadKeywords]
) -> RecurrentQNetwork:
    """The recurrent Q-network of these settings with any head."""
    previous = spaces["num_actions"] if settings.previous_action_reward else 0
    parts = recurrent_q_parts(
        spaces["obs_shape"],
        spaces["num_actions"],
        features_dim=settings.features_dim,
        encoder_hidden_sizes=settings.hidden_sizes,
        head_hidden_sizes=settings.head_hidden_sizes,
        hidden_size=settings.recurrent_hidden_size,
        num_layers=settings.recurrent_num_layers,
        make_core=core_maker(settings.core),
        torso=make_torso(settings, spaces),
        previous_actions=previous,
        skip=settings.recurrent_skip,
        head=head,
        **keywords,
    )
    return RecurrentQNetwork(*parts, skip=settings.recurrent_skip, obs_ndim=len(spaces["obs_shape"]), previous_actions=previous)


def build_parts(setup: Setup, algorithm: type[DRQN] = DRQN, rule: Rule | None = None, backup: Backup | None = None) -> ValueParts:
    """What a recurrent value-based row learns with."""
    config, s = setup.config, setup.config.settings
    assert isinstance(s, RecurrentSettings)  # the rows of these trainers have these
    network = setup.network
    if not is_recurrent_value_network(network):
        raise setup.wrong_network("a recurrent Q-network")
    learner = algorithm(
        network,
        gamma=s.gamma,
        n_step=s.n_step,
        burn_in=s.burn_in,
        stored_state=s.stored_state,
        priority_eta=s.priority_eta,
        rule=rule or rule_of(s),
        backup=backup or own_backup(s),
        **learner_keywords(setup, s),
    )
    state = network.initial_state(1)  # of the network that is there, which may be a user's own
    buffer = PrioritizedRecurrentReplayBuffer if s.prioritized else RecurrentReplayBuffer
    make = partial(
        buffer,
        **replay_keywords(setup, s, learner.backup),
        num_envs=all_envs(config),
        sequence_length=s.sequence_length,
        hidden_size=state[0].shape[-1],
        num_layers=state[0].shape[0],
        state_parts=len(state),
        sequence_overlap=s.sequence_overlap,
        burn_in=s.burn_in,
    )
    held, placed = place_replay(setup, make, sample=s.sequence_length)
    replay, feed = make_feed(setup, held.make_assembler(config.num_envs), placed, clip_rewards=True)  # a chunk holds single steps
    return ValueParts(network, learner, replay, feed, make)


def rule_of(s: RecurrentSettings) -> Rule:
    """The rule of the row's head."""
    return make_rule(
        s.head,
        loss=s.loss,
        kappa=s.kappa,
        v_min=s.v_min,
        v_max=s.v_max,
        num_atoms=s.num_atoms,
        value_rescaling=s.value_rescaling,
    )


def train_recurrent(
    algorithm: type[DRQN], config: TrainConfig, options: RunOptions, rule: Rule | None = None, backup: Backup | None = None
) -> TrainResult:
    """Train a recurrent value-based row."""
    setup = prepare(config, options.env)
    return train_value_based(setup, options, build_parts(setup, algorithm, rule, backup))


def train_drqn(
    config: TrainConfig, run_suffix: str | None = None, *, rule: Rule | None = None, backup: Backup | None = None, **options: Any
) -> TrainResult:
    """Train DRQN. `options` are those of RunOptions: callbacks, env, resume_from.

    rule, backup: of a row of one's own, in place of what its head, `double_q` and `munchausen` ask for.
    """
    return train_recurrent(DRQN, config, RunOptions(run_suffix=run_suffix, **options), rule, backup)

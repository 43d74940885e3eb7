"""What every value-based trainer shares: from typed settings to the parts' plain keywords, and into the loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from rl_training.algorithms.backups import Backup
from rl_training.algorithms.munchausen import MunchausenBackup
from rl_training.algorithms.q_learner import QLearner
from rl_training.algorithms.schedules import Schedule, epsilon_ladder
from rl_training.data.frames import FrameLayout, FrameNumbers
from rl_training.data.normalized import NormalizedReplay
from rl_training.data.replay import Replay
from rl_training.data.sampled_ring import SampledBuffer
from rl_training.data.storage import Field
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.settings import RecurrentSettings, ValueSettings
from rl_training.models.heads import HeadKeywords
from rl_training.models.network import Network
from rl_training.runtime import schedules
from rl_training.runtime.accelerate import accelerate_acting, accelerate_updates
from rl_training.runtime.actor import Actor, FramedFeed, ItemMaker, ReplayFeed
from rl_training.runtime.behaviour import EpsilonGreedy
from rl_training.runtime.cadence import UpdatePlan
from rl_training.runtime.off_policy import SampledUpdates, train_off_policy
from rl_training.runtime.run import Parts, Run, RunOptions, TrainResult
from rl_training.runtime.trainer_setup import Setup, planned_updates
from rl_training.types import Array

if TYPE_CHECKING:
    from rl_training.runtime.distributed.remote_actors import RemoteActors

DRAWN_AHEAD = 256  # steps of exploration drawn at once


def head_keywords(settings: ValueSettings) -> HeadKeywords:
    """The keywords of any head; each kind takes its own."""
    names = HeadKeywords.__annotations__
    keywords: HeadKeywords = {name: getattr(settings, name) for name in names}  # type: ignore[assignment]  # keys by construction
    return keywords


def learner_keywords(setup: Setup, settings: ValueSettings) -> dict[str, Any]:
    """What every learner takes beside its network, view and rule."""
    s = settings
    return {
        "learning_rate": schedules.learning_rate(s, setup.config.horizon),
        "target_update_interval": s.target_update_interval,
        "double_q": s.double_q,
        "tau": s.tau,
        "max_grad_norm": s.max_grad_norm,
        "adam_eps": s.adam_eps,
        "optimizer": s.optimizer,
        "weight_decay": s.weight_decay,
        "seed": setup.seeds.learner,
    }


def own_backup(settings: ValueSettings) -> Backup | None:
    """The backup that the settings ask for in place of max and double-Q; None: those."""
    if not settings.munchausen:
        return None
    return MunchausenBackup(
        alpha=settings.munchausen_alpha,
        tau=settings.munchausen_tau,
        clip=settings.munchausen_clip,
        value_rescaling=isinstance(settings, RecurrentSettings) and settings.value_rescaling,
    )


def replay_keywords(setup: Setup, settings: ValueSettings, backup: Backup) -> dict[str, Any]:
    """What every buffer takes; a prioritized one more. backup: what is learned with, which says what it wants to see of masks."""
    keywords: dict[str, Any] = {
        "capacity": settings.buffer_capacity,
        "obs_shape": tuple(setup.spaces["obs_shape"]),
        "obs_dtype": setup.spaces["obs_dtype"],
        "seed": setup.seeds.replay,
    }
    if settings.prioritized:
        keywords |= {"alpha": settings.prioritized_alpha, "priority_eps": settings.priority_eps}
    if stores_frames(setup):
        frames = setup.spaces["frame_stack"]
        keywords["frames"] = FrameLayout(frames, spare=all_envs(setup.config) * (settings.n_step + frames) + _between_blocks(setup.config))
    masks = setup.envs.action_masks
    extra = dict(setup.previous_fields)
    if masks is not None:
        names = ("action_masks", "next_action_masks") if backup.needs_current else ("next_action_masks",)
        extra |= dict.fromkeys(names, Field(masks.shape[1:], torch.bool))
    return {**keywords, "extra": extra}


def stores_frames(setup: Setup) -> bool:
    """Whether frames are stored once, as those of images are."""
    return "image" in setup.spaces


def all_envs(config: TrainConfig) -> int:
    """Environments of all actors together, or of this process."""
    return config.num_envs * max(1, config.actors)


def _between_blocks(config: TrainConfig) -> int:
    """Frames that come between two blocks of one actor, whose windows and chunks stay open meanwhile."""
    if not config.actors or config.lockstep:
        return 0
    from rl_training.runtime.distributed.blocks import BLOCK_STEPS

    return config.actors * max(BLOCK_STEPS, config.num_envs)


def make_feed(setup: Setup, maker: ItemMaker, held: Replay, *, clip_rewards: bool) -> tuple[Replay, ReplayFeed]:
    """The replay as it is learned from, and the way into it. Where the environments normalise, it holds raw values.

    clip_rewards: its rewards are those of single steps.
    """
    envs, replay = setup.envs, held
    refresh: Callable[[], None] | None = None
    if envs.normalizes:
        units: dict[str, Any] = {"observations": envs.observation_normalizer, "rewards": envs.reward_normalizer}
        replay = normalized = NormalizedReplay(held, **units, clip_rewards=clip_rewards, device=setup.device)
        refresh = normalized.refresh
    if stores_frames(setup):
        return replay, FramedFeed(maker, replay, FrameNumbers(setup.spaces["frame_stack"], envs.num_envs), refresh)
    return replay, ReplayFeed(maker, replay, refresh)


def exploration(settings: ValueSettings, horizon: int, num_envs: int) -> Schedule | Array:
    """ε of the environment steps, or of each environment."""
    if settings.epsilon_ladder and not settings.noisy:
        return np.array(epsilon_ladder(num_envs))
    return schedules.epsilon(settings, horizon)


class ValueParts(NamedTuple):
    """What a value-based row learns with: its trainer's `build_parts` makes them."""

    network: Network
    learner: QLearner
    replay: Replay
    feed: ReplayFeed
    make_buffer: Callable[..., SampledBuffer]  # another replay as this one, with some keywords changed


def train_value_based(setup: Setup, options: RunOptions, made: ValueParts) -> TrainResult:
    """Put the parts into a run and the run into the loop."""
    config, settings = setup.config, setup.config.settings
    assert isinstance(settings, ValueSettings)  # a value-based row has these
    network, learner, replay, feed, make_buffer = made
    num_envs = all_envs(config)
    epsilon = exploration(settings, config.horizon, num_envs)

    def behaviour_of(envs: range, seed: int) -> EpsilonGreedy:
        return EpsilonGreedy(
            epsilon if callable(epsilon) else epsilon[envs.start : envs.stop],
            num_actions=setup.spaces["num_actions"],
            learning_starts=settings.learning_starts,
            seed=seed,
            ahead=DRAWN_AHEAD,
        )

    behaviour = behaviour_of(range(num_envs), setup.seeds.actor)
    actor: Actor | RemoteActors
    if config.actors:
        from rl_training.runtime.distributed.start import in_shards, start_actors

        if config.replay_shards:
            replay = in_shards(setup, make_buffer)
        actor = start_actors(setup, learner, feed.maker, replay, behaviour_of, say=options.preparing)
    else:
        actor = Actor(setup.envs, network, feed, behaviour=behaviour, device=setup.device, seed=setup.seeds.actor)
    beta = schedules.priority_beta(settings, config.horizon) if settings.prioritized else None
    parts = Parts(
        learner=learner,
        actor=actor,
        replay=replay,
        evaluate=setup.evaluator(),
        spaces=setup.spaces,
        exploration_rate=lambda env_steps: float(np.mean(behaviour.epsilon(env_steps))),
        measures=None if isinstance(actor, Actor) else actor.measures,
        notes=setup.notes,
    )
    if config.replay_device == "auto" and setup.device.type in ("cpu", "cuda"):
        config = config.replace(replay_device="cpu" if isinstance(replay.generator, np.random.Generator) else "cuda")
    run = Run(config, parts, options)
    # no CUDA graph draws from other processes
    graphs = setup.device.type != "cuda" or not config.replay_shards
    how: dict[str, Any] = {"device": setup.device, "compile": config.compile is True and graphs}
    eager = SampledUpdates(learner, replay, settings.batch_size, beta)
    updates_to_come = planned_updates(config) or 0
    update = accelerate_updates(eager, **how, say=run.status, planned_updates=updates_to_come, compiling=run.signals.ending)
    if isinstance(actor, Actor):
        accelerate_acting(actor, **how)
    else:
        actor.follow(run.clock)
    plan = UpdatePlan(settings.train_frequency, settings.gradient_steps)
    return train_off_policy(run, actor=actor, replay=replay, plan=plan, update=update)

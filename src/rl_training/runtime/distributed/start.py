"""From a run's parts to actors on Ray. Whatever cannot be distributed is refused before Ray is started."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np

from rl_training.algorithms.q_learner import QLearner
from rl_training.data.frame_streams import FrameStreams
from rl_training.data.replay import Replay
from rl_training.data.sampled_ring import SampledBuffer
from rl_training.data.storage import Field, as_torch_dtype
from rl_training.envs.factory import find_env, make_envs
from rl_training.errors import UserError, one_line
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.settings import RecurrentSettings, ValueSettings
from rl_training.runtime.actor import ItemMaker
from rl_training.runtime.behaviour import EpsilonGreedy
from rl_training.runtime.distributed.actor_process import ActorPlan, FramePlan
from rl_training.runtime.distributed.blocks import BLOCK_STEPS
from rl_training.runtime.distributed.cluster import Cluster, import_ray, require_answer
from rl_training.runtime.distributed.first_priorities import FirstPriorities
from rl_training.runtime.distributed.remote_actors import IN_FLIGHT, RemoteActors
from rl_training.runtime.distributed.shards import ShardedReplay
from rl_training.runtime.distributed.weights import Publisher
from rl_training.runtime.trainer_setup import Setup
from rl_training.runtime.value_based import stores_frames

MakeBehaviour = Callable[[range, int], EpsilonGreedy]
"""(the numbers of its environments, a seed) → what an actor explores by."""


def start_actors(
    setup: Setup, learner: QLearner, maker: ItemMaker, replay: Replay, behaviour: MakeBehaviour, *, say: Callable[[str], None]
) -> RemoteActors:
    """maker: makes an actor's items; each gets a copy. say: is told what takes a while."""
    config = setup.config
    setup.envs.close()  # they said what their spaces are; the actors make their own
    if setup.envs.normalizes:
        raise UserError("normalize_observation and normalize_reward keep statistics of their own in each process: they need actors: 0")
    plans = [_plan(setup, learner, maker, behaviour, index) for index in range(config.actors)]
    _require_sendable(setup, plans[0])
    if config.ray_address is not None and not import_ray().is_initialized():
        require_answer(config.ray_address)
    say(_what_is_started(config))
    flat = learner.optimizer.parameters
    steps = max(BLOCK_STEPS, config.num_envs)
    weights_bytes = flat.numel() * flat.element_size()
    cluster = Cluster(config, in_flight_bytes=IN_FLIGHT * config.actors * steps * _step_bytes(setup) + 4 * weights_bytes)
    try:
        if isinstance(replay, ShardedReplay):
            replay.attach(cluster, first_place=config.actors)
        return RemoteActors(
            plans,
            cluster=cluster,
            network=setup.network,
            publisher=Publisher(cluster.ray, setup.network, flat),
            replay=replay,
            num_envs=config.num_envs,
            learning_starts=plans[0].behaviour.learning_starts,
            lockstep=config.lockstep,
            reseed=lambda plan, index, start: _reseeded(plan, setup, behaviour, index, start),
            streams=None if isinstance(replay, ShardedReplay) else _streams(setup),
        )
    except BaseException:
        cluster.close()
        raise


def _what_is_started(config: TrainConfig) -> str:
    processes = [
        f"{number} {kind}{'s' * (number > 1)}" for number, kind in ((config.actors, "actor"), (config.replay_shards, "shard")) if number
    ]
    where = "starting Ray" if config.ray_address is None else f"joining Ray ({config.ray_address})"
    return f"{where} with {' and '.join(processes)}…"


def in_shards(setup: Setup, make: Callable[..., SampledBuffer]) -> ShardedReplay:
    """make: makes a shard's buffer."""
    config, settings = setup.config, setup.config.settings
    assert isinstance(settings, ValueSettings)  # actors need a value-based row
    streams = _streams(setup)
    if streams is not None and config.replay_shards > config.actors:
        setup.envs.close()
        raise UserError(f"an actor's images go to one shard: replay_shards must be <= actors: {config.actors}, got {config.replay_shards}")
    return ShardedReplay(
        make,
        shards=config.replay_shards,
        capacity=settings.buffer_capacity,
        time_axis=isinstance(settings, RecurrentSettings),
        device=setup.device,
        seed=setup.seeds.replay,
        streams=streams,
    )


def _streams(setup: Setup) -> FrameStreams | None:
    """What numbers the frames of all actors, where they are stored once."""
    frames = _frames(setup)
    return None if frames is None else FrameStreams(setup.config.actors, frames.reach)


def _frames(setup: Setup) -> FramePlan | None:
    if not stores_frames(setup):
        return None
    settings, spaces, num_envs = setup.config.settings, setup.spaces, setup.config.num_envs
    assert isinstance(settings, ValueSettings)  # actors need a value-based row
    # An item of a block reaches back over its own steps; each brings a frame, and its episode's start another.
    length = settings.sequence_length if isinstance(settings, RecurrentSettings) else settings.n_step
    vector_steps = max(1, BLOCK_STEPS // num_envs) + length + spaces["frame_stack"]
    obs = Field(tuple(spaces["obs_shape"]), as_torch_dtype(spaces["obs_dtype"]))
    return FramePlan(obs, spaces["frame_stack"], 2 * num_envs * vector_steps)


def _plan(setup: Setup, learner: QLearner, maker: ItemMaker, behaviour: MakeBehaviour, index: int) -> ActorPlan:
    """Actor 0 is the local run's; the others draw from seeds of their own, and their environments' numbers follow its."""
    config = setup.config
    numbers = _numbers(setup, index)
    envs = partial(
        make_envs,
        find_env(setup.env) if isinstance(setup.env, str) else setup.env,
        num_envs=config.num_envs,
        seed=config.seed,
        first_index=numbers.start,
        env_kwargs=config.env_kwargs,
        vectorization=config.vectorization,
        gamma=getattr(config.settings, "gamma", 0.99),
    )
    seed = setup.seeds.actor if index == 0 else _seed(setup, index, 0)
    threads = int(config.threads) if config.lockstep else 1
    first = FirstPriorities(learner, seed=seed) if actors_rank(config) else None
    return ActorPlan(envs, maker, behaviour(numbers, seed), seed, threads, first, frames=_frames(setup))


def actors_rank(config: TrainConfig) -> bool:
    """Whether new items come with the actors' own priorities: `initial_priority`, where `auto` is max in lockstep, as in a local run."""
    settings = config.settings
    assert isinstance(settings, ValueSettings)  # actors need a value-based row
    return settings.prioritized and not config.lockstep and settings.initial_priority != "max"


def _step_bytes(setup: Setup) -> int:
    """Of what one environment step brings, about: observation and next one, in up to two items."""
    obs: int = math.prod(setup.spaces["obs_shape"]) * np.dtype(setup.spaces["obs_dtype"]).itemsize
    return 4 * obs + 1_024


def _reseeded(plan: ActorPlan, setup: Setup, behaviour: MakeBehaviour, index: int, start: int) -> ActorPlan:
    seed = _seed(setup, index, start)
    return replace(plan, seed=seed, behaviour=behaviour(_numbers(setup, index), seed))


def _numbers(setup: Setup, index: int) -> range:
    num_envs = setup.config.num_envs
    return range(index * num_envs, (index + 1) * num_envs)


def _seed(setup: Setup, index: int, start: int) -> int:
    return int(np.random.SeedSequence((setup.seeds.actor, index, start)).generate_state(1)[0])


def _require_sendable(setup: Setup, plan: ActorPlan) -> None:
    """Raises UserError where the environment, which may be a callable of somebody's own, cannot be sent to another process."""
    dumps: Callable[[object], bytes] = import_ray().cloudpickle.dumps

    for what, part in ((f"the environment {setup.config.env_id}", plan.make_envs), (f"the network of {setup.config.algo}", setup.network)):
        try:
            dumps(part)
        except Exception as error:  # whatever an object may raise of being pickled
            raise UserError(f"{what} cannot be sent to actors: {one_line(error):.300}") from error

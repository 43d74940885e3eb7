"""What a user does with a config or a checkpoint: train, resume, evaluate, predict."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as _numpy  # noqa: F401  (before torch, which would import it and swallow a Ctrl-C that comes meanwhile)
import torch

from rl_training.envs.factory import EnvSource, make_envs
from rl_training.envs.normalize import ObservationNormalizer
from rl_training.envs.spaces import require_same_spaces
from rl_training.envs.vector import VectorEnvs
from rl_training.envs.wrappers import UNSEEN, parse_wrappers
from rl_training.errors import CheckpointError, ConfigError, RunError, UserError, warn
from rl_training.experiment.checkpointing import Checkpoint, MissingCheckpoint, find_run, open_checkpoint, with_checkpoint
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.explain import whole_number
from rl_training.experiment.runs import RunDirectory, is_run_directory
from rl_training.experiment.schedules import Named
from rl_training.experiment.settings import ValueSettings
from rl_training.models.network import Network
from rl_training.runtime.accelerate import missing_toolchain
from rl_training.runtime.answers import answers
from rl_training.runtime.callbacks import Callback, as_callbacks
from rl_training.runtime.devices import require_device, resolve_device, resolve_precision, use_precision
from rl_training.runtime.evaluator import MAX_ENVS, evaluate
from rl_training.runtime.observations import WrappedObservations
from rl_training.runtime.policy import Policy
from rl_training.runtime.rendering import rendering
from rl_training.runtime.run import TrainResult
from rl_training.runtime.schedules import epsilon
from rl_training.runtime.signals import listening
from rl_training.runtime.trainer_setup import (
    Seeds,
    build_network,
    describe_spaces,
    env_source,
    eval_envs,
    require_allowed_env,
    require_row_spaces,
    with_torso,
)


def train(
    config: TrainConfig,
    *,
    run_suffix: str | None = None,
    callbacks: Sequence[Callback] = (),
    env: EnvSource | None = None,
    quiet: bool = True,
) -> TrainResult:
    """Train what the config says, from the beginning. `quiet=False` shows progress."""
    return _call_trainer(config, run_suffix=run_suffix, callbacks=_with_progress(callbacks, quiet), env=env)


def resume_training(
    path: str | Path,
    *,
    total_timesteps: int | None = None,
    device: str | None = None,
    extend_schedule: bool = False,
    output_dir: str | Path | None = None,
    trackers: Sequence[Any] | None = None,
    schedules: Mapping[str, Callable[[int], float]] | None = None,
    ray_address: str | None = None,
    callbacks: Sequence[Callback] = (),
    env: EnvSource | None = None,
    quiet: bool = True,
) -> TrainResult:
    """Go on in the same run directory, exactly as if the run had never stopped.

    `total_timesteps` is absolute and moves only the end: schedules keep the original total, which is also where a run ends that is not told
    another. With `extend_schedule` they run over the new total, so that the rate at step t is that of t / new total. A run with no
    checkpoint yet starts over. `trackers` replaces the run's own, such as one whose password was not saved; `schedules` are the callables
    that the run was made with, by key, since no file holds them.
    A run on a Ray cluster is told the cluster's address again: whoever wrote a file does not choose what this process connects to.
    A checkpoint that stands in no run goes on in a new one, made in `output_dir`, or beside the checkpoint where that is not given.
    """
    moved = partial(
        _moved,
        total_timesteps=total_timesteps,
        device=device,
        extend_schedule=extend_schedule,
        trackers=trackers,
        schedules=schedules,
        ray_address=ray_address,
    )
    run_dir = find_run(path)
    if run_dir is None:
        checkpoint = open_checkpoint(path)
        checkpoint.require_for_resume()
        place = checkpoint.path.absolute().parent if output_dir is None else output_dir
        config = moved(checkpoint.config, checkpoint.step).replace(output_dir=place)
        require_allowed_env(config.env_id, source=checkpoint.path, env=env)
        return _call_trainer(config, callbacks=_with_progress(callbacks, quiet), env=env, resume_from=checkpoint)
    if output_dir is not None:
        raise UserError(f"output_dir: {path} belongs to the run {run_dir} and goes on there; only a copy outside of a run can go elsewhere")
    held = RunDirectory.held(run_dir)  # before the checkpoint is chosen: another process may be about to remove it
    try:
        resume_from = _to_resume(path, held)
        config = moved(held.config, 0) if resume_from is None else moved(resume_from.config, resume_from.step)
        require_allowed_env(config.env_id, source=run_dir if resume_from is None else resume_from.path, env=env)
        return _call_trainer(config, callbacks=_with_progress(callbacks, quiet), env=env, resume_from=resume_from, goes_on_in=held)
    finally:
        held.release()


def _to_resume(path: str | Path, held: RunDirectory) -> Checkpoint | None:
    """The checkpoint of the run that a path means; None where the run has none to go on from and starts over."""
    try:
        checkpoint = open_checkpoint(path)
    except MissingCheckpoint as missing:
        if missing.run_dir is None:
            raise
        return None
    if not checkpoint.manifest.get("for_resume", True) and is_run_directory(Path(path)):
        return None  # it was kept as `best` only
    if checkpoint.run_dir is None or checkpoint.run_dir.resolve() != held.path.resolve():
        raise CheckpointError(f"{path}: is no longer in the run {held.path}")
    checkpoint.require_for_resume()
    return checkpoint


def evaluate_checkpoint(
    path: str | Path,
    *,
    num_episodes: int = 20,
    seed: int | None = None,
    env: EnvSource | None = None,
    render: bool = False,
    record: str | Path | None = None,
    device: str | None = None,
) -> dict[str, float]:
    """Greedy episodes with a checkpoint's policy; another `seed` plays other episodes than the run's own evaluations.

    `render` shows them in a window, `record` writes them to an .mp4 file; watched episodes are played one after another.
    It computes on `device`, or on what the run computed on; where that is not here, on the CPU.
    """
    num_episodes = whole_number(num_episodes, "the number of episodes", least=1)
    if seed is not None:
        seed = whole_number(seed, "seed", least=0)
    checkpoint, policy, statistics = with_checkpoint(path, lambda found: (found, policy_of(found), _statistics(found)))
    config = checkpoint.config
    require_allowed_env(config.env_id, source=checkpoint.path, env=env)
    torch.set_num_threads(int(config.threads) if config.threads != "auto" else 1)
    on = _place(policy.network, config, device)
    with rendering(render=render, record=record, num_episodes=num_episodes) as watch:
        make_any = eval_envs(config, env_source(config, env), statistics=lambda: statistics, seed=seed, watch=watch)
        make = partial(_make_fitting, make_any, checkpoint)
        max_envs = MAX_ENVS if watch is None else 1
        evaluation = evaluate(policy.network, make, num_episodes=num_episodes, device=on, max_envs=max_envs)
    return evaluation.metrics()


def _place(network: Network, config: TrainConfig, asked: str | None) -> torch.device:
    """Moves a run's network to where it is evaluated: on a GPU with the run's own precision, on a CPU in float32."""
    try:
        on = torch.device(resolve_device(asked or config.device, network.facts).value)
    except ConfigError:
        if asked is not None:
            raise
        on = torch.device("cpu")
    network.to(on)
    if on.type == "cuda":
        precision = config.precision if config.device.startswith("cuda") else "auto"
        use_precision(network, resolve_precision(precision, on.type, network.facts).value, on)
    return on


def _make_fitting(make: Callable[[int], VectorEnvs], checkpoint: Checkpoint, num_envs: int) -> VectorEnvs:
    """`make`, where it gives environments that the checkpoint's network can act in."""
    envs = make(num_envs)
    try:
        require_same_spaces(checkpoint.spaces, describe_spaces(envs), source=checkpoint.path)
    except UserError:
        envs.close()
        raise
    return envs


def require_fitting_env(checkpoint: Checkpoint, env: EnvSource) -> None:
    """Makes the environment once, and raises UserError where a checkpoint's network cannot act in it."""
    make = eval_envs(checkpoint.config, env, statistics=dict)
    _make_fitting(make, checkpoint, 1).close()


def load_policy(path: str | Path, *, device: str = "cpu") -> Policy:
    """The policy in a checkpoint: reads the manifest and the model file, and makes no environment."""
    return with_checkpoint(path, lambda checkpoint: policy_of(checkpoint, device))


def predict(
    path: str | Path, observations: Iterable[Any], *, device: str = "cpu", env: EnvSource | None = None
) -> Iterator[dict[str, Any]]:
    """For each observation the greedy action and its Q-values, `{"action": 1, "q_values": [...]}`, one by one as they are asked for; of a
    policy the likeliest action with its `probabilities`, or `mean` and `std`.

    An observation is what the network reads (wrappers applied, not normalised) or, where its shape is another, what the environment gives,
    and the run's wrappers are applied: nested lists of numbers, or `{"obs": ...,
    "episode_start": true, "action_mask": [1, 0, ...], "reward": 1.0}`, of which only `obs` must be there. Without a mask every action may
    be chosen; the reward is for a row that reads what led to an observation (`previous_action_reward`), beside its own last action.
    A recurrent row carries its state from one to the next and forgets it at an episode's start.
    Where images are stacked, `obs` is the last of them [K, ...], oldest first, or one image, to which those before it are remembered.
    Where `obs` is a mapping, it is what a Dict environment gives.
    """
    checkpoint, policy = with_checkpoint(path, lambda found: (found, policy_of(found, device)))
    config = checkpoint.config
    changed = any(call.name not in UNSEEN for call in parse_wrappers(config.env_kwargs.get("wrappers", ())).per_env)

    def is_raw(obs: Any) -> bool:
        return isinstance(obs, Mapping) or (changed and not policy.reads(obs))

    yield from answers(policy, observations, lambda: wrapped_observations(config, checkpoint.path, env=env), is_raw=is_raw)


def wrapped_observations(config: TrainConfig, checkpoint: Path | None, *, env: EnvSource | None = None) -> WrappedObservations:
    """What makes of a Dict environment's observations what the network reads. checkpoint: where the config was read from, if from one."""
    if checkpoint is not None:
        require_allowed_env(config.env_id, source=checkpoint, env=env)
    return WrappedObservations.of_run(env_source(config, env), config.env_kwargs)


def fresh_policy(config: TrainConfig, env: EnvSource | None = None) -> Policy:
    """The untrained policy a run of this config would start from."""
    envs = make_envs(env_source(config, env), num_envs=1, seed=config.seed, env_kwargs=config.env_kwargs)
    try:
        require_row_spaces(config, envs)
        spaces = describe_spaces(envs)
    finally:
        envs.close()
    config, _ = with_torso(config, spaces)
    network = build_network(config, spaces, Seeds.of(config.seed).network)
    return Policy(network, spaces, epsilon=_exploration(config))


def _call_trainer(config: TrainConfig, **options: Any) -> TrainResult:
    try:
        with listening():
            result: TrainResult = config.spec.train_fn(config, **options)
    except MemoryError as error:
        raise RunError(f"the machine's memory does not suffice for this run ({' '.join(str(error).split())})") from error
    return result


def _with_progress(callbacks: Sequence[Callback], quiet: bool) -> tuple[Callback, ...]:
    if quiet:
        return as_callbacks(callbacks)
    from rl_training.runtime.progress import Progress

    return (*as_callbacks(callbacks), Progress())


def _moved(
    config: TrainConfig,
    step: int,
    *,
    total_timesteps: int | None,
    device: str | None,
    extend_schedule: bool,
    trackers: Sequence[Any] | None,
    schedules: Mapping[str, Callable[[int], float]] | None,
    ray_address: str | None,
) -> TrainConfig:
    """The config a run goes on with from `step`."""
    changes: dict[str, Any] = {}
    if total_timesteps is None:
        # A `learn(n)` that stopped short of its object's total left its own end in the config, and that total as the schedules'.
        total = max(config.total_timesteps, config.horizon)
    elif total_timesteps < step:
        raise ConfigError(f"total_timesteps is absolute and this checkpoint is at step {step} already, got {total_timesteps}")
    else:
        total = total_timesteps
    horizon = total if extend_schedule else config.horizon
    if (total, horizon) != (config.total_timesteps, config.horizon):
        changes = {"total_timesteps": total, "schedule_timesteps": horizon}
    if device is not None:
        changes |= {"device": device, "replay_device": "auto"}  # what was chosen is for the device it was
        kinds = [name.partition(":")[0] for name in (config.device, device)]
        if "auto" not in kinds and kinds[0] != kinds[1]:
            # A generator's state is its device's own (data/generators.py).
            text = f"the run began on {kinds[0]} and goes on on {kinds[1]}: with other draws and rounding, not exactly as it was"
            if config.precision != "auto":  # what was asked for may be refused there
                text += f", and in that device's usual precision, not in {config.precision}"
                changes["precision"] = "auto"
            warn(text)
            if config.compile is True:
                changes["compile"] = "auto"  # what is graphed on one need not be compiled on the other
    if config.ray_address is not None and ray_address is None:
        raise ConfigError(f"the run was on a Ray cluster ({config.ray_address!r:.100}): say which one it goes on with (--ray-address)")
    if ray_address is not None:
        changes["ray_address"] = ray_address
    if trackers is not None:
        changes["trackers"] = tuple(trackers)
    if schedules:
        if other := [key for key in schedules if not isinstance(getattr(config.settings, key, None), Named)]:
            raise ConfigError(f"schedules: {other[0]} of this run is no callable")
        changes["algo_kwargs"] = {**config.algo_kwargs, **schedules}
    if (
        changes.get("compile", config.compile) is True
        and changes.get("device", config.device) == "cpu"
        and (missing := missing_toolchain()) is not None
    ):
        # `auto` may have turned it on, on another machine
        warn(f"the run goes on without compiling, with other rounding: {missing}", RuntimeWarning)
        changes["compile"] = False
    return config.replace(**changes) if changes else config


def policy_of(checkpoint: Checkpoint, device: str = "cpu") -> Policy:
    """The policy in an opened checkpoint."""
    require_device(device)
    spaces, config, model = checkpoint.spaces, checkpoint.config, checkpoint.load_model()
    try:
        network = build_network(config, spaces, Seeds.of(config.seed).network)
        network.load_state_dict(model)
        normalizer = _observation_normalizer(checkpoint, tuple(spaces["obs_shape"]))
    except UserError:
        raise
    except Exception as error:  # a network may say anything of spaces or a state that are not its own: it is chained, and the reason said
        reason = " ".join(str(error).split())
        raise CheckpointError(f"{checkpoint.path}: its model does not fit the network of its config: {reason:.300}") from error
    return Policy(network.to(device), spaces, epsilon=_exploration(config), normalizer=normalizer)


def _exploration(config: TrainConfig) -> float:
    """The ε of a policy that is asked to explore, as training ended: a noisy network explores by its noise alone."""
    settings = config.settings
    if isinstance(settings, ValueSettings) and not isinstance(settings.epsilon, Named):  # a callable may not be at hand here
        return epsilon(settings, config.horizon)(config.horizon)
    return 0.0 if getattr(settings, "noisy", False) else float(getattr(settings, "epsilon_end", 0.0))


def _observation_normalizer(checkpoint: Checkpoint, shape: tuple[int, ...]) -> ObservationNormalizer | None:
    """What the network's observations were divided by in training, frozen."""
    options = parse_wrappers(checkpoint.config.env_kwargs.get("wrappers", ())).observation
    if options is None:
        return None
    normalizer = ObservationNormalizer(shape, **options, update=False)
    normalizer.load_state_dict(_statistics(checkpoint)["observation"])
    return normalizer


def _statistics(checkpoint: Checkpoint) -> Any:
    """The normalisers' state, read only where the environment has normalisers."""
    wrappers = parse_wrappers(checkpoint.config.env_kwargs.get("wrappers", ()))
    if wrappers.observation is None and wrappers.reward is None:
        return {}
    try:
        return checkpoint.load_training()["actor"]["envs"]["statistics"]
    except (KeyError, TypeError) as error:
        raise CheckpointError(f"{checkpoint.path}: has no statistics of its environments ({error})") from None

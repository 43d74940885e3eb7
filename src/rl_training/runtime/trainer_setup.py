"""From a config to what every trainer starts with: environments, device, seeds. Nothing is written here."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rl_training.data.storage import Field
from rl_training.envs.factory import EnvSource, make_envs
from rl_training.envs.minatar import conventions
from rl_training.envs.spaces import describe_action_space, require_spaces
from rl_training.envs.vector import VectorEnvs
from rl_training.errors import CheckpointError, ConfigError, UserError
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.network_parts import image_torso, layers_after
from rl_training.experiment.settings import LearningSettings, ValueSettings
from rl_training.models.network import Network, reads_previous
from rl_training.resources import format_bytes, require_memory
from rl_training.runtime.accelerate import speed_note
from rl_training.runtime.cadence import UpdatePlan
from rl_training.runtime.devices import resolve, resolve_device, use_precision
from rl_training.runtime.evaluator import Evaluate, evaluate
from rl_training.runtime.rendering import Rendering
from rl_training.runtime.sanity import check_sanity

COPIES = 5
"""Of its network that training holds: itself, its target, a gradient and Adam's two moments."""

BACKENDS = {
    "auto": "auto (one loop in this process)",
    "sync": "sync (Gymnasium's SyncVectorEnv, in this process)",
    "async": "async (Gymnasium's AsyncVectorEnv, a process for each environment)",
    "native": "native (the environment's own vector form)",
}


@dataclass(frozen=True)
class Seeds:
    """Independent seeds of the parts, all from the run's."""

    network: int
    learner: int
    replay: int
    actor: int

    @classmethod
    def of(cls, seed: int) -> Seeds:
        return cls(*(int(child.generate_state(1)[0]) for child in np.random.SeedSequence(seed).spawn(4)))


@dataclass(frozen=True)
class Setup:
    """What a trainer wires its parts from. `config` has every `auto` resolved."""

    config: TrainConfig
    envs: VectorEnvs
    network: Network
    device: torch.device
    seeds: Seeds
    spaces: dict[str, Any]
    notes: dict[str, str]
    env: EnvSource

    def wrong_network(self, wanted: str) -> ConfigError:
        """What a trainer says of a network that its algorithm cannot learn with."""
        self.envs.close()
        return ConfigError(f"{self.config.algo} learns with {wanted}, and the row's `network` gave a {type(self.network).__name__}")

    @property
    def previous_fields(self) -> dict[str, Field]:
        """What a buffer stores for a network whose core reads the action and reward that led to an observation."""
        if not reads_previous(self.network):
            return {}
        return {"previous_actions": Field((), torch.int64), "previous_rewards": Field((), torch.float32)}

    def evaluator(self) -> Evaluate:
        """Greedy evaluation of the network as it is then, with the training environments' statistics."""
        make = eval_envs(self.config, self.env, statistics=self.envs.statistics)
        return lambda num_episodes, asked: evaluate(self.network, make, num_episodes=num_episodes, device=self.device, asked=asked)


def env_source(config: TrainConfig, env: EnvSource | None) -> EnvSource:
    """The environment of a run: its id, or the callable, which has to be passed again."""
    if env is not None:
        return env
    if config.env_is_callable:
        raise ConfigError(f"this run's environment is a callable ({config.env_id}): pass it again as env=")
    return config.env_id


def module_of(env_id: str) -> str | None:
    """The module of somebody's own that an environment comes from, if any."""
    module, colon, _ = env_id.rpartition(":")
    # popgym is ours to import (envs/memory.py); a callable names no module, and `env_source` asks for it
    return module if colon and module not in ("popgym", "callable") else None


def require_allowed_env(env_id: str, *, source: Path, env: EnvSource | None) -> None:
    """Raises UserError where a checkpoint or run names an environment of a module that nobody has imported here.

    Importing runs the module's code, and whoever wrote the file chose its name: that is for its reader to allow. A config that somebody
    trains by is their own, so `module:Id` there is imported.
    """
    module = module_of(env_id)
    if env is not None or module is None or module in sys.modules:
        return
    raise UserError(
        f"{source}: its environment {env_id!r:.100} would import the module {module!r:.100}, and so run its code; "
        f"if you trust it, allow it with --import {module:.100} before the command (in Python: import it first)"
    )


def eval_envs(
    config: TrainConfig, env: EnvSource, *, statistics: Callable[[], Any], seed: int | None = None, watch: Rendering | None = None
) -> Callable[[int], VectorEnvs]:
    """Makes evaluation environments: other episodes than training's, none longer than `eval_max_steps`, statistics frozen at what they
    are when made."""
    env_kwargs = config.keywords_of_evaluation
    if watch is not None:
        env_kwargs["render_mode"] = watch.render_mode

    def make(num_envs: int) -> VectorEnvs:
        envs = make_envs(
            env,
            num_envs=num_envs,
            seed=config.seed if seed is None else seed,
            env_kwargs=env_kwargs,
            seed_stream="evaluation",
            update_statistics=False,
            record=False,
            max_steps=config.eval_max_steps,
            watch=None if watch is None else watch.wrap,
        )
        try:
            envs.load_statistics(statistics())
        except Exception as error:  # statistics that are not of these environments
            envs.close()
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            raise CheckpointError(f"the saved statistics do not fit the environment ({reason:.300})") from error
        return envs

    return make


def describe_spaces(envs: VectorEnvs) -> dict[str, Any]:
    """What a network needs to know of the environment, as a manifest can hold it."""
    obs, action = envs.single_observation_space, describe_action_space(envs.single_action_space)
    counted = {"num_actions": action["n"]} if "n" in action else {}
    image = {} if envs.image is None else {"image": envs.image.describe(), "frame_stack": envs.frame_stack}
    return {"obs_shape": list(obs.shape or ()), "obs_dtype": str(obs.dtype), **image, "action": action, **counted}


def require_row_spaces(config: TrainConfig, envs: VectorEnvs) -> None:
    """Raises SpaceError unless the row, with the torso it has, takes these environments' observations and actions."""
    observations = config.spec.observations_of(config.settings)
    spaces = envs.single_observation_space, envs.single_action_space
    torso = getattr(config.settings, "torso", "auto")
    require_spaces(config.algo, *spaces, observations=observations, actions=config.spec.actions, torso=torso)


def with_torso(config: TrainConfig, spaces: Mapping[str, Any]) -> tuple[TrainConfig, str]:
    """The config with the torso that reads such images and the layers that follow it, where it does not say them; and what was chosen.

    A row with a network of its own reads them by that.
    """
    settings = config.settings
    if "image" not in spaces or config.spec.network is not None or not isinstance(settings, LearningSettings):
        return config, ""
    name, why = settings.torso, "as configured"
    if name == "auto":
        own = config.spec.image_torso
        name, why = image_torso(spaces["obs_shape"]) if own is None else (own, f"what {config.algo} has")
    follow = layers_after(name, type(settings).model_fields)
    given = {"torso": name, **{key: value for key, value in follow.items() if key not in settings.model_fields_set}}
    return config.replace(algo_kwargs={**config.algo_kwargs, **given}), f"{name} ({why})"


def _require_same_evaluation(config: TrainConfig, source: EnvSource, envs: VectorEnvs) -> None:
    """Raises ConfigError where evaluation's environment cannot be made, or is not one that the training's network can act in."""
    said_by = "eval_env_kwargs" if config.eval_env_kwargs else "vectorization: native"
    try:
        own = eval_envs(config, source, statistics=envs.statistics)(1)
    except UserError as error:
        raise ConfigError(f"{said_by}: evaluation's environment: {error}") from error
    own.close()
    ours, theirs = ({**describe_spaces(each), "normalized": each.observation_normalizer is not None} for each in (envs, own))
    if other := [f"{key} {theirs[key]}, and training {ours[key]}" for key in ours.keys() & theirs.keys() if theirs[key] != ours[key]]:
        raise ConfigError(f"{said_by}: evaluation has {other[0]}")


def planned_updates(config: TrainConfig) -> int | None:
    """The updates of a run from its beginning, or None where the row does not count them."""
    s = config.settings
    if not isinstance(s, ValueSettings):
        return None
    return UpdatePlan(s.train_frequency, s.gradient_steps).updates_until(config.total_timesteps, learning_starts=s.learning_starts)


def prepare(config: TrainConfig, env: EnvSource | None) -> Setup:
    """Make the environments and the network, and resolve every `auto` by what the network says of itself."""
    source, seeds = env_source(config, env), Seeds.of(config.seed)
    envs = make_envs(
        source,
        num_envs=1 if config.actors else config.num_envs,  # actors make their own: this one says what its spaces are
        seed=config.seed,
        env_kwargs=config.env_kwargs,
        vectorization=config.vectorization,
        gamma=getattr(config.settings, "gamma", 0.99),
    )
    try:
        require_row_spaces(config, envs)
        spaces = describe_spaces(envs)
        config, torso = with_torso(config, spaces)
        if config.eval_env_kwargs or config.vectorization == "native":  # whose evaluations play single environments
            _require_same_evaluation(config, source, envs)
        network = build_network(config, spaces, seeds.network, trains=True)
        found = resolve(
            network.facts,
            device=config.device,
            threads=config.threads,
            compile=config.compile,
            planned_updates=planned_updates(config),
            precision=config.precision,
            num_quantiles=getattr(config.settings, "num_quantiles", 0),
        )
        device = torch.device(found.device.value)
        _require_network_memory(network, found.device.value, copies=COPIES)
        network = network.to(device)
        use_precision(network, found.precision.value, device)
        if reads_previous(network) and envs.reward_normalizer is not None:
            raise ConfigError("previous_action_reward reads rewards as they are, and normalize_reward changes them: use one of the two")
        envs.begin()  # what a run has to store depends on whether they give action masks
        if envs.action_masks is not None:
            spaces["action_masks"] = True
        check_sanity(config)  # last: what is refused is told alone, without doubts about a run that never begins
    except BaseException:
        envs.close()
        raise
    torch.set_num_threads(int(found.threads.value))
    notes = {
        **{name: f"{what.value} ({what.why})" for name, what in found._asdict().items()},
        "speed": speed_note(),
        "vectorization": BACKENDS[config.vectorization],
        "resume": envs.resume_note or "exact on the CPU",
        **envs.notes,
    }
    if envs.action_masks is not None:
        notes["action_masks"] = "given by the environments"
    if said := conventions(config.env_id, config.env_kwargs):
        notes["environment"] = said
    if envs.image is not None:
        stacked = "" if envs.frame_stack == 1 else f", the last {envs.frame_stack} of them stacked"
        notes["observations"] = f"{envs.image}{stacked}"
    if torso:
        notes["torso"] = torso
    chosen = {"device": found.device.value, "threads": int(found.threads.value), "precision": found.precision.value}
    resolved = config.replace(**chosen, compile=found.compile.value == "on")
    return Setup(resolved, envs, network, device, seeds, spaces, notes, source)


_ONE_AT_A_TIME = threading.RLock()  # modules draw their first weights from torch's global generator: there is one in a process


def build_network(config: TrainConfig, spaces: Mapping[str, Any], seed: int, *, trains: bool = False) -> Network:
    """The row's network, initialised from its own seed without touching torch's global generator; with one thread, whatever the run has,
    so that the seed alone decides, also while other threads build theirs."""
    with _ONE_AT_A_TIME:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            with torch.random.fork_rng(devices=[]):
                _require_fit(config, spaces, trains)
                torch.manual_seed(seed)
                return config.spec.build_network(config.settings, spaces)
        finally:
            torch.set_num_threads(threads)


def _require_fit(config: TrainConfig, spaces: Mapping[str, Any], trains: bool) -> None:
    """Raises UserError where the row's network, or training it, does not fit into memory. It is counted without allocating it."""
    try:
        with torch.device("meta"):
            network = config.spec.build_network(config.settings, spaces)
    except Exception:  # a network of somebody's own that cannot be built so: it is built as it is
        return
    if trains:
        _require_network_memory(network, resolve_device(config.device, network.facts).value, copies=COPIES)
    else:
        _require_network_memory(network, "cpu")


def _require_network_memory(network: Network, device: str, *, copies: int = 1) -> None:
    """Raises UserError where the network, this many times, does not fit on the device."""
    size = sum(tensor.numel() * tensor.element_size() for tensor in (*network.parameters(), *network.buffers()))
    require_memory(copies * size, device=device, what=f"training a network of {format_bytes(size)}", remedy="make its layers smaller")

"""`TrainConfig`: everything that decides a run, checked before anything is written."""

from __future__ import annotations

import copy
import functools
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import yaml
from pydantic import (
    BeforeValidator,
    Field,
    PrivateAttr,
    ValidationError,
    field_validator,
    model_validator,
)
from typing_extensions import Self

from rl_training.errors import ConfigError
from rl_training.experiment.credentials import masked
from rl_training.experiment.explain import nearest, no_mapping, one_line, shown
from rl_training.experiment.files import write_text
from rl_training.experiment.frozen import Frozen, changed_copy
from rl_training.experiment.plain_values import AlgoKwargs, EnvKwargs, EvalEnvKwargs, Folder, Text, plain
from rl_training.experiment.registry import AlgorithmSpec, algorithm_names, get_algorithm_spec
from rl_training.experiment.settings import Count, Settings, Steps, ValueSettings
from rl_training.experiment.shipped import SHIPPED_CONFIGS, find_config, shipped_configs
from rl_training.experiment.tracking import parse_trackers
from rl_training.experiment.yaml_text import parse_yaml, read_yaml
from rl_training.types import DEVICE_NAMES

__all__ = [
    "SHIPPED_CONFIGS",
    "Override",
    "TrainConfig",
    "build_config",
    "callable_env_id",
    "find_config",
    "load_config",
    "parse_override",
    "row_values",
    "shipped_configs",
]

_CALLABLE = "callable:"
MAX_THREADS, MAX_PROCESSES = 1_024, 1_024
MAX_ENVS = 1_000_000  # of all actors together


class TrainConfig(Frozen):
    """A run: which row, on which environment, for how many environment steps, and the row's own `algo_kwargs`.

    Frozen: `replace` gives a changed copy. All step counts are environment steps, all environments together; an interval of 0 means only
    at the end.
    """

    algo: Text
    env_id: Text = Field(min_length=1)
    seed: int = Field(ge=0, lt=2**63)
    total_timesteps: Count
    output_dir: Folder
    device: str = "auto"
    replay_device: Literal["auto", "cpu", "cuda"] = "auto"  # where replay lives, for a run that learns on a GPU
    num_envs: Annotated[int, Field(ge=1, le=65_536)] = 1
    eval_episodes: Annotated[int, Field(ge=1, le=1_000_000)] = 5
    eval_max_steps: Count = 27_000
    eval_interval: Steps = 5_000
    log_interval: Steps = 1_000
    checkpoint_interval: Steps = 10_000
    checkpoint_replay: bool = True
    keep_checkpoints: Count = 3
    tags: Annotated[tuple[Text, ...], BeforeValidator(lambda value: tuple(value) if isinstance(value, list) else value)] = ()
    algo_kwargs: AlgoKwargs = Field(default_factory=dict, validate_default=True)
    env_kwargs: EnvKwargs = Field(default_factory=dict, validate_default=True)
    eval_env_kwargs: EvalEnvKwargs | None = None
    """Keywords of the environments that evaluations play in, in place of those that `env_kwargs` has of the same name."""
    vectorization: Literal["auto", "sync", "async", "native"] = "auto"
    compile: Literal["auto"] | bool = "auto"
    threads: Literal["auto"] | int = "auto"
    precision: Literal["auto", "float32", "tf32", "bf16"] = "auto"
    actors: Annotated[int, Field(ge=0, le=65_536)] = 0
    """Ray processes that act, each with `num_envs` environments; 0: this process acts, and Ray is not imported."""
    ray_address: Text | None = None
    """Of the cluster they run on (`host:port`, or `auto`); None: Ray is started on this machine."""
    lockstep: bool = False
    """One actor and the learner wait for each other: the run is the local one, byte for byte."""
    replay_shards: Annotated[int, Field(ge=0, le=4_096)] = 0
    """Ray processes that hold the replay; 0: it is beside the learner."""
    trackers: Annotated[tuple[Any, ...], BeforeValidator(lambda value: tuple(value) if isinstance(value, list) else value)] = ()
    schedule_timesteps: Count | None = None
    """The total that ε, β and learning rate run over, where it is not `total_timesteps`: a resumed run moves its end, not its schedules."""

    _settings: Settings = PrivateAttr()

    if not TYPE_CHECKING:  # type checkers keep the field-by-field signature

        def __init__(self, **values: Any) -> None:
            try:
                super().__init__(**values)
            except ValidationError as error:
                raise ConfigError(one_line(error, unknown=_unknown_key(values.get("algo")))) from None

    @field_validator("device", mode="before")
    @classmethod
    def _known_device(cls, value: object) -> object:
        if not isinstance(value, str) or not re.fullmatch(DEVICE_NAMES, value):
            raise ValueError(f"must be auto, cpu, cuda, cuda:<number> or mps, got {shown(value)}")
        return value

    @field_validator("compile", mode="before")
    @classmethod
    def _known_compile(cls, value: object) -> object:
        if value != "auto" and not isinstance(value, bool):
            raise ValueError(f"must be auto, true or false, got {shown(value)}")
        return value

    @field_validator("threads", mode="before")
    @classmethod
    def _known_threads(cls, value: object) -> object:
        if value != "auto" and not (isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MAX_THREADS):
            raise ValueError(f"must be auto or an integer from 1 to {MAX_THREADS:,}, got {shown(value)}")
        return value

    @field_validator("trackers")
    @classmethod
    def _known_trackers(cls, value: tuple[Any, ...]) -> tuple[Any, ...]:
        parse_trackers(value)
        return tuple(plain(list(value)))

    @model_validator(mode="after")
    def _parse_settings(self) -> Self:
        self._settings = get_algorithm_spec(self.algo).parse(self.algo_kwargs)
        if self.vectorization == "async" and self.num_envs > MAX_PROCESSES:
            raise ValueError(f"num_envs must be <= {MAX_PROCESSES:,} with vectorization: async (a process each), got {self.num_envs}")
        for key, most in (("n_step", 10**7), ("sequence_length", 10**7), ("num_steps", 10**9)):  # kept of every environment
            steps = getattr(self._settings, key, 0)
            if steps * self.num_envs > most:
                raise ValueError(f"algo_kwargs.{key} times num_envs must be <= {most:,}, got {steps} times {self.num_envs}")
        self._require_distributable()
        return self

    def _require_distributable(self) -> None:
        """What needs actors, and what actors need."""
        if self.actors == 0:
            for key in ("ray_address", "lockstep", "replay_shards"):
                if getattr(self, key):
                    raise ValueError(f"{key} needs actors > 0")
        elif not isinstance(self._settings, ValueSettings):
            raise ValueError(f"actors needs a row with a replay: {self.algo} learns only from what its current network did")
        if self.replay_shards and isinstance(self._settings, ValueSettings):
            least = getattr(self._settings, "sequence_length", 1)
            if self._settings.buffer_capacity // self.replay_shards < least:
                raise ValueError(f"algo_kwargs.buffer_capacity must be >= {least} for each of replay_shards: {self.replay_shards}")
        if self.lockstep and (self.actors != 1 or self.replay_shards):
            raise ValueError("lockstep needs actors: 1 and replay_shards: 0")
        if getattr(self._settings, "initial_priority", None) == "actor" and (self.lockstep or not self.actors):
            raise ValueError("algo_kwargs.initial_priority must be auto or max without actors, and in lockstep, got actor")
        processes = self.actors + self.replay_shards
        if self.ray_address is None and processes > MAX_PROCESSES:
            raise ValueError(f"actors and replay_shards must be <= {MAX_PROCESSES:,} processes on one machine, got {processes:,}")
        if self.actors * self.num_envs > MAX_ENVS:
            raise ValueError(f"actors times num_envs must be <= {MAX_ENVS:,}, got {self.actors} times {self.num_envs}")

    @property
    def spec(self) -> AlgorithmSpec:
        """The row."""
        return get_algorithm_spec(self.algo)

    @property
    def settings(self) -> Settings:
        """`algo_kwargs` as the row's typed settings, parsed when the config was made."""
        return self._settings

    @property
    def horizon(self) -> int:
        """The number of environment steps that schedules run over."""
        return self.schedule_timesteps or self.total_timesteps

    @property
    def keywords_of_evaluation(self) -> dict[str, Any]:
        """What the environments of an evaluation are made with."""
        return {**self.env_kwargs, **(self.eval_env_kwargs or {})}

    @property
    def env_is_callable(self) -> bool:
        """Whether the environment was a callable, which has to be passed again to evaluate or resume."""
        return self.env_id.startswith(_CALLABLE)

    def _instead(self, key: str, value: str) -> str:
        if key in TrainConfig.model_fields:
            return f"config.replace({key}={value}) gives a changed copy"
        if key in type(self.settings).model_fields:
            return changed_copy("algo_kwargs", key, value)
        return f"it{_unknown_key(self.algo)(key)}"

    def replace(self, **changes: Any) -> TrainConfig:
        """A checked copy with these keys changed."""
        return TrainConfig(**{**dict(self), **changes})

    def to_dict(self) -> dict[str, Any]:
        """The resolved config as YAML and JSON can hold it: every key, and in `algo_kwargs` every key of a part in use."""
        return {
            **dict(self),
            "output_dir": str(self.output_dir),
            "tags": list(self.tags),
            "trackers": masked(self.trackers),
            "algo_kwargs": self.settings.to_dict(),
            "env_kwargs": dict(self.env_kwargs),
            "eval_env_kwargs": None if self.eval_env_kwargs is None else dict(self.eval_env_kwargs),
        }

    def to_yaml(self) -> str:
        """The resolved config as text; `load_config` gives it back."""
        return yaml.safe_dump(self.to_dict(), sort_keys=False, allow_unicode=True)

    def save(self, path: str | Path) -> None:
        """Writes the resolved config."""
        write_text(Path(path), self.to_yaml())

    @classmethod
    def from_dict(cls, values: object, *, source: str) -> TrainConfig:
        """The config in `values`; an error says `source`, where they came from."""
        if not isinstance(values, Mapping):
            raise ConfigError(f"{source}: {no_mapping(values, such_as='algo: dqn')}")
        if strange := [key for key in values if not isinstance(key, str)]:
            raise ConfigError(f"{source}: {shown(strange[0])} is not a key of a config")
        try:
            return cls(**values)
        except ConfigError as error:
            raise ConfigError(f"{source}: {error}") from None


def _unknown_key(algo: object) -> Callable[[str], str]:
    def say(key: str) -> str:
        close = nearest(key, TrainConfig.model_fields)
        if close is None and isinstance(algo, str):
            fields = get_algorithm_spec(algo).settings.model_fields
            inner = key if key in fields else nearest(key, fields)
            if inner:
                return f" is not a key of a config; did you mean algo_kwargs.{inner}?"
        return " is not a key of a config" + (
            f"; did you mean {close}?" if close else " of this version (`rl-training --version` says which)"
        )

    return say


def callable_env_id(make_env: Callable[..., Any]) -> str:
    """The `env_id` of a run whose environment is made by a callable."""
    while isinstance(make_env, functools.partial):
        make_env = make_env.func
    return _CALLABLE + getattr(make_env, "__qualname__", type(make_env).__qualname__)


def row_values(row: str, env_id: str) -> dict[str, Any]:
    """A config of a row on an environment that says nothing else: what a file has to have, and the row's defaults for the rest."""
    return {"algo": row, "env_id": env_id, "seed": 0, "total_timesteps": 50_000, "output_dir": "runs"}


class Override(NamedTuple):
    """`key` (dotted inside `algo_kwargs` and `env_kwargs`) set to `value` by `origin`, which an error then names."""

    key: str
    value: object
    origin: str


def parse_override(text: str) -> Override:
    """`--set KEY=VALUE`, the value read as YAML."""
    key, equals, value = text.partition("=")
    key, origin = key.strip(), f"--set {text}"
    if not equals or not all(key.split(".")) or not value.strip():
        raise ConfigError(f"{origin}: must be KEY=VALUE, such as algo_kwargs.batch_size=64")
    return Override(key, parse_yaml(value, source=origin), origin)


def _apply(values: dict[str, Any], override: Override) -> None:
    *path, last = override.key.split(".")
    for depth, part in enumerate(path):
        inner = values.get(part)
        if inner is None:
            inner = values[part] = {}
        if not isinstance(inner, dict):
            raise ConfigError(f"{override.origin}: {'.'.join(path[: depth + 1])} holds no keys")
        values = inner
    values[last] = override.value


def _drop_what_is_switched_off(values: dict[str, Any], changes: Iterable[Override]) -> None:
    """If an override switches a part off, the file's numbers for that part go with it: `prioritized=false` takes `prioritized_alpha` along.

    A number that an override gives itself stays, and is refused as it would be in a file.
    """
    kwargs, algo = values.get("algo_kwargs"), values.get("algo")
    if not isinstance(kwargs, dict) or not isinstance(algo, str) or algo not in algorithm_names():
        return  # refused later, with its reason
    given = {change.key.removeprefix("algo_kwargs.") for change in changes if change.key.startswith("algo_kwargs.")}
    needs = get_algorithm_spec(algo).settings.needs
    for key in kwargs.keys() - given:
        if any(need.switch in given and not need.met(kwargs) for need in needs(key)):
            del kwargs[key]


def load_config(path: str | Path, overrides: Iterable[Override | str] = ()) -> TrainConfig:
    """Reads a config file, changed by `overrides` (`"key=value"`, or `Override`s)."""
    return build_config(read_yaml(find_config(path), source=str(path)), overrides, source=str(path))


def build_config(values: Any, overrides: Iterable[Override | str] = (), *, source: str) -> TrainConfig:
    """The config in `values` (they are not changed), changed by `overrides`; an error says `source`, or the override it came from."""
    changes = [parse_override(each) if isinstance(each, str) else each for each in overrides]
    if isinstance(values, dict):
        values = copy.deepcopy(values)
        for change in changes:
            _apply(values, change)
        _drop_what_is_switched_off(values, changes)
    try:
        return TrainConfig.from_dict(values, source=source)
    except ConfigError as error:
        message = str(error).removeprefix(f"{source}: ")
        for change in reversed(changes):  # the message begins with the key: say who set it
            if message.startswith((f"{change.key} ", f"{change.key}.")):
                raise ConfigError(f"{change.origin}: {message}") from None
        raise

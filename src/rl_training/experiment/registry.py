"""The table of algorithms: a variant is a row, not a class.

A row says what an algorithm *is* (`fixed`, `minimum`); configs tune the rest. Trainers are named as `module:function` and imported
when used, so this table and everything that reads it (`algos`, `--help`, configs) stays free of torch.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rl_training.errors import ConfigError
from rl_training.experiment.explain import did_you_mean, nearest
from rl_training.experiment.explain import shown as _shown
from rl_training.experiment.network_parts import imported, torso_observations
from rl_training.experiment.settings import (
    LearningSettings,
    PPOSettings,
    PQNSettings,
    RecurrentPPOSettings,
    RecurrentPQNSettings,
    RecurrentSettings,
    Settings,
    ValueSettings,
)

if TYPE_CHECKING:
    from rl_training.models.network import Network


@dataclass(frozen=True)
class AlgorithmSpec:
    """One row. `trainer` is `module:function` or the function itself: `(config, run_suffix=None, **options) -> result`.

    `network` likewise, `(settings, spaces) -> network`; where a row has none of its own, `build_network` beside its trainer is meant.
    """

    name: str
    trainer: str | Callable[..., Any]
    summary: str
    paper: str = ""
    settings: type[Settings] = ValueSettings
    fixed: Mapping[str, Any] = field(default_factory=dict)  # identity: a config that says otherwise is refused
    defaults: Mapping[str, Any] = field(default_factory=dict)  # numbers, before the settings' own defaults
    minimum: Mapping[str, float] = field(default_factory=dict)  # identity of a number: n_step_dqn has n_step >= 2
    observations: tuple[str, ...] = ("vector", "image")
    actions: tuple[str, ...] = ("discrete",)
    network: str | Callable[..., Any] | None = None
    image_torso: str | None = None  # what `torso: auto` is for images; None: by their size

    @property
    def train_fn(self) -> Callable[..., Any]:
        """The trainer, imported now."""
        return imported(self.trainer)

    def build_network(self, settings: Settings, spaces: Mapping[str, Any]) -> Network:
        """The row's network, with weights from torch's generator. A plain module is taken for a Q-network (see `as_network`)."""
        from torch import nn

        from rl_training.models.plain import PlainQNetwork, as_network

        own = importlib.import_module(self.train_fn.__module__).build_network if self.network is None else imported(self.network)
        if isinstance(own, nn.Module):  # one for all runs, with the weights it has
            raise ConfigError(
                f"{self.name}: `network` is a function (settings, spaces) that makes a module, and not a {type(own).__name__}"
            )
        network: Network = as_network(own(settings, spaces))
        if isinstance(network, PlainQNetwork) and "num_actions" in spaces:
            network.require_actions(spaces["obs_shape"], spaces["num_actions"])
            if isinstance(settings, ValueSettings):
                self._require_plain(settings)
        return network

    def _require_plain(self, settings: ValueSettings) -> None:
        """Raises ConfigError where the settings ask a plain module for what only a head of the package gives."""
        for key in ("head", "dueling", "noisy"):
            if (value := getattr(settings, key)) != ValueSettings.model_fields[key].default:
                shown = str(value).lower()
                raise ConfigError(
                    f"{key} is {shown}, and {self.name}'s network is a plain module of Q-values: use a head (make_head) for that"
                )

    @property
    def parts(self) -> tuple[str, ...]:
        """What this row is made of beside a plain DQN's or PPO's parts, in words: (`categorical head`, `dueling`, `n_step >= 2`, ...)."""
        recurrent = ("recurrent",) if "recurrent_hidden_size" in self.settings.model_fields else ()
        fixed = (key if value is True else f"{value} {key}" for key, value in self.fixed.items())
        return (*recurrent, *fixed, *(f"{key} >= {least}" for key, least in self.minimum.items()))

    def observations_of(self, settings: Settings) -> tuple[str, ...]:
        """The kinds of observations this row learns from with these settings: those of its torso, where one is named."""
        named = torso_observations(settings.torso) if isinstance(settings, LearningSettings) else None
        return self.observations if named is None else named

    def parse(self, algo_kwargs: Mapping[str, Any], *, prefix: str = "algo_kwargs.") -> Settings:
        """The typed settings of this row, or a ConfigError that names the key."""
        for key, value in self.fixed.items():
            if key in algo_kwargs and algo_kwargs[key] != value:
                shown = str(value).lower()
                raise ConfigError(f"{prefix}{key} is {shown} in every {self.name} (that is what it is), got {_shown(algo_kwargs[key])}")
        merged = {**self.defaults, **self.fixed, **algo_kwargs}
        for key in self.defaults.keys() - algo_kwargs.keys():  # a default of a part this config switched off
            if not all(need.met(merged) for need in self.settings.needs(key)):
                del merged[key]
        settings = self.settings.parse(merged, owner=self.name, prefix=prefix)
        for key, least in self.minimum.items():
            if getattr(settings, key) < least:
                raise ConfigError(f"{prefix}{key} is at least {least} in every {self.name}, got {getattr(settings, key)}")
        return settings


_TABLE: dict[str, AlgorithmSpec] = {}


def register_algorithm(
    name: str,
    *,
    trainer: str | Callable[..., Any],
    summary: str,
    paper: str = "",
    settings: type[Settings] = ValueSettings,
    fixed: Mapping[str, Any] | None = None,
    defaults: Mapping[str, Any] | None = None,
    minimum: Mapping[str, float] | None = None,
    observations: tuple[str, ...] | None = None,
    actions: tuple[str, ...] = ("discrete",),
    network: str | Callable[..., Any] | None = None,
    image_torso: str | None = None,
) -> AlgorithmSpec:
    """Adds a row, which `train`, `resume`, `eval`, `predict` and configs then know by its name.

    observations: vectors and images, unless given; vectors with a `network` of its own.
    """
    if name in _TABLE:
        raise ConfigError(f"algorithm {name!r} is already registered")
    if observations is None:
        observations = ("vector", "image") if network is None else ("vector",)
    spec = AlgorithmSpec(
        name, trainer, summary, paper, settings, fixed or {}, defaults or {}, minimum or {}, observations, actions, network, image_torso
    )
    spec.parse({})  # a row whose own values do not fit its settings is found here, not at its first run
    _TABLE[name] = spec
    return spec


def get_algorithm_spec(name: str) -> AlgorithmSpec:
    """The row called `name`."""
    try:
        return _TABLE[name]
    except (KeyError, TypeError):
        own = "" if nearest(name, _TABLE) else "; for a row of your own import its module first (--import MODULE)"
        raise ConfigError(f"algo {name!r} is unknown{did_you_mean(name, _TABLE)}{own}") from None


def algorithm_names() -> tuple[str, ...]:
    """Every row, in the order it was registered."""
    return tuple(_TABLE)


_DQN = "rl_training.runtime.dqn_trainer:train_dqn"

register_algorithm("dqn", trainer=_DQN, summary="deep Q-network: replay and a target network", paper="arXiv:1312.5602")
register_algorithm(
    "double_dqn",
    trainer=_DQN,
    summary="the online network selects the target's action",
    paper="arXiv:1509.06461",
    fixed={"double_q": True},
)
register_algorithm(
    "dueling_dqn", trainer=_DQN, summary="separate value and advantage streams", paper="arXiv:1511.06581", fixed={"dueling": True}
)
register_algorithm(
    "noisy_dqn", trainer=_DQN, summary="explores by learned noise in the weights", paper="arXiv:1706.10295", fixed={"noisy": True}
)
register_algorithm(
    "prioritized_dqn",
    trainer=_DQN,
    summary="replays surprising transitions more often",
    paper="arXiv:1511.05952",
    fixed={"prioritized": True},
)
register_algorithm(
    "n_step_dqn",
    trainer=_DQN,
    summary="multi-step returns",
    paper="Sutton & Barto 2018, ch. 7",
    defaults={"n_step": 3},
    minimum={"n_step": 2},
)
register_algorithm(
    "c51_dqn",
    trainer=_DQN,
    summary="the return's distribution on fixed atoms",
    paper="arXiv:1707.06887",
    fixed={"head": "categorical"},
)
register_algorithm(
    "qr_dqn", trainer=_DQN, summary="the return's quantiles at fixed levels", paper="arXiv:1710.10044", fixed={"head": "quantile"}
)
register_algorithm(
    "iqn",
    trainer=_DQN,
    summary="the return's quantiles at sampled levels",
    paper="arXiv:1806.06923",
    fixed={"head": "implicit"},
    defaults={"num_quantiles": 64},
)
register_algorithm(
    "rainbow_dqn",
    trainer=_DQN,
    summary="categorical, dueling, noisy, double, n-step and prioritized together",
    paper="arXiv:1710.02298",
    fixed={"head": "categorical", "dueling": True, "noisy": True, "double_q": True, "prioritized": True},
    defaults={"n_step": 3, "prioritized_alpha": 0.5},
    minimum={"n_step": 2},
)
register_algorithm(
    "munchausen_dqn",
    trainer=_DQN,
    summary="the policy's own log-probability as a reward, and a soft maximum",
    paper="arXiv:2007.14430",
    fixed={"munchausen": True},
)
register_algorithm(
    "munchausen_iqn",
    trainer=_DQN,
    summary="Munchausen DQN with the return's quantiles at sampled levels",
    paper="arXiv:2007.14430",
    fixed={"munchausen": True, "head": "implicit"},
    defaults={"num_quantiles": 64},
)
register_algorithm(
    "btr",
    trainer=_DQN,
    summary="Beyond the Rainbow: dueling noisy IQN with Munchausen, n-step, priorities and a wide residual torso",
    paper="arXiv:2411.03820",
    fixed={"head": "implicit", "dueling": True, "noisy": True, "munchausen": True, "prioritized": True},
    # As Agent.py and main.py of VIPTankz/BeyondTheRainbowICML (commit 0e08f8b) have them, in environment steps of 4 frames; their schedules
    # run over 50M steps. docs/atari-compared.md lists where we differ.
    defaults={
        "n_step": 3,
        "gamma": 0.997,
        "learning_rate": 1e-4,
        "adam_eps": 0.005 / 256,
        "batch_size": 256,
        "buffer_capacity": 1_048_576,
        "learning_starts": 200_000,
        "train_frequency": 64,
        "target_update_interval": 32_000,
        "num_quantiles": 8,
        "num_target_quantiles": 8,
        "num_acting_quantiles": 8,
        "prioritized_alpha": 0.2,
        "hidden_sizes": (512,),
        "torso_width": 2,
        "spectral_norm": True,
        "noisy_epsilon": True,
        "epsilon_end": 0.01,
        "exploration_fraction": 0.04,  # eps_steps = 2,000,000, a time constant (see runtime/schedules.py)
    },
    minimum={"n_step": 2},
    image_torso="impala",
)
register_algorithm(
    "drqn",
    trainer="rl_training.runtime.drqn_trainer:train_drqn",
    summary="a recurrent network, trained on sequences from their stored state",
    paper="arXiv:1507.06527",
    settings=RecurrentSettings,
)
register_algorithm(
    "r2d2",
    trainer="rl_training.runtime.r2d2_trainer:train_r2d2",
    summary="recurrent double Q-learning on prioritized sequences",
    paper="Kapturowski et al., ICLR 2019",
    settings=RecurrentSettings,
    fixed={"prioritized": True},
    # the paper's: double-Q, α and a constant β; burn-in, overlap, rescaling and n-step are options
    defaults={"double_q": True, "prioritized_alpha": 0.9, "prioritized_beta_start": 0.6, "prioritized_beta_end": 0.6},
)
register_algorithm(
    "ppo",
    trainer="rl_training.runtime.ppo_trainer:train_ppo",
    summary="clipped policy gradient on fresh rollouts",
    paper="arXiv:1707.06347",
    settings=PPOSettings,
    actions=("discrete", "multi_discrete", "box"),
)
register_algorithm(
    "recurrent_ppo",
    trainer="rl_training.runtime.recurrent_ppo_trainer:train_recurrent_ppo",
    summary="PPO with a recurrent network, on whole sequences",
    paper="arXiv:2205.11104",
    settings=RecurrentPPOSettings,
    actions=("discrete", "multi_discrete", "box"),
)
register_algorithm(
    "pqn",
    trainer="rl_training.runtime.pqn_trainer:train_pqn",
    summary="Q(λ) on fresh rollouts of many environments, with layer norm in place of replay and target network",
    paper="arXiv:2407.04811",
    settings=PQNSettings,
)
register_algorithm(
    "recurrent_pqn",
    trainer="rl_training.runtime.recurrent_pqn_trainer:train_recurrent_pqn",
    summary="PQN with a recurrent network, on whole sequences",
    paper="arXiv:2407.04811",
    settings=RecurrentPQNSettings,
)

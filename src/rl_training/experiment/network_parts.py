"""Torsos and cores by name: what `algo_kwargs.torso` and `algo_kwargs.core` may say.

A torso is what first reads an observation, a core the memory of a recurrent row. Like a row's trainer, each is named as `module:class` or
given itself, and imported when used.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from rl_training.errors import ConfigError
from rl_training.experiment.explain import did_you_mean

if TYPE_CHECKING:
    from rl_training.models.recurrent import Core
    from rl_training.models.torsos import Torso


class TorsoSpec(NamedTuple):
    make: str | Callable[[Sequence[int]], Torso]
    observations: tuple[str, ...]


_TORSOS: dict[str, TorsoSpec] = {}
_CORES: dict[str, str | Callable[[int, int, int], Core]] = {}
FULLY_CONNECTED = ("auto", "mlp")
"""Torsos that are none: a row's fully connected layers read the observation itself."""


def register_torso(name: str, make: str | Callable[[Sequence[int]], Torso], *, observations: tuple[str, ...] = ("image",)) -> None:
    """Adds a torso, `(obs_shape) -> Torso`, for `torso: name` in the configs of every row.

    observations: the kinds it reads, in the words of envs/spaces.py: vector, image (three axes of uint8), box (any).
    """
    if name in (*FULLY_CONNECTED, *_TORSOS):
        raise ConfigError(f"torso {name!r} is already registered")
    _TORSOS[name] = TorsoSpec(make, observations)


def register_core(name: str, make: str | Callable[[int, int, int], Core]) -> None:
    """Adds a core, `(in_dim, hidden_size, num_layers) -> Core`, for `core: name` in the configs of every recurrent row."""
    if name in _CORES:
        raise ConfigError(f"core {name!r} is already registered")
    _CORES[name] = make


def known_torso(name: str) -> str:
    """`name`, or a ValueError in words that follow the key."""
    return _known(name, (*FULLY_CONNECTED, *_TORSOS))


def known_core(name: str) -> str:
    """`name`, or a ValueError in words that follow the key."""
    return _known(name, _CORES)


def torso_observations(name: str) -> tuple[str, ...] | None:
    """The kinds of observations this torso reads; None: those of the row."""
    return None if name in FULLY_CONNECTED else _TORSOS[name].observations


def make_torso(name: str, obs_shape: Sequence[int]) -> Torso | None:
    """The torso called `name`; None where there is none."""
    if name in FULLY_CONNECTED:
        return None
    from rl_training.models.torsos import Torso

    made = imported(_TORSOS[name].make)(tuple(obs_shape))
    if not isinstance(made, Torso):
        raise ConfigError(f"torso {name!r} gave a {type(made).__name__}, which is no rl_training.models.Torso")
    return made


def core_maker(name: str) -> Callable[[int, int, int], Core]:
    """What makes the core called `name`."""
    maker: Callable[[int, int, int], Core] = imported(_CORES[name])
    return maker


def imported(target: str | Callable[..., Any]) -> Callable[..., Any]:
    """`module:name`, imported; a function or class as it is."""
    if callable(target):
        return target
    module, _, name = target.partition(":")
    loaded: Callable[..., Any] = getattr(importlib.import_module(module), name)
    return loaded


def _known(name: str, table: Sequence[str] | dict[str, Any]) -> str:
    if name not in table:
        raise ValueError(f"has no {name!r}{did_you_mean(name, table)}")
    return name


register_core("lstm", "rl_training.models.recurrent:LSTMCore")
register_core("gru", "rl_training.models.recurrent:GRUCore")

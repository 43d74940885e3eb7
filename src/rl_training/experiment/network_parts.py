"""Torsos and cores by name: what `algo_kwargs.torso` and `algo_kwargs.core` may say.

A torso is what first reads an observation, a core the memory of a recurrent row. Like a row's trainer, each is named as `module:class` or
given itself, and imported when used.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from rl_training.errors import ConfigError
from rl_training.experiment.explain import did_you_mean

if TYPE_CHECKING:
    from rl_training.models.recurrent import Core
    from rl_training.models.torsos import Torso


class TorsoSpec(NamedTuple):
    make: str | Callable[..., Torso]
    observations: tuple[str, ...]
    keywords: tuple[str, ...] = ()  # settings that it takes by these names
    layers: int = 0  # units of the layer that follows it, where the settings do not say otherwise
    takes_high: bool = False  # it divides images by the space's largest value


_TORSOS: dict[str, TorsoSpec] = {}
_CORES: dict[str, str | Callable[[int, int, int], Core]] = {}
FULLY_CONNECTED = ("auto", "mlp")
"""Torsos that are none: a row's fully connected layers read the observation itself."""


def register_torso(name: str, make: str | Callable[..., Torso], *, observations: tuple[str, ...] = ("image",), layers: int = 0) -> None:
    """Adds a torso, `(obs_shape) -> Torso`, for `torso: name` in the configs of every row.

    observations: the kinds it reads, in the words of envs/spaces.py: vector, image (bytes [C, H, W]), box (any).
    layers: units of the fully connected layer after it where the settings do not say; 0: the row's own default.
    """
    _add_torso(name, TorsoSpec(make, observations, layers=layers))


def _add_torso(name: str, spec: TorsoSpec) -> None:
    if name in (*FULLY_CONNECTED, *_TORSOS):
        raise ConfigError(f"torso {name!r} is already registered")
    _TORSOS[name] = spec


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
    if name == "mlp":
        return ("vector",)
    return None if name == "auto" else _TORSOS[name].observations


def image_torso(obs_shape: Sequence[int]) -> tuple[str, str]:
    """The torso for images [C, H, W] where none is named, and why."""
    side = min(obs_shape[1:])
    if side >= NATURE_FROM:
        return "nature", f"the shorter side has {NATURE_FROM} pixels or more"
    if side > MINATAR_UP_TO:
        return "impala", f"the shorter side has {MINATAR_UP_TO + 1} to {NATURE_FROM - 1} pixels"
    return "minatar", f"the shorter side has up to {MINATAR_UP_TO} pixels"


NATURE_FROM, MINATAR_UP_TO = 64, 16
"""Of an image's shorter side. Nature's first convolution is 8 pixels wide and moves by 4: below some 64 it sees too little detail.
MinAtar's keeps every pixel: 16 × 16 give 3,136 features, as many as Nature's of 84 × 84."""


def layers_after(torso: str, keys: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that follow from the torso where nobody gave them: one layer of its paper's size with ReLU,
    and a core as wide.

    keys: those that the row has.
    """
    units = 0 if torso in FULLY_CONNECTED else _TORSOS[torso].layers
    if not units:
        return {}
    activation = {"activation": "relu"} if "activation" in keys else {}
    if "recurrent_hidden_size" in keys:
        return {"hidden_sizes": [], "features_dim": units, "recurrent_hidden_size": units, **activation}
    return {"hidden_sizes": [units], **activation}


def make_torso(settings: Any, spaces: Mapping[str, Any]) -> Torso | None:
    """What `settings.torso` names, for observations as `spaces` describes them; None where there is none."""
    if settings.torso in FULLY_CONNECTED:
        return None
    from rl_training.models.torsos import Torso

    spec = _TORSOS[settings.torso]
    keywords = {key: getattr(settings, key) for key in spec.keywords}
    if spec.takes_high:
        keywords["high"] = spaces["image"]["high"]
    made = imported(spec.make)(tuple(spaces["obs_shape"]), **keywords)
    if not isinstance(made, Torso):
        raise ConfigError(f"torso {settings.torso!r} gave a {type(made).__name__}, which is no rl_training.models.Torso")
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


_LAYERS = ("activation", "layer_norm")
_NATURE = ("torso_padding", *_LAYERS)
_add_torso("nature", TorsoSpec("rl_training.models.image_torsos:NatureTorso", ("image",), _NATURE, layers=512, takes_high=True))
_add_torso(
    "impala",
    TorsoSpec(
        "rl_training.models.image_torsos:ImpalaTorso", ("image",), ("torso_width", "spectral_norm", *_LAYERS), layers=256, takes_high=True
    ),
)
_add_torso("minatar", TorsoSpec("rl_training.models.image_torsos:MinAtarTorso", ("image",), _LAYERS, layers=128, takes_high=True))
register_core("lstm", "rl_training.models.recurrent:LSTMCore")
register_core("gru", "rl_training.models.recurrent:GRUCore")

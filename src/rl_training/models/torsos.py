"""What turns an observation into features: the encoder of a network."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Sequence
from math import prod
from typing import Any

from torch import Tensor, nn

from rl_training.models.mlp_layers import ACTIVATIONS, RELU, Activation, layer_norms, layer_parameters, linear_stack
from rl_training.types import ActivationName


class Torso(nn.Module, ABC):
    """Observations [B, *obs_shape], as the environment gives them → features [B, out_dim].

    A torso of your own says its `out_dim`; integers (an image's bytes) reach it as they are stored.
    """

    out_dim: int

    @abstractmethod
    def forward(self, obs: Tensor) -> Tensor: ...


class MLPTorso(Torso):
    """Layers with an activation (ReLU), and before it a layer norm if asked for, over a vector observation. With no `hidden_sizes` it is
    the identity. Integers become floats."""

    def __init__(self, obs_dim: int, hidden_sizes: Sequence[int], activation: Activation = RELU, layer_norm: bool = False) -> None:
        super().__init__()
        self.activation = activation
        sizes = [obs_dim, *hidden_sizes]
        self.layers = nn.ModuleList(nn.Linear(i, o) for i, o in itertools.pairwise(sizes))
        self.norm_layers = layer_norms(hidden_sizes, layer_norm)
        self.params, self.norms = layer_parameters(self.layers), layer_parameters(self.norm_layers)
        self.out_dim = sizes[-1]

    def relu_parameters(self) -> tuple[Any, ...] | None:
        """W₁, b₁, … if there is nothing but ReLU between them."""
        return self.params if self.activation is RELU and not self.norms else None

    def forward(self, obs: Tensor) -> Tensor:
        x = obs if obs.is_floating_point() else obs.float()
        return linear_stack(x, self.params, activation=self.activation, activate_last=True, norms=self.norms)


def mlp_torso(obs_dim: int, hidden_sizes: Sequence[int], *, activation: ActivationName = "relu", layer_norm: bool = False) -> MLPTorso:
    """The same with its activation by name."""
    return MLPTorso(obs_dim, hidden_sizes, ACTIVATIONS[activation], layer_norm)


class FlatTorso(Torso):
    """An observation of any shape as a vector of floats."""

    def __init__(self, obs_shape: Sequence[int]) -> None:
        super().__init__()
        self.out_dim = prod(obs_shape)

    def forward(self, obs: Tensor) -> Tensor:
        return obs.flatten(1).float()


class ChainedTorso(Torso):
    """A torso, then fully connected layers."""

    def __init__(self, first: Torso, layers: MLPTorso) -> None:
        super().__init__()
        self.first, self.layers, self.out_dim = first, layers, layers.out_dim

    def forward(self, obs: Tensor) -> Tensor:
        features: Tensor = self.first(obs)
        return self.layers.forward(features)


def make_encoder(
    obs_shape: Sequence[int],
    hidden_sizes: Sequence[int],
    activation: Activation = RELU,
    torso: Torso | None = None,
    layer_norm: bool = False,
) -> Torso:
    """`torso`, then layers of `hidden_sizes`. Without one the layers read the observation itself, flattened."""
    if torso is None and len(obs_shape) == 1:
        return MLPTorso(obs_shape[0], hidden_sizes, activation, layer_norm)
    first = FlatTorso(obs_shape) if torso is None else torso
    return ChainedTorso(first, MLPTorso(first.out_dim, hidden_sizes, activation, layer_norm)) if hidden_sizes else first


def features_dim_of(obs_shape: Sequence[int], hidden_sizes: Sequence[int], torso: Torso | None = None) -> int:
    """The `out_dim` of that encoder, before it is made."""
    in_dim = prod(obs_shape) if torso is None else torso.out_dim
    return [in_dim, *hidden_sizes][-1]

"""What turns an observation into features."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from rl_training.models.stack import RELU, Activation, layer_parameters, linear_stack


class MLPTorso(nn.Module):
    """Layers with an activation (ReLU) over a vector observation; with no `hidden_sizes` it is the identity. Integers become floats."""

    def __init__(self, obs_dim: int, hidden_sizes: Sequence[int], activation: Activation = RELU) -> None:
        super().__init__()
        self.activation = activation
        sizes = [obs_dim, *hidden_sizes]
        self.layers = nn.ModuleList(nn.Linear(i, o) for i, o in itertools.pairwise(sizes))
        self.params = layer_parameters(self.layers)
        self.out_dim = sizes[-1]

    def relu_parameters(self) -> tuple[Any, ...] | None:
        """W₁, b₁, … if the activation is ReLU."""
        return self.params if self.activation is RELU else None

    def forward(self, obs: Tensor) -> Tensor:
        x = obs if obs.is_floating_point() else obs.float()
        return linear_stack(x, self.params, activation=self.activation, activate_last=True)

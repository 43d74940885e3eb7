"""What turns an observation into features."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from rl_training.models.stack import RELU, Activation, Pullback, layer_parameters, linear_stack, taped_stack


class MLPTorso(nn.Module):
    """Layers with an activation (ReLU) over a vector observation; with no `hidden_sizes` it is the identity. Integers become floats."""

    def __init__(self, obs_dim: int, hidden_sizes: Sequence[int], activation: Activation = RELU) -> None:
        super().__init__()
        self.activation = activation
        sizes = [obs_dim, *hidden_sizes]
        self.layers = nn.ModuleList(nn.Linear(i, o) for i, o in itertools.pairwise(sizes))
        self._params = layer_parameters(self.layers)
        self.out_dim = sizes[-1]

    def relu_parameters(self) -> tuple[Any, ...] | None:
        """W₁, b₁, … if the activation is ReLU."""
        return self._params if self.activation is RELU else None

    def forward(self, obs: Tensor) -> Tensor:
        x = obs if obs.is_floating_point() else obs.float()
        return linear_stack(x, self._params, activation=self.activation, activate_last=True)

    def taped(self, obs: Tensor) -> tuple[Tensor, Pullback]:
        """The same with its gradient by hand; nothing learns below an observation."""
        x = obs if obs.is_floating_point() else obs.float()
        return taped_stack(x, self._params, activation=self.activation, activate_last=True, input_gradient=False)

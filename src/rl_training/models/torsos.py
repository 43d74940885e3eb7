"""What turns an observation into features."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from torch import Tensor, nn

from rl_training.models.stack import Pullback, layer_parameters, relu_stack, taped_stack


class MLPTorso(nn.Module):
    """ReLU layers over a vector observation; with no `hidden_sizes` it is the identity. Integers become floats."""

    def __init__(self, obs_dim: int, hidden_sizes: Sequence[int]) -> None:
        super().__init__()
        sizes = [obs_dim, *hidden_sizes]
        self.layers = nn.ModuleList(nn.Linear(i, o) for i, o in itertools.pairwise(sizes))
        self._params = layer_parameters(self.layers)
        self.out_dim = sizes[-1]

    def forward(self, obs: Tensor) -> Tensor:
        x = obs if obs.is_floating_point() else obs.float()
        return relu_stack(x, self._params, relu_last=True)

    def taped(self, obs: Tensor) -> tuple[Tensor, Pullback]:
        """The same with its gradient by hand."""
        return taped_stack(obs if obs.is_floating_point() else obs.float(), self._params, relu_last=True)

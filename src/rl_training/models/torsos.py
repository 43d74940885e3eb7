"""What turns an observation into features."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class MLPTorso(nn.Module):
    """ReLU layers over a vector observation; with no `hidden_sizes` it is the identity. Integers become floats."""

    def __init__(self, obs_dim: int, hidden_sizes: Sequence[int]) -> None:
        super().__init__()
        sizes = [obs_dim, *hidden_sizes]
        self.layers = nn.ModuleList(nn.Linear(i, o) for i, o in zip(sizes[:-1], sizes[1:], strict=True))
        self.out_dim = sizes[-1]

    def forward(self, obs: Tensor) -> Tensor:
        x = obs if obs.is_floating_point() else obs.float()
        for layer in self.layers:
            # F.linear on the parameters: a module call per layer costs as much as the layer itself at this size.
            x = torch.relu(F.linear(x, layer.weight, layer.bias))
        return x

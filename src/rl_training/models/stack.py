"""A stack of linear layers with ReLU between them, called on the bare parameters.

Calling a module costs as much as the product it makes at the size of these networks, and looking a parameter up in a module costs a part of
that. (Measured and left: a hand-written `autograd.Function` of the whole stack. The engine's cost per Python node ate what it saved.)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def layer_parameters(layers: nn.ModuleList) -> tuple[Any, ...]:
    """W₁, b₁, W₂, b₂, … of linear layers. Their owner keeps the tuple: loading, moving and flattening keep the parameter objects."""
    return tuple(parameter for layer in layers for parameter in (layer.weight, layer.bias))


def relu_stack(x: Tensor, params: Sequence[Tensor], *, relu_last: bool) -> Tensor:
    """[..., in] → [..., out] through the layers W₁, b₁, W₂, b₂, …, with ReLU after each (after the last one if `relu_last`)."""
    last = len(params) - 2
    for i in range(0, len(params), 2):
        x = F.linear(x, params[i], params[i + 1])
        if relu_last or i < last:
            x = torch.relu(x)
    return x

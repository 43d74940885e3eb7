"""The layers of an MLP, with ReLU or tanh between them, called on the bare parameters.

At the size of these networks the calls of nested modules show beside the products they make.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

Activation: TypeAlias = Callable[[Tensor], Tensor]
ActivationName: TypeAlias = Literal["relu", "tanh"]
RELU: Activation = torch.relu
TANH: Activation = torch.tanh
ACTIVATIONS: dict[ActivationName, Activation] = {"relu": RELU, "tanh": TANH}


def layer_parameters(layers: Iterable[Any]) -> tuple[Any, ...]:
    """W₁, b₁, W₂, b₂, … of linear layers. Their owner keeps the tuple: loading, moving and flattening keep the parameter objects."""
    return tuple(parameter for layer in layers for parameter in (layer.weight, layer.bias))


def linear_stack(x: Tensor, params: Sequence[Tensor], *, activation: Activation = RELU, activate_last: bool) -> Tensor:
    """[..., in] → [..., out] through the layers W₁, b₁, W₂, b₂, …, with the activation after each (the last one if `activate_last`)."""
    last = len(params) - 2
    for i in range(0, len(params), 2):
        x = F.linear(x, params[i], params[i + 1])
        if activate_last or i < last:
            x = activation(x)
    return x

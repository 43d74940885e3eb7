"""The layers of an MLP with what stands between them, called on the bare parameters.

At the size of these networks the calls of nested modules show beside the products they make.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from typing_extensions import TypedDict

from rl_training.types import ActivationName

Activation: TypeAlias = Callable[[Tensor], Tensor]
RELU: Activation = torch.relu
TANH: Activation = torch.tanh
ACTIVATIONS: dict[ActivationName, Activation] = {"relu": RELU, "tanh": TANH, "elu": F.elu, "gelu": F.gelu, "silu": F.silu}
NORM_EPS = 1e-5  # torch's, added to the variance


class LayerOptions(TypedDict, total=False):
    """What stands between fully connected layers, as settings name it."""

    activation: ActivationName
    layer_norm: bool  # after each layer, before its activation (arXiv:2407.04811, §4)


def layer_norms(sizes: Iterable[int], layer_norm: bool) -> nn.ModuleList:
    """One for each hidden layer of these sizes; none where there shall be none."""
    return nn.ModuleList(nn.LayerNorm(size, eps=NORM_EPS) for size in sizes if layer_norm)


def layer_parameters(layers: Iterable[Any]) -> tuple[Any, ...]:
    """W₁, b₁, W₂, b₂, … of linear layers, or gains and biases of norms. Their owner keeps the tuple: loading, moving and flattening keep
    the parameter objects."""
    return tuple(parameter for layer in layers for parameter in (layer.weight, layer.bias))


def linear_stack(
    x: Tensor, params: Sequence[Tensor], *, activation: Activation = RELU, activate_last: bool, norms: Sequence[Tensor] = ()
) -> Tensor:
    """[..., in] → [..., out] through the layers W₁, b₁, W₂, b₂, …, with the activation after each (the last one if `activate_last`).

    norms: gain and bias of a layer norm before each activation, or none.
    """
    last = len(params) - 2
    for i in range(0, len(params), 2):
        x = F.linear(x, params[i], params[i + 1])
        if activate_last or i < last:
            if norms:
                x = F.layer_norm(x, x.shape[-1:], norms[i], norms[i + 1], NORM_EPS)
            x = activation(x)
    return x

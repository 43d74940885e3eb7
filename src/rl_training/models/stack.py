"""A stack of linear layers with ReLU between them, called on the bare parameters, and its gradient by hand.

At the size of these networks the calls of nested modules show beside the products they make, and so does each node that autograd
records and replays. A *taped* pass keeps what the gradient needs and hands back a `pullback`: the same products as autograd's, without
its nodes. (Measured and left: the same inside an `autograd.Function`. The engine's cost per Python node ate what it saved.)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Pullback: TypeAlias = Callable[[Tensor], tuple[list[Tensor], Tensor]]
"""∂L/∂output → the gradients of W₁, b₁, W₂, b₂, …, and ∂L/∂input before any ReLU that made the input."""


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


def taped_stack(x: Tensor, params: Sequence[Tensor], *, relu_last: bool) -> tuple[Tensor, Pullback]:
    """`relu_stack` of [B, in] with its pullback; to be called without autograd.

    With g = ∂L/∂(Wx + b):  ∂L/∂W = gᵀx,  ∂L/∂b = Σ_B g,  ∂L/∂x = gW, and a ReLU lets g through where its output is positive.
    """
    inputs = []
    last = len(params) - 2
    for i in range(0, len(params), 2):
        inputs.append(x)
        x = F.linear(x, params[i], params[i + 1])
        if relu_last or i < last:
            x = x.relu_()
    out = x

    def pullback(grad: Tensor) -> tuple[list[Tensor], Tensor]:
        grads: list[Tensor] = []
        if relu_last and inputs:
            grad = grad * out.sign()  # of a ReLU's output: 1 where it let through, else 0
        for i in range(len(inputs) - 1, -1, -1):
            grads += [grad.sum(0), grad.t().mm(inputs[i])]
            grad = grad.mm(params[2 * i])
            if i > 0:
                grad.mul_(inputs[i].sign())
        grads.reverse()
        return grads, grad

    return out, pullback

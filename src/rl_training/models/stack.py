"""A stack of linear layers with ReLU or tanh between them, called on the bare parameters, and its gradient by hand.

At the size of these networks the calls of nested modules show beside the products they make, and so does each node that autograd
records and replays. A *taped* pass keeps what the gradient needs and hands back a `pullback`: the same products as autograd's, without
its nodes. (Measured and left: the same inside an `autograd.Function`. The engine's cost per Python node ate what it saved.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

Pullback: TypeAlias = Callable[[Tensor], tuple[list[Tensor], Tensor]]
"""∂L/∂output → the gradients of W₁, b₁, W₂, b₂, …, and ∂L/∂input before any activation that made the input."""


class Activation(NamedTuple):
    """A nonlinearity whose derivative its output tells, so that a tape keeps one tensor a layer."""

    apply: Callable[[Tensor], Tensor]
    apply_: Callable[[Tensor], Tensor]  # in place
    backward: Callable[[Tensor, Tensor], Tensor]  # (∂L/∂output, output) → ∂L/∂input
    on_array_: Callable[[Any], Any]  # in place, for a pass in NumPy (numpy_pass.py)


ActivationName: TypeAlias = Literal["relu", "tanh"]
_ZERO = np.zeros((), np.float32)  # an array: NumPy takes a while to find a dtype for a number
RELU = Activation(
    torch.relu,
    torch.relu_,
    lambda grad, out: grad * out.sign(),  # 1 where it let through, else 0
    lambda x: np.maximum(x, _ZERO, out=x),
)
TANH = Activation(
    torch.tanh,
    torch.tanh_,
    lambda grad, out: torch.addcmul(grad, grad * out, out, value=-1),  # 1 − tanh²
    lambda x: np.tanh(x, out=x),
)
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
            x = activation.apply(x)
    return x


def taped_stack(
    x: Tensor, params: Sequence[Tensor], *, activation: Activation = RELU, activate_last: bool, input_gradient: bool = True
) -> tuple[Tensor, Pullback]:
    """`linear_stack` of [B, in] with its pullback; to be called without autograd.

    With g = ∂L/∂(Wx + b):  ∂L/∂W = gᵀx,  ∂L/∂b = Σ_B g,  ∂L/∂x = gW, and an activation scales g by its derivative. Where nothing below
    learns, `input_gradient=False` spares the last product, and an empty tensor stands for it.
    """
    inputs = []
    last = len(params) - 2
    for i in range(0, len(params), 2):
        inputs.append(x)
        x = F.linear(x, params[i], params[i + 1])
        if activate_last or i < last:
            x = activation.apply_(x)
    out = x

    def pullback(grad: Tensor) -> tuple[list[Tensor], Tensor]:
        grads: list[Tensor] = []
        if activate_last and inputs:
            grad = activation.backward(grad, out)
        for i in range(len(inputs) - 1, -1, -1):
            grads += [grad.sum(0), grad.t().mm(inputs[i])]
            if i > 0:
                grad = activation.backward(grad.mm(params[2 * i]), inputs[i])
            else:
                grad = grad.mm(params[0]) if input_gradient else grad.new_empty(0)
        grads.reverse()
        return grads, grad

    return out, pullback

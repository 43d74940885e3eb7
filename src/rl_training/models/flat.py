"""All parameters of a network as one tensor.

Adam, clipping and target updates become one operation each instead of one per parameter, which at the size of these networks
is most of what an update costs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn


def flatten_parameters(module: nn.Module) -> Tensor:
    """Move every parameter of `module` into one tensor, of which they become views; returns that tensor.

    The parameters stay the same objects with the same names and shapes, so `state_dict`, `parameters()` and autograd are unchanged.
    """
    parameters = list(module.parameters())
    flat = torch.cat([p.detach().reshape(-1) for p in parameters])
    offset = 0
    for p in parameters:
        p.data = flat[offset : offset + p.numel()].view_as(p)
        offset += p.numel()
    return flat


def split_like(module: nn.Module, flat: Tensor) -> list[Tensor]:
    """Views of `flat`, shaped as the parameters of `module`, in the order of `flatten_parameters`."""
    parameters = list(module.parameters())
    parts = flat.split([p.numel() for p in parameters])  # type: ignore[no-untyped-call]  # torch leaves it untyped
    return [part.view(p.shape) for part, p in zip(parts, parameters, strict=True)]


@contextmanager
def parameters_from(module: nn.Module, tensors: Sequence[Tensor]) -> Iterator[None]:
    """Inside, `module` computes with these tensors in place of its parameters (in the order of `parameters()`).

    `torch.func.functional_call` does not do here: layers keep tuples of their parameters (stack.py), and nn.LSTM a list of its own.
    """
    given = {id(p): tensor for p, tensor in zip(list(module.parameters()), tensors, strict=True)}
    saved = [(part, dict(part._parameters), dict(vars(part))) for part in module.modules()]
    try:
        for part, parameters, attributes in saved:
            part._parameters.update({name: given[id(p)] for name, p in parameters.items() if p is not None})  # type: ignore[misc]  # tensors
            for name, value in attributes.items():
                if isinstance(value, (tuple, list)) and any(isinstance(x, nn.Parameter) for x in value):
                    vars(part)[name] = type(value)(given.get(id(x), x) for x in value)
        yield
    finally:
        for part, parameters, attributes in saved:
            part._parameters.update(parameters)
            vars(part).update(attributes)

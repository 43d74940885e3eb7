"""Running a network on other tensors than its own parameters."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from torch import Tensor, nn


def split_like(module: nn.Module, flat: Tensor) -> list[Tensor]:
    """Views of `flat`, shaped as the parameters of `module`, in the order of `flatten_parameters`."""
    parameters = list(module.parameters())
    parts = flat.split([p.numel() for p in parameters])  # type: ignore[no-untyped-call]  # torch leaves it untyped
    return [part.view(p.shape) for part, p in zip(parts, parameters, strict=True)]


@contextmanager
def parameters_from(module: nn.Module, tensors: Sequence[Tensor]) -> Iterator[None]:
    """Inside, `module` computes with these tensors in place of its parameters (in the order of `parameters()`).

    `torch.func.functional_call` does not do here: layers keep tuples of their parameters (mlp_layers.py), and nn.LSTM a list of its own.
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

"""All parameters of a network as one tensor.

Adam, clipping and target updates become one operation each instead of one per parameter, which at the size of these networks
is most of what an update costs.
"""

from __future__ import annotations

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

"""What a network computes its passes in: float32, or bfloat16 where that is faster: on a GPU, or a processor that has instructions for it.

With bfloat16 the products and convolutions of a pass are torch's autocast's. Parameters, Adam, targets and losses stay float32, and so do
what a pass gives and the state it carries.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn

_AS_HELD: AbstractContextManager[Any] = nullcontext()


class MixedPrecision(nn.Module):
    """A network whose passes may be computed in less than its parameters are held in; `compute_dtype` None: as they are held."""

    compute_dtype: torch.dtype | None = None

    def computing(self, device: torch.device) -> AbstractContextManager[Any]:
        """Around what a pass computes."""
        return _AS_HELD if self.compute_dtype is None else torch.autocast(device.type, self.compute_dtype)

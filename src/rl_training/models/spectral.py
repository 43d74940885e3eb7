"""A convolution divided by its largest singular value (Miyato et al. 2018, arXiv:1802.05957)."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

FIRST_ITERATIONS = 15  # before the first pass, as torch's own has them


class SpectralConv2d(nn.Conv2d):
    """A convolution by W/σ, with σ = uᵀWv the largest singular value of W as a matrix [out, in·k·k].

    u and v follow W by one power iteration in each pass that is trained by: in train mode with gradients, so once an update. Acting, the
    target's passes and the online network's own choices of actions (double Q-learning) take them as they are. They are buffers: saved, and
    copied to the target. torch's `parametrizations.spectral_norm` iterates in every pass in train mode.
    """

    left: Tensor
    right: Tensor

    def __init__(self, *args: Any, eps: float = 1e-12, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.eps = eps
        weight = self.weight.detach().flatten(1)
        left, right = (F.normalize(torch.randn(size), dim=0, eps=eps) for size in weight.shape)
        self.register_buffer("left", left)
        self.register_buffer("right", right)
        for _ in range(FIRST_ITERATIONS):
            self.iterate()

    @torch.no_grad()
    def iterate(self) -> None:
        """One power iteration: u ← Wv, v ← Wᵀu, each normalised."""
        weight = self.weight.flatten(1)
        self.left.copy_(F.normalize(torch.mv(weight, self.right), dim=0, eps=self.eps))
        self.right.copy_(F.normalize(torch.mv(weight.t(), self.left), dim=0, eps=self.eps))

    def normalized_weight(self) -> Tensor:
        with torch.autocast(self.weight.device.type, enabled=False):  # σ in float32, whatever the convolution computes in
            if self.training and torch.is_grad_enabled():
                self.iterate()
            # clones: the next pass of the same update writes into the buffers, and this one's gradient still wants them
            left, right = self.left.clone(), self.right.clone()
            sigma: Tensor = torch.dot(left, torch.mv(self.weight.flatten(1), right))
            return self.weight / sigma

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self._conv_forward(x, self.normalized_weight(), self.bias)
        return out

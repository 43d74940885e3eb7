"""Layers that the heads are built from: the factorised noisy layer and a stack of plain or noisy layers."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rl_training.models.mlp_layers import NORM_EPS, RELU, Activation, layer_norms, layer_parameters, linear_stack


class NoisyLinear(nn.Module):
    """Linear layer with factorised Gaussian noise (arXiv:1706.10295, eq. 9–11).

    y = (μ_w + σ_w ⊙ ε_out ε_inᵀ) x + μ_b + σ_b ⊙ ε_out

    written as `μ_w x + μ_b + ε_out ⊙ (σ_w (ε_in ⊙ x) + σ_b)`: the noisy weight matrix is not built, so that `eps_in`, `eps_out`
    may have a row per sample ([B, in], [B, out]), which gives every environment a draw of its own in one batched call.
    Without `eps` the layer is its mean. The noise arrives already passed through f(x) = sign(x)√|x| (see `factorised_noise`).
    """

    def __init__(self, in_features: int, out_features: int, sigma: float = 0.5) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self.weight = nn.Parameter(torch.empty(out_features, in_features))
        self.bias = nn.Parameter(torch.empty(out_features))
        self.weight_sigma = nn.Parameter(torch.empty(out_features, in_features))
        self.bias_sigma = nn.Parameter(torch.empty(out_features))
        bound = 1 / math.sqrt(in_features)
        for mean in (self.weight, self.bias):
            nn.init.uniform_(mean, -bound, bound)
        for spread in (self.weight_sigma, self.bias_sigma):
            nn.init.constant_(spread, sigma * bound)

    def noisy_parameters(self, eps_in: Tensor, eps_out: Tensor) -> tuple[Tensor, Tensor]:
        """μ_w + σ_w ⊙ ε_out ε_inᵀ and μ_b + σ_b ⊙ ε_out, of one draw [in] and [out] for all rows."""
        weight = torch.addcmul(self.weight, self.weight_sigma, torch.outer(eps_out, eps_in))
        return weight, torch.addcmul(self.bias, self.bias_sigma, eps_out)

    def forward(self, x: Tensor, eps_in: Tensor | None = None, eps_out: Tensor | None = None) -> Tensor:
        mean = F.linear(x, self.weight, self.bias)
        if eps_in is None or eps_out is None:
            return mean
        return torch.addcmul(mean, F.linear(x * eps_in, self.weight_sigma, self.bias_sigma), eps_out)


def factorised_noise(shape: Sequence[int], generator: torch.Generator, device: torch.device) -> Tensor:
    """f(z) = sign(z)√|z| of standard normal z (arXiv:1706.10295, §3.2)."""
    z = torch.randn(*shape, generator=generator, device=device)
    return z.abs().sqrt_().copysign_(z)


class Stream(nn.Module):
    """`hidden_sizes` layers with an activation (ReLU), and before it a layer norm if asked for; then a linear output. All of the layers are
    noisy if `noisy_sigma` is given.

    `noise_dim` numbers of noise feed the whole stream: (in, out) of each layer, one after the other.
    """

    def __init__(
        self,
        in_dim: int,
        hidden_sizes: Sequence[int],
        out_dim: int,
        noisy_sigma: float | None = None,
        activation: Activation = RELU,
        layer_norm: bool = False,
    ) -> None:
        super().__init__()
        self.activation = activation
        sizes = [in_dim, *hidden_sizes, out_dim]
        pairs = list(itertools.pairwise(sizes))
        self.layers = nn.ModuleList(nn.Linear(i, o) if noisy_sigma is None else NoisyLinear(i, o, noisy_sigma) for i, o in pairs)
        self.norm_layers = layer_norms(hidden_sizes, layer_norm)
        self.params, self.norms = layer_parameters(self.layers), layer_parameters(self.norm_layers)
        self.sigmas = tuple(s for layer in self.layers if isinstance(layer, NoisyLinear) for s in (layer.weight_sigma, layer.bias_sigma))
        self.noise_sizes = [] if noisy_sigma is None else [size for pair in pairs for size in pair]
        self.noise_dim = sum(self.noise_sizes)

    def plain_parameters(self) -> tuple[Any, ...] | None:
        """W₁, b₁, … if the stream is nothing but layers and ReLU."""
        return None if self.noise_sizes or self.norms or self.activation is not RELU else self.params

    def forward(self, x: Tensor, noise: Tensor | None = None) -> Tensor:
        if noise is None or not self.noise_sizes:  # a noisy layer without noise is its mean
            return linear_stack(x, self.params, activation=self.activation, activate_last=False, norms=self.norms)
        eps = noise.split(self.noise_sizes, dim=-1)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        if noise.ndim == 1:  # one draw for all rows: the noisy weights are built once, and the pass is a plain one
            return linear_stack(x, self.noisy_parameters(eps), activation=self.activation, activate_last=False, norms=self.norms)
        last = len(self.layers) - 1
        for i, layer in enumerate(self.layers):
            x = layer(x, eps[2 * i], eps[2 * i + 1])
            if i < last:
                if self.norms:
                    x = F.layer_norm(x, x.shape[-1:], self.norms[2 * i], self.norms[2 * i + 1], NORM_EPS)
                x = self.activation(x)
        return x

    def noisy_parameters(self, eps: Sequence[Tensor]) -> list[Tensor]:
        """W₁, b₁, W₂, b₂, … of the noisy layers with one draw (in, out) each."""
        noisy: list[Tensor] = []
        for layer, eps_in, eps_out in zip(self.layers, eps[::2], eps[1::2], strict=True):
            assert isinstance(layer, NoisyLinear)
            noisy += layer.noisy_parameters(eps_in, eps_out)
        return noisy

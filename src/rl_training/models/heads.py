"""Heads: what a network predicts per action, and how that becomes a Q-value.

Every head is a stack of layers per action (`advantage`) and, if dueling, one for the state (`value`), which are added per atom or
quantile (arXiv:1511.06581, eq. 9: Q = V + A − mean_a A; arXiv:1710.02298 for the distributional form). The head owns the last hidden layer, so
that dueling streams split before it and noisy layers are exactly the head's, as in both papers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from rl_training.models.layers import Stream


class Draws(NamedTuple):
    """The randomness of one forward pass, drawn by the caller from a generator it owns. None means none: greedy evaluation."""

    noise: Tensor | None = None  # [noise_dim], or [B, noise_dim] for a draw of its own per row
    taus: Tensor | None = None  # [..., N] quantile levels of an implicit head


NO_DRAWS = Draws()


class Head(nn.Module, ABC):
    """`outputs` numbers per action: [..., A, outputs]."""

    draws_taus = False

    def __init__(
        self,
        in_dim: int,
        action_dim: int,
        *,
        outputs: int = 1,
        hidden_sizes: Sequence[int] = (),
        dueling: bool = False,
        noisy_sigma: float | None = None,
    ) -> None:
        super().__init__()
        self.action_dim, self.outputs = action_dim, outputs
        self.advantage = Stream(in_dim, hidden_sizes, action_dim * outputs, noisy_sigma)
        self.value = Stream(in_dim, hidden_sizes, outputs, noisy_sigma) if dueling else None
        self.noise_dim = self.advantage.noise_dim + (self.value.noise_dim if self.value is not None else 0)

    def per_action(self, features: Tensor, noise: Tensor | None) -> Tensor:
        """[..., F] → [..., A, outputs], or [..., A] if `outputs` is 1."""
        shape = (self.action_dim, self.outputs) if self.outputs > 1 else (self.action_dim,)
        if self.value is None:
            out: Tensor = self.advantage(features, noise)
            return out if self.outputs == 1 else out.unflatten(-1, shape)
        noise_a, noise_v = (None, None) if noise is None else noise.split([self.advantage.noise_dim, self.value.noise_dim], dim=-1)
        advantage = self.advantage(features, noise_a).unflatten(-1, shape)
        value = self.value(features, noise_v)
        if self.outputs == 1:
            return value + (advantage - advantage.mean(-1, keepdim=True))
        return value.unsqueeze(-2) + (advantage - advantage.mean(-2, keepdim=True))

    def forward(self, features: Tensor, draws: Draws = NO_DRAWS) -> Tensor:
        return self.per_action(features, draws.noise)

    @abstractmethod
    def q_values(self, out: Tensor) -> Tensor:
        """The expected return of each action, [..., A]: each kind of head says what its numbers mean."""

    def draw_taus(self, batch_shape: Sequence[int], role: str, generator: torch.Generator, device: torch.device) -> Tensor | None:
        """Quantile levels for one forward pass; only an implicit head has any."""
        return None


class ScalarHead(Head):
    """Q itself."""

    def q_values(self, out: Tensor) -> Tensor:
        return out

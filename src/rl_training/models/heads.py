"""Heads: what a network predicts per action, and how that becomes a Q-value.

Every head of the package is a stack of layers per action (`advantage`) and, if dueling, one for the state (`value`), which are added
per atom or quantile (arXiv:1511.06581, eq. 9: Q = V + A − mean_a A; arXiv:1710.02298 for the distributional form). The head owns the last
hidden layer, so that dueling streams split before it and noisy layers are exactly the head's, as in both papers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import torch
from torch import Tensor, nn
from typing_extensions import Unpack

from rl_training.models.layers import Stream
from rl_training.models.mlp_layers import ACTIVATIONS, LayerOptions
from rl_training.types import ActivationName, LevelsName

HeadKind: TypeAlias = Literal["scalar", "categorical", "quantile", "implicit"]


class Draws(NamedTuple):
    """The randomness of one forward pass, drawn by the caller from a generator it owns. None means none: greedy evaluation."""

    noise: Tensor | None = None  # [noise_dim], or [B, noise_dim] for a draw of its own per row
    taus: Tensor | None = None  # [..., N] quantile levels of an implicit head


NO_DRAWS = Draws()


class HeadOptions(LayerOptions, total=False):
    """What every head takes."""

    hidden_sizes: Sequence[int]
    dueling: bool
    noisy_sigma: float | None  # None: plain layers


class Head(nn.Module, ABC):
    """Features → outputs per action, and what they say of the expected return."""

    noise_dim = 0  # how much noise a pass takes
    draws_taus = False  # whether a pass takes quantile levels

    @abstractmethod
    def forward(self, features: Tensor, draws: Draws = NO_DRAWS) -> Tensor:
        """[..., F] → [..., A], or [..., A, N]."""

    @abstractmethod
    def q_values(self, out: Tensor) -> Tensor:
        """The expected return of each action, [..., A]: each kind of head says what its outputs mean."""

    def draw_taus(self, batch_shape: Sequence[int], role: str, generator: torch.Generator, device: torch.device) -> Tensor | None:
        """Quantile levels for one forward pass; only an implicit head has any."""
        return None


class QValues(Head):
    """For a module that gives Q-values itself: they pass through."""

    def forward(self, features: Tensor, draws: Draws = NO_DRAWS) -> Tensor:
        return features

    def q_values(self, out: Tensor) -> Tensor:
        return out


class StreamHead(Head):
    """`outputs` numbers per action: [..., A, outputs]."""

    def __init__(
        self,
        in_dim: int,
        action_dim: int,
        *,
        outputs: int = 1,
        hidden_sizes: Sequence[int] = (),
        dueling: bool = False,
        noisy_sigma: float | None = None,
        activation: ActivationName = "relu",
        layer_norm: bool = False,
    ) -> None:
        super().__init__()
        self.action_dim, self.outputs = action_dim, outputs
        options = noisy_sigma, ACTIVATIONS[activation], layer_norm
        self.advantage = Stream(in_dim, hidden_sizes, action_dim * outputs, *options)
        self.value = Stream(in_dim, hidden_sizes, outputs, *options) if dueling else None
        self.noise_dim = self.advantage.noise_dim + (self.value.noise_dim if self.value is not None else 0)

    def per_action(self, features: Tensor, noise: Tensor | None) -> Tensor:
        """[..., F] → [..., A, outputs], or [..., A] if `outputs` is 1."""
        cut = self.advantage.noise_dim
        advantage: Tensor = self.advantage.forward(features, None if noise is None else noise[..., :cut])
        if self.outputs > 1:
            advantage = advantage.view(*advantage.shape[:-1], self.action_dim, self.outputs)
        if self.value is None:
            return advantage
        value: Tensor = self.value.forward(features, None if noise is None else noise[..., cut:])
        if self.outputs == 1:
            return value + (advantage - advantage.mean(-1, keepdim=True))
        return value.unsqueeze(-2) + (advantage - advantage.mean(-2, keepdim=True))

    def forward(self, features: Tensor, draws: Draws = NO_DRAWS) -> Tensor:
        return self.per_action(features, draws.noise)


class ScalarHead(StreamHead):
    """Q itself."""

    def plain_parameters(self) -> tuple[Any, ...] | None:
        """W₁, b₁, … if the head is nothing but a stack of layers: neither dueling nor noisy."""
        return None if self.value is not None or self.noise_dim else self.advantage.plain_parameters()

    def q_values(self, out: Tensor) -> Tensor:
        return out


class CategoricalHead(StreamHead):
    """C51 (arXiv:1707.06887): the logits of a distribution over N fixed atoms, [..., A, N].

    Dueling streams are added per atom, before the softmax (arXiv:1710.02298).
    """

    support: Tensor

    def __init__(
        self,
        in_dim: int,
        action_dim: int,
        *,
        num_atoms: int = 51,
        v_min: float = -10.0,
        v_max: float = 10.0,
        **options: Unpack[HeadOptions],
    ) -> None:
        if num_atoms < 2 or not v_min < v_max:
            raise ValueError(f"a support needs num_atoms >= 2 and v_min < v_max, got {num_atoms}, {v_min} and {v_max}")
        super().__init__(in_dim, action_dim, outputs=num_atoms, **options)
        self.num_atoms, self.v_min, self.v_max = num_atoms, v_min, v_max
        self.register_buffer("support", torch.linspace(v_min, v_max, num_atoms), persistent=False)

    def q_values(self, out: Tensor) -> Tensor:
        """E[Z] = Σ_i p_i z_i."""
        return torch.softmax(out, -1) @ self.support


class QuantileHead(StreamHead):
    """QR-DQN (arXiv:1710.10044): the quantiles of the return at N fixed levels, the midpoints τ̂_i, [..., A, N]."""

    def __init__(
        self,
        in_dim: int,
        action_dim: int,
        *,
        num_quantiles: int = 51,
        **options: Unpack[HeadOptions],
    ) -> None:
        if num_quantiles < 1:
            raise ValueError(f"num_quantiles must be >= 1, got {num_quantiles}")
        super().__init__(in_dim, action_dim, outputs=num_quantiles, **options)
        self.num_quantiles = num_quantiles

    def forward(self, features: Tensor, draws: Draws = NO_DRAWS) -> Tensor:
        out = self.per_action(features, draws.noise)
        return out if self.outputs > 1 else out.unsqueeze(-1)

    def q_values(self, out: Tensor) -> Tensor:
        """E[Z] = mean_i θ_i."""
        return out.mean(-1)


class ImplicitHead(StreamHead):
    """IQN (arXiv:1806.06923): the quantile of the return at any level τ, [..., A, N] for N levels.

    Z_τ = f(ψ ⊙ φ(τ)),   φ_j(τ) = ReLU(Σ_{i<n} cos(π i τ) w_ij + b_j)    (eq. 4; ψ the features, f the layers of this head)

    An update draws `num_quantiles` levels for the online network and `num_target_quantiles` for the target, acting
    `num_acting_quantiles` (the paper's N, N' and K). Without a draw the levels are the midpoints of `num_acting_quantiles`, so that
    evaluation is deterministic.

    Departure: the paper draws every level of every sample from U(0, 1) on its own (`quantile_levels: independent`). By default one draw
    serves the whole batch, a level from each of N equal strata. As unbiased, less noisy (a stratified mean of a smooth function errs by
    O(N^-3/2), B·N independent draws by O((B·N)^-1/2)), and φ is computed for N levels instead of B·N.
    """

    draws_taus = True
    acting_taus: Tensor
    frequencies: Tensor

    def __init__(
        self,
        in_dim: int,
        action_dim: int,
        *,
        num_quantiles: int = 64,
        num_target_quantiles: int = 64,
        num_acting_quantiles: int = 32,
        embedding_dim: int = 64,
        quantile_levels: LevelsName = "stratified",
        **options: Unpack[HeadOptions],
    ) -> None:
        counts = {"online": num_quantiles, "target": num_target_quantiles, "acting": num_acting_quantiles}
        if min(*counts.values(), embedding_dim) < 1:
            raise ValueError(f"quantile counts and embedding_dim must be >= 1, got {counts} and {embedding_dim}")
        if quantile_levels not in get_args(LevelsName):
            raise ValueError(f"quantile_levels must be {' or '.join(get_args(LevelsName))}, got {quantile_levels!r}")
        super().__init__(in_dim, action_dim, **options)
        self.counts, self.quantile_levels = counts, quantile_levels
        self.embedding = nn.Linear(embedding_dim, in_dim)
        self.register_buffer("frequencies", torch.pi * torch.arange(embedding_dim, dtype=torch.float32), persistent=False)
        self.register_buffer("acting_taus", (torch.arange(num_acting_quantiles) + 0.5) / num_acting_quantiles, persistent=False)

    def forward(self, features: Tensor, draws: Draws = NO_DRAWS) -> Tensor:
        taus = self.acting_taus if draws.taus is None else draws.taus
        phi = nn.functional.linear(torch.cos(taus.unsqueeze(-1) * self.frequencies), self.embedding.weight, self.embedding.bias).relu_()
        noise = draws.noise
        if noise is not None and noise.ndim > 1:
            noise = noise.unsqueeze(-2)  # a row per sample: the same for all its levels
        return self.per_action(features.unsqueeze(-2) * phi, noise).transpose(-1, -2)  # [..., N, A] → [..., A, N]

    def q_values(self, out: Tensor) -> Tensor:
        """E[Z] ≈ mean over the levels."""
        return out.mean(-1)

    def draw_taus(self, batch_shape: Sequence[int], role: str, generator: torch.Generator, device: torch.device) -> Tensor:
        """Stratified: one level from each of N strata, [1, …, 1, N], the same for the whole batch. Independent: [..., N], uniform."""
        count = self.counts[role]
        if self.quantile_levels == "independent":
            return torch.rand((*batch_shape, count), generator=generator, device=device)
        jitter = torch.rand(count, generator=generator, device=device)
        return ((torch.arange(count, device=device) + jitter) / count).view(*[1] * len(batch_shape), count)


class HeadKeywords(LayerOptions, total=False):
    """The keywords of all heads together, as settings name them; a head takes what is its own."""

    dueling: bool
    noisy: bool
    noisy_sigma: float
    num_atoms: int
    v_min: float
    v_max: float
    num_quantiles: int
    num_target_quantiles: int
    num_acting_quantiles: int
    embedding_dim: int
    quantile_levels: LevelsName


_HEADS: dict[HeadKind, tuple[Callable[..., Head], tuple[str, ...]]] = {
    "scalar": (ScalarHead, ()),
    "categorical": (CategoricalHead, ("num_atoms", "v_min", "v_max")),
    "quantile": (QuantileHead, ("num_quantiles",)),
    "implicit": (ImplicitHead, ("num_quantiles", "num_target_quantiles", "num_acting_quantiles", "embedding_dim", "quantile_levels")),
}


def make_head(kind: HeadKind, in_dim: int, action_dim: int, *, hidden_sizes: Sequence[int] = (), **keywords: Unpack[HeadKeywords]) -> Head:
    """The head called `kind`."""
    head, own = _HEADS[kind]
    sigma = keywords.get("noisy_sigma", 0.5) if keywords.get("noisy") else None
    options = HeadOptions(
        hidden_sizes=hidden_sizes,
        dueling=keywords.get("dueling", False),
        noisy_sigma=sigma,
        activation=keywords.get("activation", "relu"),
        layer_norm=keywords.get("layer_norm", False),
    )
    return head(in_dim, action_dim, **options, **{name: value for name, value in keywords.items() if name in own})

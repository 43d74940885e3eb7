"""Policy and value in one network: what every on-policy algorithm trains.

`step` and `greedy` are what acting and evaluation ask of any network, here as for Q-networks; `forward` is the learner's.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from rl_training.models.distributions import DiagonalGaussian, Distribution
from rl_training.models.heads import NO_DRAWS, Draws
from rl_training.models.image_torsos import ImageTorso
from rl_training.models.layers import Stream
from rl_training.models.mlp_layers import ACTIVATIONS
from rl_training.models.network import CoreState, Facts, Role, facts_of
from rl_training.models.precision import MixedPrecision
from rl_training.models.torsos import MLPTorso
from rl_training.types import ActivationName

if TYPE_CHECKING:
    from rl_training.types import Array


def orthogonal_(module: nn.Module, gain: float) -> None:
    """Orthogonal weights and zero biases (Saxe et al. 2013, arXiv:1312.6120) for every linear layer and convolution in `module`."""
    for layer in module.modules():
        if isinstance(layer, (nn.Linear, nn.Conv2d)):
            nn.init.orthogonal_(layer.weight, gain)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)


def start_orthogonal(encoder: nn.Module) -> None:
    """The encoder's layers as an actor-critic starts them, with gain √2; a torso of somebody else's starts as its author wants."""
    for part in encoder.modules():
        if isinstance(part, (MLPTorso, ImageTorso)):
            orthogonal_(part, math.sqrt(2))


class ActorCriticHeads(nn.Module):
    """Features → the policy's outputs and the value, each through its own stack of layers.

    Hidden layers start orthogonal with gain √2, the policy's output with 0.01 (nearly uniform actions), the value's with 1
    (Huang et al. 2022, *The 37 implementation details of PPO*). A Gaussian's log σ is a free parameter, the same in every state.
    """

    def __init__(
        self,
        in_dim: int,
        distribution: Distribution,
        hidden_sizes: Sequence[int],
        activation: ActivationName,
        log_std_init: float,
        layer_norm: bool = False,
    ) -> None:
        super().__init__()
        self.distribution = distribution
        self.gaussian = isinstance(distribution, DiagonalGaussian)
        outputs = distribution.num_outputs // 2 if self.gaussian else distribution.num_outputs
        options = None, ACTIVATIONS[activation], layer_norm
        self.policy, self.value = Stream(in_dim, hidden_sizes, outputs, *options), Stream(in_dim, hidden_sizes, 1, *options)
        self.log_std = nn.Parameter(torch.full((outputs,), log_std_init)) if self.gaussian else None
        for stream, gain in ((self.policy, 0.01), (self.value, 1.0)):
            orthogonal_(stream, math.sqrt(2))
            orthogonal_(stream.layers[-1], gain)

    def outputs(self, features: Tensor) -> Tensor:
        """The policy's outputs, [..., P]."""
        return self.with_std(self.policy.forward(features))

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        return self.outputs(features), self.value.forward(features).squeeze(-1)

    def with_std(self, out: Tensor) -> Tensor:
        return out if self.log_std is None else torch.cat([out, self.log_std.expand_as(out)], -1)


class ActorCritic(MixedPrecision, ABC):
    """obs → the policy's outputs [..., P] (see distributions.py) and values [...]."""

    distribution: Distribution

    @abstractmethod
    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]: ...

    @abstractmethod
    def step(self, obs: Tensor, state: CoreState, episode_starts: Tensor, draws: Draws = NO_DRAWS) -> tuple[Tensor, CoreState]:
        """One acting step: the policy's outputs [E, P] and the state carried on."""

    def step_with_value(self, obs: Tensor, state: CoreState, episode_starts: Tensor) -> tuple[Tensor, Tensor, CoreState]:
        """`step`, with the value of each state [E] beside the outputs."""
        return *self.forward(obs), state

    @property
    def facts(self) -> Facts:
        return facts_of(self, recurrent=bool(self.initial_state(1)))

    def initial_state(self, batch_size: int) -> CoreState:
        """Nothing is carried: the loop threads () through."""
        return ()

    def reset_state(self, state: CoreState, episode_starts: Tensor) -> CoreState:
        """Nothing is carried."""
        return state

    def draw(self, generator: torch.Generator, batch_shape: Sequence[int], role: Role) -> Draws:
        """A forward pass is not random: the action is drawn from its outputs."""
        return NO_DRAWS

    def greedy(self, outputs: Array) -> Array:
        """The likeliest actions, as the environment takes them."""
        return self.distribution.to_env(self.distribution.mode(outputs))


class FeedForwardActorCritic(ActorCritic):
    """obs [B, ...] → encoder → heads: policy and value share the encoder."""

    def __init__(self, encoder: nn.Module, heads: ActorCriticHeads) -> None:
        super().__init__()
        self.encoder, self.heads, self.distribution = encoder, heads, heads.distribution

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        with self.computing(obs.device):
            outputs, values = self.heads.forward(self.encoder.forward(obs))
        return (outputs, values) if self.compute_dtype is None else (outputs.float(), values.float())

    def step(self, obs: Tensor, state: CoreState, episode_starts: Tensor, draws: Draws = NO_DRAWS) -> tuple[Tensor, CoreState]:
        with self.computing(obs.device):
            outputs = self.heads.outputs(self.encoder.forward(obs))
        return outputs if self.compute_dtype is None else outputs.float(), state


class MLPActorCritic(FeedForwardActorCritic):
    """Fully connected: policy and value share nothing."""

    def __init__(
        self,
        obs_dim: int,
        distribution: Distribution,
        hidden_sizes: Sequence[int],
        activation: ActivationName = "tanh",
        log_std_init: float = 0.0,
        layer_norm: bool = False,
    ) -> None:
        heads = ActorCriticHeads(obs_dim, distribution, hidden_sizes, activation, log_std_init, layer_norm)
        super().__init__(MLPTorso(obs_dim, ()), heads)

"""A feed-forward Q-network: torso, then head."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from rl_training.models.heads import NO_DRAWS, Draws, Head, ScalarHead
from rl_training.models.layers import factorised_noise
from rl_training.models.mlp_layers import linear_stack
from rl_training.models.network import CoreState, Facts, Role, facts_of
from rl_training.models.precision import MixedPrecision
from rl_training.models.torsos import MLPTorso

if TYPE_CHECKING:
    from rl_training.types import Array


def epsilon_greedy(q_values: Tensor, epsilon: float | Tensor, generator: torch.Generator | None = None) -> Tensor:
    """A uniformly random action with probability ε, drawn for each row on its own, else the best one. [..., A] → [...]"""
    greedy = q_values.argmax(-1)
    if isinstance(epsilon, (int, float)) and epsilon <= 0:
        return greedy
    explore = torch.rand(greedy.shape, generator=generator, device=greedy.device) < epsilon
    uniform = torch.randint(q_values.shape[-1], greedy.shape, generator=generator, device=greedy.device)
    return torch.where(explore, uniform, greedy)


class Drawing(MixedPrecision):
    """What feed-forward and recurrent networks share: a head, and the randomness a forward pass needs."""

    head: Head

    def draw(self, generator: torch.Generator, batch_shape: Sequence[int], role: Role) -> Draws:
        """Noise (one draw per update; one per environment when acting) and quantile levels for one forward pass."""
        head = self.head
        if not head.noise_dim and not head.draws_taus:
            return NO_DRAWS
        device = next(self.parameters()).device
        noise = None
        if head.noise_dim:
            shape = (batch_shape[-1], head.noise_dim) if role == "acting" else (head.noise_dim,)
            noise = factorised_noise(shape, generator, device)
        return Draws(noise, head.draw_taus(batch_shape, role, generator, device))

    def greedy(self, outputs: Array) -> Array:
        """The best actions [...] of the Q-values [..., A] that `step` gave."""
        actions: Array = outputs.argmax(-1)
        return actions


class QNetwork(Drawing):
    """obs [B, ...] → the head's outputs per action; `q_values` gives their expectation [B, A]."""

    def __init__(self, torso: nn.Module, head: Head) -> None:
        super().__init__()
        self.torso, self.head = torso, head
        # DQN's network is one stack from observation to Q: run as one, since each call between its parts shows beside the products.
        # Only what is exactly ours: a subclass may change its pass.
        lower = torso.relu_parameters() if type(torso) is MLPTorso else None
        upper = head.plain_parameters() if type(head) is ScalarHead else None
        self.stack = None if lower is None or upper is None else (*lower, *upper)

    def forward(self, obs: Tensor, draws: Draws = NO_DRAWS) -> Tensor:
        if self.compute_dtype is not None:
            with self.computing(obs.device):
                return self._outputs(obs, draws).float()
        if self.stack is not None:
            return linear_stack(obs if obs.is_floating_point() else obs.float(), self.stack, activate_last=False)
        return self._outputs(obs, draws)

    def _outputs(self, obs: Tensor, draws: Draws) -> Tensor:
        # `.forward`, not a call: at this size the calls of nested modules show in the pass. Hooks belong on the whole network.
        out: Tensor = self.head.forward(self.torso.forward(obs), draws)
        return out

    def q_values(self, obs: Tensor, draws: Draws = NO_DRAWS) -> Tensor:
        return self.head.q_values(self.forward(obs, draws))

    @torch.no_grad()
    def act(self, obs: Tensor | Any, epsilon: float | Tensor = 0.0, generator: torch.Generator | None = None) -> Tensor:
        """ε-greedy actions, [B]; without noise."""
        return epsilon_greedy(self.q_values(torch.as_tensor(obs)), epsilon, generator)

    @property
    def facts(self) -> Facts:
        return facts_of(self, recurrent=False)

    def initial_state(self, batch_size: int) -> CoreState:
        """Nothing is carried: the loop threads () through."""
        return ()

    def reset_state(self, state: CoreState, episode_starts: Tensor) -> CoreState:
        """Nothing is carried."""
        return state

    def step(self, obs: Tensor, state: CoreState, episode_starts: Tensor, draws: Draws = NO_DRAWS) -> tuple[Tensor, CoreState]:
        """One acting step: Q-values [E, A] and the state carried on."""
        return self.q_values(obs, draws), state

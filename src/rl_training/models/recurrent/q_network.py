"""The recurrent Q-network of DRQN (arXiv:1507.06527) and R2D2 (Kapturowski et al., ICLR 2019): encoder, core, Q head."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from rl_training.models.heads import NO_DRAWS, Draws, Head
from rl_training.models.network import CoreState
from rl_training.models.q_network import Drawing, epsilon_greedy
from rl_training.models.recurrent.body import RecurrentBody
from rl_training.models.recurrent.cores import Core
from rl_training.types import Previous


class RecurrentAction(NamedTuple):
    """What one acting step gives: actions [B], Q-values [B, A] and the state to carry on."""

    actions: Tensor
    q_values: Tensor
    state: CoreState


class RecurrentQNetwork(RecurrentBody, Drawing):
    """obs → encoder → core → head, each given: any of them goes with any other.

    The head reads `core.out_dim` features, with `skip` those of the encoder too; with `previous_actions` the core reads what led to an
    observation (see RecurrentBody). An observation has `obs_ndim` axes.
    A sequence without an episode start inside is one call of the core; with `episode_starts` given, the state is zeroed where one begins.
    """

    def __init__(
        self, encoder: nn.Module, core: Core, head: Head, *, skip: bool = False, obs_ndim: int = 1, previous_actions: int = 0
    ) -> None:
        super().__init__(encoder, core, skip=skip, previous_actions=previous_actions)
        self.head, self.obs_ndim = head, obs_ndim

    def unroll(
        self, obs: Tensor, state: CoreState, episode_starts: Tensor | None = None, draws: Draws = NO_DRAWS
    ) -> tuple[Tensor, CoreState]:
        """[T, B, ...] from `state` → the head's outputs per step and action, and the state after the last step."""
        core, state = self.unroll_core(obs, state, episode_starts)
        out: Tensor = self.head(core, draws)
        return out, state

    def forward(self, obs: Tensor, draws: Draws = NO_DRAWS) -> Tensor:
        """[T, B, ...] from the zero state."""
        return self.unroll(obs, self.initial_state(obs.shape[1]), draws=draws)[0]

    def q_values_sequence(self, obs: Tensor, *, initial_state: CoreState, episode_starts: Tensor | None = None) -> Tensor:
        """Q-values of every step, [T, B, A]. `episode_starts=None` promises that no episode starts inside the sequence."""
        return self.head.q_values(self.unroll(obs, initial_state, episode_starts)[0])

    def step(
        self, obs: Tensor, state: CoreState, episode_starts: Tensor, draws: Draws = NO_DRAWS, previous: Previous | None = None
    ) -> tuple[Tensor, CoreState]:
        """One acting step: Q-values [E, A] and the state carried on, zeroed first where an episode starts."""
        core, state = self.step_core(obs, self.reset_state(state, episode_starts), previous)
        return self.head.q_values(self.head(core, draws)), state

    @torch.no_grad()
    def act(
        self,
        obs: Tensor,
        state: CoreState | None = None,
        episode_starts: Tensor | None = None,
        epsilon: float | Tensor = 0.0,
        generator: torch.Generator | None = None,
    ) -> RecurrentAction:
        """ε-greedy actions [B], without noise; a missing state is the zero state.

        One observation will do: then actions are [] and Q-values [A], and the state stays that of a batch of one.
        """
        like = next(self.parameters())
        obs = torch.as_tensor(obs, dtype=like.dtype, device=like.device)
        single = obs.ndim == self.obs_ndim
        batch = obs[None] if single else obs
        state = self.initial_state(len(batch)) if state is None else state
        starts = torch.zeros(len(batch)) if episode_starts is None else torch.as_tensor(episode_starts).reshape(-1)
        q_values, new_state = self.step(batch, state, starts)
        if single:
            q_values = q_values[0]
        return RecurrentAction(epsilon_greedy(q_values, epsilon, generator), q_values, new_state)

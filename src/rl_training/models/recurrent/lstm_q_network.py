"""The recurrent Q-network of DRQN (arXiv:1507.06527) and R2D2 (Kapturowski et al., ICLR 2019): encoder, LSTM core, Q head."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from rl_training.models.heads import NO_DRAWS, Draws, Head, ScalarHead
from rl_training.models.q_network import CoreState, Drawing, epsilon_greedy
from rl_training.models.recurrent.lstm_body import LSTMBody, LSTMState


class RecurrentAction(NamedTuple):
    """What one acting step gives: actions [B], Q-values [B, A] and the state to carry on."""

    actions: Tensor
    q_values: Tensor
    state: LSTMState


class LSTMQNetwork(LSTMBody, Drawing):
    """obs → MLP encoder → LSTM → head.

    A sequence without an episode start inside is one `nn.LSTM` call; with `episode_starts` given, the state is zeroed wherever one begins.
    Another `head` (categorical, quantile, implicit) takes the place of the scalar one, and then says itself whether it is dueling or noisy.
    """

    def __init__(
        self,
        obs_shape: Sequence[int],
        action_dim: int,
        features_dim: int,
        encoder_hidden_sizes: Sequence[int],
        head_hidden_sizes: Sequence[int],
        hidden_size: int,
        num_layers: int,
        dueling: bool = False,
        noisy: bool = False,
        noisy_sigma: float = 0.5,
        head: Head | None = None,
        *,
        skip: bool = False,
    ) -> None:
        super().__init__(obs_shape, [*encoder_hidden_sizes, features_dim], hidden_size, num_layers, skip=skip)
        self.head = head or ScalarHead(
            self.core_dim, action_dim, hidden_sizes=head_hidden_sizes, dueling=dueling, noisy_sigma=noisy_sigma if noisy else None
        )

    def unroll(
        self, obs: Tensor, state: CoreState, episode_starts: Tensor | None = None, draws: Draws = NO_DRAWS
    ) -> tuple[Tensor, LSTMState]:
        """[T, B, ...] from `state` → the head's numbers per step and action, and the state after the last step."""
        core, state = self.unroll_core(obs, state, episode_starts)
        out: Tensor = self.head(core, draws)
        return out, state

    def forward(self, obs: Tensor, draws: Draws = NO_DRAWS) -> Tensor:
        """[T, B, ...] from the zero state."""
        return self.unroll(obs, self.initial_state(obs.shape[1]), draws=draws)[0]

    def q_values_sequence(self, obs: Tensor, *, initial_state: CoreState, episode_starts: Tensor | None = None) -> Tensor:
        """Q-values of every step, [T, B, A]. `episode_starts=None` promises that no episode starts inside the sequence."""
        return self.head.q_values(self.unroll(obs, initial_state, episode_starts)[0])

    def step(self, obs: Tensor, state: CoreState, episode_starts: Tensor, draws: Draws = NO_DRAWS) -> tuple[Tensor, CoreState]:
        """One acting step: Q-values [E, A] and the state carried on, zeroed first where an episode starts."""
        core, state = self.unroll_core(obs[None], self.reset_state(state, episode_starts))
        return self.head.q_values(self.head(core[0], draws)), state

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
        single = obs.ndim == len(self.obs_shape)
        batch = obs[None] if single else obs
        state = self.initial_state(len(batch)) if state is None else state
        starts = torch.zeros(len(batch)) if episode_starts is None else torch.as_tensor(episode_starts).reshape(-1)
        q_values, new_state = self.step(batch, state, starts)
        if single:
            q_values = q_values[0]
        return RecurrentAction(epsilon_greedy(q_values, epsilon, generator), q_values, (new_state[0], new_state[1]))

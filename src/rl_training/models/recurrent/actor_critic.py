"""The recurrent actor-critic of recurrent PPO: encoder and core shared, policy and value heads on top."""

from __future__ import annotations

from torch import Tensor, nn

from rl_training.models.actor_critic import ActorCritic, ActorCriticHeads
from rl_training.models.heads import NO_DRAWS, Draws
from rl_training.models.network import CoreState
from rl_training.models.recurrent.body import RecurrentBody
from rl_training.models.recurrent.cores import Core
from rl_training.types import Previous


class RecurrentActorCritic(RecurrentBody, ActorCritic):
    """obs [T, B, ...] → the policy's outputs [T, B, P] and values [T, B]; no episode may start inside a sequence."""

    def __init__(self, encoder: nn.Module, core: Core, heads: ActorCriticHeads, *, previous_actions: int = 0) -> None:
        super().__init__(encoder, core, previous_actions=previous_actions)
        self.heads, self.distribution = heads, heads.distribution

    def forward(self, obs: Tensor, initial_state: CoreState | None = None, previous: Previous | None = None) -> tuple[Tensor, Tensor]:
        """From `initial_state`, or the zero state."""
        state = self.initial_state(obs.shape[1]) if initial_state is None else initial_state
        return self.heads.forward(self.unroll_core(obs, state, previous=previous)[0])

    def step(
        self, obs: Tensor, state: CoreState, episode_starts: Tensor, draws: Draws = NO_DRAWS, previous: Previous | None = None
    ) -> tuple[Tensor, CoreState]:
        core, state = self.step_core(obs, self.reset_state(state, episode_starts), previous)
        return self.heads.outputs(core), state

    def step_with_value(
        self, obs: Tensor, state: CoreState, episode_starts: Tensor, previous: Previous | None = None
    ) -> tuple[Tensor, Tensor, CoreState]:
        core, state = self.step_core(obs, self.reset_state(state, episode_starts), previous)
        return *self.heads.forward(core), state

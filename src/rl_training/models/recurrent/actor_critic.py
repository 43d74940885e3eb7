"""The recurrent actor-critic of recurrent PPO: encoder and core shared, policy and value heads on top."""

from __future__ import annotations

from torch import Tensor, nn

from rl_training.models.actor_critic import ActorCritic, ActorCriticHeads
from rl_training.models.heads import NO_DRAWS, Draws
from rl_training.models.network import CoreState
from rl_training.models.recurrent.body import RecurrentBody
from rl_training.models.recurrent.cores import Core


class RecurrentActorCritic(RecurrentBody, ActorCritic):
    """obs [T, B, ...] → the policy's outputs [T, B, P] and values [T, B]; no episode may start inside a sequence."""

    def __init__(self, encoder: nn.Module, core: Core, heads: ActorCriticHeads) -> None:
        super().__init__(encoder, core)
        self.heads, self.distribution = heads, heads.distribution

    def forward(self, obs: Tensor, initial_state: CoreState | None = None) -> tuple[Tensor, Tensor]:
        """From `initial_state`, or the zero state."""
        state = self.initial_state(obs.shape[1]) if initial_state is None else initial_state
        return self.heads.forward(self.unroll_core(obs, state)[0])

    def step(self, obs: Tensor, state: CoreState, episode_starts: Tensor, draws: Draws = NO_DRAWS) -> tuple[Tensor, CoreState]:
        core, state = self.step_core(obs, self.reset_state(state, episode_starts))
        return self.heads.outputs(core), state

    def step_with_value(self, obs: Tensor, state: CoreState, episode_starts: Tensor) -> tuple[Tensor, Tensor, CoreState]:
        core, state = self.step_core(obs, self.reset_state(state, episode_starts))
        return *self.heads.forward(core), state

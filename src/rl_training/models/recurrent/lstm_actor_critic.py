"""The recurrent actor-critic of recurrent PPO: encoder and LSTM shared, policy and value heads on top."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor, nn

from rl_training.models.actor_critic import ActorCritic, ActorCriticHeads, orthogonal_
from rl_training.models.distributions import Distribution
from rl_training.models.heads import NO_DRAWS, Draws
from rl_training.models.q_network import CoreState
from rl_training.models.recurrent.lstm_body import LSTMBody
from rl_training.models.stack import ACTIVATIONS, ActivationName


class LSTMActorCritic(LSTMBody, ActorCritic):
    """obs [T, B, ...] → the policy's numbers [T, B, P] and values [T, B]; no episode may start inside a sequence.

    The encoder's layers are `encoder_hidden_sizes` and `features_dim` (None: no such layer, and without any the LSTM reads the
    observation itself). All matrices start orthogonal, the LSTM's with gain 1 (Huang et al. 2022), biases at zero.
    """

    def __init__(
        self,
        obs_shape: Sequence[int],
        distribution: Distribution,
        features_dim: int | None,
        encoder_hidden_sizes: Sequence[int],
        head_hidden_sizes: Sequence[int],
        hidden_size: int,
        num_layers: int,
        activation: ActivationName = "tanh",
        log_std_init: float = 0.0,
    ) -> None:
        encoder_sizes = [*encoder_hidden_sizes, *([] if features_dim is None else [features_dim])]
        super().__init__(obs_shape, encoder_sizes, hidden_size, num_layers, ACTIVATIONS[activation])
        self.distribution = distribution
        self.heads = ActorCriticHeads(hidden_size, distribution, head_hidden_sizes, activation, log_std_init)
        orthogonal_(self.encoder, math.sqrt(2))
        for name, parameter in self.lstm.named_parameters():
            if name.startswith("weight"):
                nn.init.orthogonal_(parameter)
            else:
                nn.init.zeros_(parameter)

    def forward(self, obs: Tensor, initial_state: CoreState | None = None) -> tuple[Tensor, Tensor]:
        """From `initial_state`, or the zero state."""
        state = self.initial_state(obs.shape[1]) if initial_state is None else initial_state
        return self.heads.forward(self.unroll_core(obs, state)[0])

    def step(self, obs: Tensor, state: CoreState, episode_starts: Tensor, draws: Draws = NO_DRAWS) -> tuple[Tensor, CoreState]:
        core, state = self.step_core(obs, self.reset_state(state, episode_starts))
        return self.heads.numbers(core), state

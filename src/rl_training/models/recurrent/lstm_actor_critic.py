"""`LSTMActorCritic`: the recurrent actor-critic with fully connected layers and an LSTM."""

from __future__ import annotations

from collections.abc import Sequence

from rl_training.models.distributions import Distribution
from rl_training.models.recurrent.actor_critic import RecurrentActorCritic
from rl_training.models.recurrent.parts import recurrent_actor_critic_parts
from rl_training.types import ActivationName


class LSTMActorCritic(RecurrentActorCritic):
    """The encoder's layers are `encoder_hidden_sizes` and `features_dim` (None: no such layer, and without any the LSTM reads the
    observation itself)."""

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
        encoder, core, heads = recurrent_actor_critic_parts(
            obs_shape,
            distribution,
            features_dim=features_dim,
            encoder_hidden_sizes=encoder_hidden_sizes,
            head_hidden_sizes=head_hidden_sizes,
            hidden_size=hidden_size,
            num_layers=num_layers,
            activation=activation,
            log_std_init=log_std_init,
        )
        super().__init__(encoder, core, heads)

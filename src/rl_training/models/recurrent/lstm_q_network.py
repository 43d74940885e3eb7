"""`LSTMQNetwork`: the recurrent Q-network with fully connected layers, an LSTM and a scalar head."""

from __future__ import annotations

from collections.abc import Sequence

from rl_training.models.recurrent.parts import recurrent_q_parts
from rl_training.models.recurrent.q_network import RecurrentQNetwork


class LSTMQNetwork(RecurrentQNetwork):
    """obs (flattened) → layers of `encoder_hidden_sizes` and `features_dim` → LSTM → Q-values."""

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
        *,
        skip: bool = False,
    ) -> None:
        encoder, core, head = recurrent_q_parts(
            obs_shape,
            action_dim,
            features_dim=features_dim,
            encoder_hidden_sizes=encoder_hidden_sizes,
            head_hidden_sizes=head_hidden_sizes,
            hidden_size=hidden_size,
            num_layers=num_layers,
            skip=skip,
            dueling=dueling,
            noisy=noisy,
            noisy_sigma=noisy_sigma,
        )
        super().__init__(encoder, core, head, skip=skip, obs_ndim=len(obs_shape))

"""Networks from plain keywords: any torso or core with any head."""

from __future__ import annotations

from collections.abc import Sequence

from typing_extensions import Unpack

from rl_training.models.heads import HeadKeywords, HeadKind, make_head
from rl_training.models.q_network import QNetwork
from rl_training.models.recurrent.lstm_q_network import LSTMQNetwork
from rl_training.models.torsos import MLPTorso


def build_mlp_q_network(
    obs_dim: int, action_dim: int, *, hidden_sizes: Sequence[int], head: HeadKind = "scalar", **keywords: Unpack[HeadKeywords]
) -> QNetwork:
    """A fully connected network with any head. The last hidden layer is the head's: doubled if dueling, noisy if noisy."""
    torso = MLPTorso(obs_dim, hidden_sizes[:-1])
    return QNetwork(torso, make_head(head, torso.out_dim, action_dim, hidden_sizes=hidden_sizes[-1:], **keywords))


def build_lstm_q_network(
    obs_shape: Sequence[int],
    action_dim: int,
    *,
    features_dim: int,
    encoder_hidden_sizes: Sequence[int],
    head_hidden_sizes: Sequence[int],
    hidden_size: int,
    num_layers: int,
    skip: bool = False,
    head: HeadKind = "scalar",
    **keywords: Unpack[HeadKeywords],
) -> LSTMQNetwork:
    """A recurrent network with any head."""
    return LSTMQNetwork(
        obs_shape,
        action_dim,
        features_dim,
        encoder_hidden_sizes,
        head_hidden_sizes,
        hidden_size,
        num_layers,
        head=make_head(head, hidden_size + (features_dim if skip else 0), action_dim, hidden_sizes=head_hidden_sizes, **keywords),
        skip=skip,
    )

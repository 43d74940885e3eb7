"""Fully connected QR-DQN networks (arXiv:1710.10044): quantiles of the return per action."""

from __future__ import annotations

from collections.abc import Sequence

from typing_extensions import Unpack

from rl_training.models.heads import QuantileHead
from rl_training.models.mlp_layers import LayerOptions
from rl_training.models.q_network import QNetwork
from rl_training.models.torsos import mlp_torso


class MLPQRQNetwork(QNetwork):
    """obs [B, obs_dim] → quantiles [B, A, num_quantiles]; acts on their mean. `hidden_sizes=()` is a linear network."""

    def __init__(
        self,
        obs_dim: int,
        action_dim: int,
        num_quantiles: int,
        hidden_sizes: Sequence[int],
        dueling: bool = False,
        noisy: bool = False,
        noisy_sigma: float = 0.5,
        **layers: Unpack[LayerOptions],
    ) -> None:
        torso = mlp_torso(obs_dim, hidden_sizes[:-1], **layers)
        head = QuantileHead(
            torso.out_dim,
            action_dim,
            num_quantiles=num_quantiles,
            hidden_sizes=hidden_sizes[-1:],
            dueling=dueling,
            noisy_sigma=noisy_sigma if noisy else None,
            **layers,
        )
        super().__init__(torso, head)

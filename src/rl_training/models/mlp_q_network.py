"""Fully connected Q-networks, one number per action."""

from __future__ import annotations

from collections.abc import Sequence

from typing_extensions import Unpack

from rl_training.models.heads import ScalarHead
from rl_training.models.mlp_layers import LayerOptions
from rl_training.models.q_network import QNetwork
from rl_training.models.torsos import mlp_torso


class MLPQNetwork(QNetwork):
    """obs [B, obs_dim] → Q-values [B, A]; `hidden_sizes=()` is a linear network.

    The last hidden layer belongs to the head: doubled if dueling, noisy (with the output layer) if noisy.
    """

    def __init__(
        self,
        obs_dim: int,
        action_dim: int,
        hidden_sizes: Sequence[int],
        dueling: bool = False,
        noisy: bool = False,
        noisy_sigma: float = 0.5,
        **layers: Unpack[LayerOptions],
    ) -> None:
        torso = mlp_torso(obs_dim, hidden_sizes[:-1], **layers)
        head = ScalarHead(
            torso.out_dim,
            action_dim,
            hidden_sizes=hidden_sizes[-1:],
            dueling=dueling,
            noisy_sigma=noisy_sigma if noisy else None,
            **layers,
        )
        super().__init__(torso, head)

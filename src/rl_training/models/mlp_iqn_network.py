"""Fully connected IQN networks (arXiv:1806.06923): the quantile of the return at any level, per action."""

from __future__ import annotations

from collections.abc import Sequence

from typing_extensions import Unpack

from rl_training.models.heads import ImplicitHead
from rl_training.models.mlp_layers import LayerOptions
from rl_training.models.q_network import QNetwork
from rl_training.models.torsos import mlp_torso
from rl_training.types import LevelsName


class MLPIQNetwork(QNetwork):
    """obs [B, obs_dim] → quantiles [B, A, N] at the N levels of its draws, or at `num_acting_quantiles` midpoints; acts on their mean.

    The layers before the last hidden one are the features ψ that the embedding of τ multiplies (with one hidden layer: the observation).
    """

    def __init__(
        self,
        obs_dim: int,
        action_dim: int,
        hidden_sizes: Sequence[int],
        num_quantiles: int = 64,
        num_target_quantiles: int = 64,
        num_acting_quantiles: int = 32,
        embedding_dim: int = 64,
        quantile_levels: LevelsName = "stratified",
        dueling: bool = False,
        noisy: bool = False,
        noisy_sigma: float = 0.5,
        **layers: Unpack[LayerOptions],
    ) -> None:
        torso = mlp_torso(obs_dim, hidden_sizes[:-1], **layers)
        head = ImplicitHead(
            torso.out_dim,
            action_dim,
            num_quantiles=num_quantiles,
            num_target_quantiles=num_target_quantiles,
            num_acting_quantiles=num_acting_quantiles,
            embedding_dim=embedding_dim,
            quantile_levels=quantile_levels,
            hidden_sizes=hidden_sizes[-1:],
            dueling=dueling,
            noisy_sigma=noisy_sigma if noisy else None,
            **layers,
        )
        super().__init__(torso, head)

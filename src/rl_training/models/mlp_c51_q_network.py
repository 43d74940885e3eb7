"""Fully connected C51 networks (arXiv:1707.06887): a distribution over fixed atoms per action."""

from __future__ import annotations

from collections.abc import Sequence

from typing_extensions import Unpack

from rl_training.models.heads import CategoricalHead
from rl_training.models.mlp_layers import LayerOptions
from rl_training.models.q_network import QNetwork
from rl_training.models.torsos import mlp_torso


class MLPC51QNetwork(QNetwork):
    """obs [B, obs_dim] → logits [B, A, num_atoms] on the atoms of [v_min, v_max]; acts on the mean. `hidden_sizes=()` is linear."""

    def __init__(
        self,
        obs_dim: int,
        action_dim: int,
        num_atoms: int,
        v_min: float,
        v_max: float,
        hidden_sizes: Sequence[int],
        dueling: bool = False,
        noisy: bool = False,
        noisy_sigma: float = 0.5,
        **layers: Unpack[LayerOptions],
    ) -> None:
        torso = mlp_torso(obs_dim, hidden_sizes[:-1], **layers)
        head = CategoricalHead(
            torso.out_dim,
            action_dim,
            num_atoms=num_atoms,
            v_min=v_min,
            v_max=v_max,
            hidden_sizes=hidden_sizes[-1:],
            dueling=dueling,
            noisy_sigma=noisy_sigma if noisy else None,
            **layers,
        )
        super().__init__(torso, head)

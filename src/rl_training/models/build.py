"""Feed-forward networks from plain keywords: the named ones by their head, and any other torso before any head.

(recurrent/parts.py has those of recurrent ones.)

`torso` reads the observation; without one the fully connected layers do, of the observation flattened.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from typing_extensions import Unpack

from rl_training.models.actor_critic import ActorCriticHeads, FeedForwardActorCritic, MLPActorCritic, start_orthogonal
from rl_training.models.distributions import Distribution
from rl_training.models.heads import HeadKeywords, HeadKind, make_head
from rl_training.models.mlp_c51_q_network import MLPC51QNetwork
from rl_training.models.mlp_iqn_network import MLPIQNetwork
from rl_training.models.mlp_layers import ACTIVATIONS
from rl_training.models.mlp_q_network import MLPQNetwork
from rl_training.models.mlp_qr_q_network import MLPQRQNetwork
from rl_training.models.q_network import QNetwork
from rl_training.models.torsos import Torso, make_encoder
from rl_training.types import ActivationName

_BY_HEAD: dict[HeadKind, tuple[Callable[..., QNetwork], dict[str, Any]]] = {
    "scalar": (MLPQNetwork, {}),
    "categorical": (MLPC51QNetwork, {"num_atoms": 51, "v_min": -10.0, "v_max": 10.0}),
    "quantile": (MLPQRQNetwork, {"num_quantiles": 51}),
    "implicit": (
        MLPIQNetwork,
        {"num_quantiles": 64, "num_target_quantiles": 64, "num_acting_quantiles": 32, "embedding_dim": 64, "quantile_levels": "stratified"},
    ),
}
"""Head → the fully connected network with it, and the head's own keywords with their defaults."""
COMMON = ("dueling", "noisy", "noisy_sigma", "activation", "layer_norm")


def build_q_network(
    obs_shape: Sequence[int],
    action_dim: int,
    *,
    hidden_sizes: Sequence[int],
    torso: Torso | None = None,
    head: HeadKind = "scalar",
    **keywords: Unpack[HeadKeywords],
) -> QNetwork:
    """A feed-forward Q-network. The last of `hidden_sizes` is the head's: doubled if dueling, noisy if noisy."""
    if torso is None and len(obs_shape) == 1:
        named, own = _BY_HEAD[head]
        common = {name: value for name, value in keywords.items() if name in COMMON}
        return named(obs_shape[0], action_dim, hidden_sizes=hidden_sizes, **common, **{name: keywords.get(name, own[name]) for name in own})
    activation, layer_norm = ACTIVATIONS[keywords.get("activation", "relu")], keywords.get("layer_norm", False)
    encoder = make_encoder(obs_shape, hidden_sizes[:-1], activation, torso, layer_norm)
    return QNetwork(encoder, make_head(head, encoder.out_dim, action_dim, hidden_sizes=hidden_sizes[-1:], **keywords))


def build_actor_critic(
    obs_shape: Sequence[int],
    distribution: Distribution,
    *,
    hidden_sizes: Sequence[int],
    activation: ActivationName = "tanh",
    log_std_init: float = 0.0,
    torso: Torso | None = None,
    layer_norm: bool = False,
) -> FeedForwardActorCritic:
    """Policy and value: after a torso they share its layers too (`hidden_sizes`), as PPO's Atari network has it (Huang et al. 2022,
    *The 37 implementation details of PPO*, "shared Nature-CNN"); without one each has layers of its own."""
    if torso is None and len(obs_shape) == 1:
        return MLPActorCritic(obs_shape[0], distribution, hidden_sizes, activation, log_std_init, layer_norm)
    encoder = make_encoder(obs_shape, hidden_sizes, ACTIVATIONS[activation], torso, layer_norm)
    start_orthogonal(encoder)
    return FeedForwardActorCritic(encoder, ActorCriticHeads(encoder.out_dim, distribution, (), activation, log_std_init))

"""The parts of recurrent networks from plain keywords: any torso before any core before any head."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn
from typing_extensions import Unpack

from rl_training.models.actor_critic import ActorCriticHeads, start_orthogonal
from rl_training.models.distributions import Distribution
from rl_training.models.heads import Head, HeadKeywords, HeadKind, make_head
from rl_training.models.mlp_layers import ACTIVATIONS
from rl_training.models.recurrent.cores import Core, LSTMCore, MakeCore
from rl_training.models.torsos import Torso, features_dim_of, make_encoder
from rl_training.types import ActivationName


def recurrent_q_parts(
    obs_shape: Sequence[int],
    action_dim: int,
    *,
    features_dim: int,
    encoder_hidden_sizes: Sequence[int],
    head_hidden_sizes: Sequence[int],
    hidden_size: int,
    num_layers: int,
    make_core: MakeCore = LSTMCore,
    torso: Torso | None = None,
    skip: bool = False,
    previous_actions: int = 0,
    head: HeadKind = "scalar",
    **keywords: Unpack[HeadKeywords],
) -> tuple[Torso, Core, Head]:
    """What a RecurrentQNetwork is made of; the encoder's layers are `encoder_hidden_sizes` and `features_dim`."""
    reads = hidden_size + (features_dim if skip else 0)
    top = make_head(head, reads, action_dim, hidden_sizes=head_hidden_sizes, **keywords)
    sizes = [*encoder_hidden_sizes, features_dim]
    core = make_core(_core_inputs(obs_shape, sizes, torso, previous_actions), hidden_size, num_layers)
    activation, layer_norm = ACTIVATIONS[keywords.get("activation", "relu")], keywords.get("layer_norm", False)
    encoder = make_encoder(obs_shape, sizes, activation, torso, layer_norm)
    return encoder, core, top


def recurrent_actor_critic_parts(
    obs_shape: Sequence[int],
    distribution: Distribution,
    *,
    features_dim: int | None,
    encoder_hidden_sizes: Sequence[int],
    head_hidden_sizes: Sequence[int],
    hidden_size: int,
    num_layers: int,
    make_core: MakeCore = LSTMCore,
    torso: Torso | None = None,
    previous_actions: int = 0,
    activation: ActivationName = "tanh",
    log_std_init: float = 0.0,
    layer_norm: bool = False,
) -> tuple[Torso, Core, ActorCriticHeads]:
    """What a RecurrentActorCritic is made of; the encoder's layers are `encoder_hidden_sizes` and `features_dim` (None: no such layer).

    Matrices start orthogonal, those of the fully connected layers with gain √2 and of the core with 1 (Huang et al. 2022); biases at zero.
    """
    sizes = [*encoder_hidden_sizes, *([] if features_dim is None else [features_dim])]
    core = make_core(_core_inputs(obs_shape, sizes, torso, previous_actions), hidden_size, num_layers)
    encoder = make_encoder(obs_shape, sizes, ACTIVATIONS[activation], torso, layer_norm)
    heads = ActorCriticHeads(hidden_size, distribution, head_hidden_sizes, activation, log_std_init, layer_norm)
    start_orthogonal(encoder)
    for parameter in core.parameters():
        if parameter.ndim > 1:
            nn.init.orthogonal_(parameter)
        else:
            nn.init.zeros_(parameter)
    return encoder, core, heads


def _core_inputs(obs_shape: Sequence[int], sizes: Sequence[int], torso: Torso | None, previous_actions: int) -> int:
    """Features, and what led to them where the core reads that: the action, one-hot, and the reward."""
    return features_dim_of(obs_shape, sizes, torso) + (previous_actions + 1 if previous_actions else 0)

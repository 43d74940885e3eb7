"""Networks: torsos, heads and their combinations."""

from rl_training.models.actor_critic import ActorCritic, ActorCriticHeads, FeedForwardActorCritic, MLPActorCritic
from rl_training.models.build import build_actor_critic, build_q_network
from rl_training.models.distributions import Categorical, DiagonalGaussian, Distribution, MultiCategorical, make_distribution
from rl_training.models.heads import (
    NO_DRAWS,
    CategoricalHead,
    Draws,
    Head,
    HeadKeywords,
    HeadKind,
    ImplicitHead,
    QuantileHead,
    ScalarHead,
    make_head,
)
from rl_training.models.layers import NoisyLinear
from rl_training.models.mlp_c51_q_network import MLPC51QNetwork
from rl_training.models.mlp_iqn_network import MLPIQNetwork
from rl_training.models.mlp_q_network import MLPQNetwork
from rl_training.models.mlp_qr_q_network import MLPQRQNetwork
from rl_training.models.network import (
    CoreState,
    Facts,
    Network,
    PolicyNetwork,
    RecurrentPolicyNetwork,
    RecurrentValueNetwork,
    ValueNetwork,
)
from rl_training.models.plain import as_network
from rl_training.models.q_network import QNetwork, epsilon_greedy
from rl_training.models.recurrent import (
    Core,
    GRUCore,
    LSTMActorCritic,
    LSTMCore,
    LSTMQNetwork,
    RecurrentAction,
    RecurrentActorCritic,
    RecurrentQNetwork,
)
from rl_training.models.torsos import MLPTorso, Torso

__all__ = [
    "NO_DRAWS",
    "ActorCritic",
    "ActorCriticHeads",
    "Categorical",
    "CategoricalHead",
    "Core",
    "CoreState",
    "DiagonalGaussian",
    "Distribution",
    "Draws",
    "Facts",
    "FeedForwardActorCritic",
    "GRUCore",
    "Head",
    "HeadKeywords",
    "HeadKind",
    "ImplicitHead",
    "LSTMActorCritic",
    "LSTMCore",
    "LSTMQNetwork",
    "MLPActorCritic",
    "MLPC51QNetwork",
    "MLPIQNetwork",
    "MLPQNetwork",
    "MLPQRQNetwork",
    "MLPTorso",
    "MultiCategorical",
    "Network",
    "NoisyLinear",
    "PolicyNetwork",
    "QNetwork",
    "QuantileHead",
    "RecurrentAction",
    "RecurrentActorCritic",
    "RecurrentPolicyNetwork",
    "RecurrentQNetwork",
    "RecurrentValueNetwork",
    "ScalarHead",
    "Torso",
    "ValueNetwork",
    "as_network",
    "build_actor_critic",
    "build_q_network",
    "epsilon_greedy",
    "make_distribution",
    "make_head",
]

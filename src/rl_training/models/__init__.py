"""Networks: torsos, heads and their combinations."""

from rl_training.models.actor_critic import ActorCritic, MLPActorCritic
from rl_training.models.build import build_lstm_q_network, build_mlp_q_network
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
from rl_training.models.recurrent.lstm_actor_critic import LSTMActorCritic
from rl_training.models.recurrent.lstm_q_network import LSTMQNetwork, RecurrentAction

__all__ = [
    "NO_DRAWS",
    "ActorCritic",
    "Categorical",
    "CategoricalHead",
    "CoreState",
    "DiagonalGaussian",
    "Distribution",
    "Draws",
    "Facts",
    "Head",
    "HeadKeywords",
    "HeadKind",
    "ImplicitHead",
    "LSTMActorCritic",
    "LSTMQNetwork",
    "MLPActorCritic",
    "MLPC51QNetwork",
    "MLPIQNetwork",
    "MLPQNetwork",
    "MLPQRQNetwork",
    "MultiCategorical",
    "Network",
    "NoisyLinear",
    "PolicyNetwork",
    "QNetwork",
    "QuantileHead",
    "RecurrentAction",
    "RecurrentPolicyNetwork",
    "RecurrentValueNetwork",
    "ScalarHead",
    "ValueNetwork",
    "as_network",
    "build_lstm_q_network",
    "build_mlp_q_network",
    "epsilon_greedy",
    "make_distribution",
    "make_head",
]

"""Networks: torsos, heads and their combinations."""

from rl_training.models.heads import NO_DRAWS, Draws, Head, ScalarHead
from rl_training.models.layers import NoisyLinear
from rl_training.models.mlp_q_network import MLPQNetwork
from rl_training.models.q_network import CoreState, QNetwork, epsilon_greedy
from rl_training.models.recurrent.lstm_q_network import LSTMQNetwork, RecurrentAction

__all__ = [
    "NO_DRAWS",
    "CoreState",
    "Draws",
    "Head",
    "LSTMQNetwork",
    "MLPQNetwork",
    "NoisyLinear",
    "QNetwork",
    "RecurrentAction",
    "ScalarHead",
    "epsilon_greedy",
]

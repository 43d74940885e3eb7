"""Networks with memory."""

from rl_training.models.recurrent.actor_critic import RecurrentActorCritic
from rl_training.models.recurrent.cores import Core, GRUCore, LSTMCore
from rl_training.models.recurrent.lstm_actor_critic import LSTMActorCritic
from rl_training.models.recurrent.lstm_q_network import LSTMQNetwork
from rl_training.models.recurrent.parts import recurrent_actor_critic_parts, recurrent_q_parts
from rl_training.models.recurrent.q_network import RecurrentAction, RecurrentQNetwork

__all__ = [
    "Core",
    "GRUCore",
    "LSTMActorCritic",
    "LSTMCore",
    "LSTMQNetwork",
    "RecurrentAction",
    "RecurrentActorCritic",
    "RecurrentQNetwork",
    "recurrent_actor_critic_parts",
    "recurrent_q_parts",
]

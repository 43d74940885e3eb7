"""Networks with memory."""

from rl_training.models.recurrent.lstm_actor_critic import LSTMActorCritic
from rl_training.models.recurrent.lstm_q_network import LSTMQNetwork, RecurrentAction

__all__ = ["LSTMActorCritic", "LSTMQNetwork", "RecurrentAction"]

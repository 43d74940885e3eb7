"""Update mathematics: pure losses, and the small classes that apply them."""

from rl_training.algorithms.dqn import DQN, dqn_loss
from rl_training.algorithms.q_learner import QLearner

__all__ = ["DQN", "QLearner", "dqn_loss"]

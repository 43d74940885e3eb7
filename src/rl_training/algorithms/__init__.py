"""Update mathematics: pure losses, and the small classes that apply them."""

from rl_training.algorithms.backups import Backup, Bootstrap, DoubleBackup, MaxBackup
from rl_training.algorithms.by_head import make_rule
from rl_training.algorithms.c51_dqn import C51DQN
from rl_training.algorithms.distributional_losses import quantile_huber_loss
from rl_training.algorithms.dqn import DQN, dqn_loss
from rl_training.algorithms.drqn import DRQN, drqn_loss
from rl_training.algorithms.iqn import IQN
from rl_training.algorithms.munchausen import MunchausenBackup
from rl_training.algorithms.policy_losses import clipped_surrogate, value_loss
from rl_training.algorithms.ppo import PPO
from rl_training.algorithms.pqn import PQN, RecurrentPQN
from rl_training.algorithms.q_learner import QLearner
from rl_training.algorithms.qr_dqn import QRDQN
from rl_training.algorithms.r2d2 import R2D2, r2d2_loss
from rl_training.algorithms.recurrent_ppo import RecurrentPPO
from rl_training.algorithms.rules import Rule

__all__ = [
    "C51DQN",
    "DQN",
    "DRQN",
    "IQN",
    "PPO",
    "PQN",
    "QRDQN",
    "R2D2",
    "Backup",
    "Bootstrap",
    "DoubleBackup",
    "MaxBackup",
    "MunchausenBackup",
    "QLearner",
    "RecurrentPPO",
    "RecurrentPQN",
    "Rule",
    "clipped_surrogate",
    "dqn_loss",
    "drqn_loss",
    "make_rule",
    "quantile_huber_loss",
    "r2d2_loss",
    "value_loss",
]

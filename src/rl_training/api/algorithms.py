"""One class per row of the registry: the names users import."""

from __future__ import annotations

from rl_training.api.managed import ManagedAlgorithm

__all__ = [
    "BTR",
    "C51DQN",
    "DQN",
    "DRQN",
    "IQN",
    "PPO",
    "PQN",
    "QRDQN",
    "R2D2",
    "DoubleDQN",
    "DuelingDQN",
    "ManagedAlgorithm",
    "MunchausenDQN",
    "MunchausenIQN",
    "NStepDQN",
    "NoisyDQN",
    "PrioritizedDQN",
    "RainbowDQN",
    "RecurrentPPO",
    "RecurrentPQN",
]


class DQN(ManagedAlgorithm, row="dqn"):
    """Deep Q-network: replay and a target network (arXiv:1312.5602)."""


class DoubleDQN(ManagedAlgorithm, row="double_dqn"):
    """DQN whose online network selects the target's action (arXiv:1509.06461)."""


class DuelingDQN(ManagedAlgorithm, row="dueling_dqn"):
    """DQN with separate value and advantage streams (arXiv:1511.06581)."""


class NoisyDQN(ManagedAlgorithm, row="noisy_dqn"):
    """DQN that explores by learned noise in its weights (arXiv:1706.10295)."""


class PrioritizedDQN(ManagedAlgorithm, row="prioritized_dqn"):
    """DQN that replays surprising transitions more often (arXiv:1511.05952)."""


class NStepDQN(ManagedAlgorithm, row="n_step_dqn"):
    """DQN with multi-step returns (Sutton & Barto 2018, ch. 7)."""


class C51DQN(ManagedAlgorithm, row="c51_dqn"):
    """DQN that learns the return's distribution on fixed atoms (arXiv:1707.06887)."""


class QRDQN(ManagedAlgorithm, row="qr_dqn"):
    """DQN that learns the return's quantiles at fixed levels (arXiv:1710.10044)."""


class IQN(ManagedAlgorithm, row="iqn"):
    """DQN that learns the return's quantiles at sampled levels (arXiv:1806.06923)."""


class RainbowDQN(ManagedAlgorithm, row="rainbow_dqn"):
    """Categorical, dueling, noisy, double, n-step and prioritized DQN in one (arXiv:1710.02298)."""


class MunchausenDQN(ManagedAlgorithm, row="munchausen_dqn"):
    """DQN that adds its policy's log-probability to the reward, with a soft maximum in the target (arXiv:2007.14430)."""


class MunchausenIQN(ManagedAlgorithm, row="munchausen_iqn"):
    """Munchausen DQN with IQN's head, which learns the return's quantiles at sampled levels (arXiv:2007.14430)."""


class BTR(ManagedAlgorithm, row="btr"):
    """Beyond the Rainbow: IQN with Munchausen, dueling, noise, n-step returns, priorities and a wide residual torso (arXiv:2411.03820)."""


class DRQN(ManagedAlgorithm, row="drqn"):
    """DQN with a recurrent network, trained on sequences (arXiv:1507.06527)."""


class R2D2(ManagedAlgorithm, row="r2d2"):
    """Recurrent DQN with double Q-learning, trained on prioritized sequences (Kapturowski et al., ICLR 2019)."""


class PPO(ManagedAlgorithm, row="ppo"):
    """Clipped policy gradient on fresh rollouts (arXiv:1707.06347)."""


class RecurrentPPO(ManagedAlgorithm, row="recurrent_ppo"):
    """PPO with a recurrent network, trained on whole sequences from their actual starting states (arXiv:2205.11104)."""


class PQN(ManagedAlgorithm, row="pqn"):
    """Q-learning on fresh rollouts from many environments, without replay or target network (arXiv:2407.04811)."""


class RecurrentPQN(ManagedAlgorithm, row="recurrent_pqn"):
    """PQN with a recurrent network, trained on whole sequences from their actual starting states (arXiv:2407.04811)."""

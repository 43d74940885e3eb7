"""What led to the observations of E environments, kept for a network whose core reads it."""

from __future__ import annotations

import numpy as np
import torch

from rl_training.models.network import Network, reads_previous
from rl_training.types import NO_ACTION, Array, EnvStep, Previous


class PreviousSteps:
    """The action and reward before each observation, [E] each; nothing where an episode starts."""

    def __init__(self, num_envs: int) -> None:
        self.actions = np.full(num_envs, NO_ACTION, np.int64)
        self.rewards = np.zeros(num_envs, np.float32)

    @classmethod
    def of(cls, network: Network, num_envs: int) -> PreviousSteps | None:
        """None for a network that does not read them."""
        return cls(num_envs) if reads_previous(network) else None

    def step(self, actions: Array, step: EnvStep) -> None:
        """These actions were taken, as the network counts them."""
        self.actions = np.where(step.is_first, NO_ACTION, actions)
        self.rewards = np.where(step.is_first, np.float32(0), step.rewards)

    def forget(self, lost: Array) -> None:
        """lost: [E] bool, whose episodes begin anew."""
        self.actions, self.rewards = np.where(lost, NO_ACTION, self.actions), np.where(lost, np.float32(0), self.rewards)

    def tensors(self, device: torch.device | str) -> Previous:
        return Previous(torch.from_numpy(self.actions).to(device), torch.from_numpy(self.rewards).to(device))

"""A plain `nn.Module` where a network is wanted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar, overload

import torch
from torch import Tensor, nn

from rl_training.errors import ConfigError
from rl_training.models.heads import NO_DRAWS, Draws, QValues
from rl_training.models.network import Network
from rl_training.models.q_network import QNetwork

N = TypeVar("N", bound=Network)


class PlainQNetwork(QNetwork):
    """A module from observations [B, ...] to Q-values [B, A], as a network. Integers reach it as floats; its hooks run."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module, QValues())

    def forward(self, obs: Tensor, draws: Draws = NO_DRAWS) -> Tensor:
        with self.computing(obs.device):
            out: Tensor = self.torso(obs if obs.is_floating_point() else obs.float())
        return out.float()

    @torch.no_grad()
    def require_actions(self, obs_shape: Sequence[int], num_actions: int) -> None:
        """Raises ConfigError unless the module gives a Q-value for each action of such observations."""
        self.eval()  # what a normalisation layer has learned does not change by this
        try:
            out = self.forward(torch.zeros(2, *obs_shape))
        except Exception as error:  # whatever a module may say of an input that is not its own
            reason = " ".join(str(error).split())
            raise ConfigError(f"this {self.name} cannot read observations of shape {tuple(obs_shape)}: {reason:.300}") from error
        self.train()
        if out.shape != (2, num_actions):
            given, wanted = list(out.shape), [2, num_actions]
            raise ConfigError(f"a Q-network of {num_actions} actions maps 2 observations to {wanted}, and this {self.name} to {given}")

    @property
    def name(self) -> str:
        return type(self.torso).__name__


@overload
def as_network(given: N) -> N: ...


@overload
def as_network(given: nn.Module) -> PlainQNetwork: ...


def as_network(given: Network | nn.Module) -> Network:
    """A network as it is; any other module, obs [B, ...] → Q-values [B, A], wrapped."""
    if isinstance(given, Network):
        return given
    if isinstance(given, nn.Module):
        return PlainQNetwork(given)
    raise TypeError(f"a network is a torch module, got {type(given).__name__}")

"""How the weights of a Q-network start, where it is not as torch starts them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeVar

from torch import Tensor, nn

from rl_training.models.heads import Head
from rl_training.models.image_torsos import ImageTorso
from rl_training.models.torsos import MLPTorso
from rl_training.types import InitializationName

M = TypeVar("M", bound=nn.Module)


def variance_scaling_(weight: Tensor) -> Tensor:
    """Uniform with variance 1 / (√3 · fan_in), as Dopamine starts its distributional networks.

    A uniform law on ±b has variance b²/3, hence b = √(√3 / fan_in) = 1.32 / √fan_in, where torch has 1 / √fan_in.
    """
    bound = math.sqrt(math.sqrt(3) / weight[0].numel())
    return nn.init.uniform_(weight, -bound, bound)


_WEIGHTS: dict[str, Callable[[Tensor], Tensor]] = {"xavier": nn.init.xavier_uniform_, "variance_scaling": variance_scaling_}


def initialize(network: M, name: InitializationName) -> M:
    """Starts the torso's and head's linear layers and convolutions by the law of that name, biases at zero; `torch` leaves them.

    Noisy layers, a recurrent core and a torso of somebody else's start as their authors want.
    """
    if name == "torch":
        return network
    for part in network.modules():
        if isinstance(part, (MLPTorso, ImageTorso, Head)):
            for layer in part.modules():
                if isinstance(layer, (nn.Linear, nn.Conv2d)):
                    _WEIGHTS[name](layer.weight)
                    if layer.bias is not None:
                        nn.init.zeros_(layer.bias)
    return network

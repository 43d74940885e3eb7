"""The learner's weights on their way to the actors: one flat array, put into the object store once for each version."""

from __future__ import annotations

import copy
import time
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rl_training.models.network import Network
from rl_training.types import Array

PUBLISH_SECONDS = 0.05
"""New weights go out at most this often: reading them makes the learner wait for its device."""


class Weights(NamedTuple):
    """All parameters of a network as one array (models/flat.py), and its buffers."""

    parameters: Array
    buffers: list[Array]


class Publisher:
    """Puts the weights where actors find them. The version of weights is the number of updates made to them."""

    def __init__(self, ray: Any, network: Network, flat: Tensor) -> None:
        """flat: the tensor that holds the network's parameters."""
        self._ray, self._network, self._flat = ray, network, flat
        self._published: tuple[int, Any] = (-1, None)
        self._at = 0.0

    def newest(self, version: int, *, at_once: bool) -> tuple[int, Any]:
        """The version that is out, and its reference; those of `version` where none are, or after a while, or `at_once`."""
        out, reference = self._published
        if out != version and (reference is None or at_once or time.monotonic() - self._at >= PUBLISH_SECONDS):
            flat = self._flat.detach().cpu().numpy()
            self._published = version, self._ray.put(Weights(flat, [each.cpu().numpy() for each in self._network.buffers()]))
            self._at = time.monotonic()
        return self._published


def network_to_send(network: Any) -> Network:
    """A copy on the CPU whose parameters stand alone: views of one tensor would each bring all of it."""
    copied: Network = copy.deepcopy(network).cpu()
    return copied


def take_over(weights: Weights, network: Network, flat: Tensor) -> None:
    """Overwrites the network's parameters, which `flat` holds, and its buffers."""
    flat.numpy()[...] = weights.parameters
    for mine, given in zip(network.buffers(), weights.buffers, strict=True):
        mine.copy_(torch.tensor(given))

"""A network's two modes, as torch has them: `train()` while it learns, `eval()` while it is asked."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from rl_training.models.network import Module


@contextmanager
def evaluating(network: Module) -> Iterator[None]:
    """Inside, the network is in evaluation mode: nothing is dropped out, and a batch norm uses its statistics and leaves them alone."""
    was_training = network.training
    network.eval()
    try:
        yield
    finally:
        network.train(was_training)


def has_modes(network: Module) -> bool:
    """Whether torch's own layers in it make a difference between the two."""
    kinds = (nn.modules.dropout._DropoutNd, nn.modules.batchnorm._NormBase)
    return any(isinstance(module, kinds) for module in network.modules())

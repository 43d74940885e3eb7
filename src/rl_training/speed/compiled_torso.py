"""The convolutions of a learner compiled (torch.compile), inside what a CUDA graph then captures.

Pays where a torso is many small operations: IMPALA's residual blocks with spectral normalisation most, Nature's three layers least.
"""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any

import torch
from torch import Tensor

from rl_training.algorithms.q_learner import QLearner
from rl_training.errors import warn
from rl_training.models.image_torsos import ImageTorso
from rl_training.types import Batch


class CompiledEncode:
    """`torso.encode`, compiled for the passes of updates alone: acting has other batches, and each size would be compiled anew."""

    def __init__(self, torso: ImageTorso, *, target: bool) -> None:
        self._torso, self._target = torso, target
        self._compiled: Callable[[Tensor], Tensor] = torch.compile(_of_its_own(torso), dynamic=False)

    def __call__(self, obs: Tensor) -> Tensor:
        # acting and evaluation put the online network into evaluation mode; nobody acts by the target
        return self._compiled(obs) if self._target or self._torso.training else self._torso.encode(obs)


def _of_its_own(torso: ImageTorso) -> Callable[[Tensor], Tensor]:
    """`torso.encode` as a function with code of its own. torch counts what it compiled by the code it is of and stops at eight: with and
    without gradients and for each size of a batch, torsos would share that number, and so would the runs of one process."""

    def encode(obs: Tensor) -> Tensor:
        return torso.encode(obs)

    return FunctionType(encode.__code__.replace(), encode.__globals__, encode.__name__, None, encode.__closure__)


def image_torsos(network: Any) -> list[ImageTorso]:
    return [part for part in network.modules() if isinstance(part, ImageTorso)]


def compile_torsos(learner: QLearner, batch: Batch) -> str:
    """From now on the learner's convolutions run compiled; says how it went. All passes are tried with this batch, which changes nothing:
    where the compiler fails, they stay as they are."""
    pairs = [(torso, False) for torso in image_torsos(learner.q_network)] + [
        (torso, True) for torso in image_torsos(learner.target_network)
    ]
    held = [buffer.clone() for buffer in learner.q_network.buffers()]
    drawn = learner.generator.get_state()
    for torso, target in pairs:
        torso.compiled = CompiledEncode(torso, target=target)
    try:
        learner.gradient(batch)
        return "torso compiled"
    except Exception as error:  # whatever a compiler may raise: the run does not need it
        for torso, _ in pairs:
            torso.compiled = None
        said = f"torso could not be compiled, goes on without: {' '.join(str(error).split())[:200]}"
        warn(said, RuntimeWarning)
        return said
    finally:
        learner.generator.set_state(drawn)
        for buffer, before in zip(learner.q_network.buffers(), held, strict=True):
            buffer.copy_(before)

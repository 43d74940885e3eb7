"""A random generator's state, as a checkpoint holds it: NumPy's and torch's, on whatever device it was made."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

Generator: TypeAlias = np.random.Generator | torch.Generator


def generator_state(generator: Generator) -> Any:
    return generator.bit_generator.state if isinstance(generator, np.random.Generator) else generator.get_state()


def load_generator_state(generator: Generator, state: Any) -> None:
    """Go on where the saved generator stopped. A state from another kind of device cannot be used: the draws start from the seed."""
    if isinstance(generator, np.random.Generator):
        if isinstance(state, dict):
            generator.bit_generator.state = state
    elif isinstance(state, Tensor) and state.numel() == generator.get_state().numel():
        generator.set_state(state.cpu())

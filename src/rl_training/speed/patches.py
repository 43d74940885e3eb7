"""MinAtar's convolution as products of matrices: the patches of an image that its filters lie on, as columns.

On 10 × 10 pixels a convolution's gradient spends more time around its products than on them. Here the patches are gathered once, and serve
the pass (`tapes.taped_convolution`, `numpy_pass`) and the filters' gradient. tests/test_patches.py holds both equal to torch's convolution.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from numpy.lib.stride_tricks import sliding_window_view
from torch import Tensor, nn

from rl_training.models.image_torsos import Activate, MinAtarTorso

if TYPE_CHECKING:
    from rl_training.types import Array


def has_patches(torso: Any) -> bool:
    """Whether it is the one convolution that has this form, on the CPU: only what is exactly ours, and not run in another way already."""
    if type(torso) is not MinAtarTorso or torso.compiled is not None or torso.channels_last or torso.input_dtype is not torch.float32:
        return False
    convolution, activate = layers_of(torso)
    return convolution.weight.is_cpu and activate.norm is None


def layers_of(torso: MinAtarTorso) -> tuple[nn.Conv2d, Activate]:
    convolution, activate = cast("nn.Sequential", torso.layers)
    return cast("nn.Conv2d", convolution), cast("Activate", activate)


@lru_cache(maxsize=16)
def patch_index(image: tuple[int, ...], size: int) -> Array:
    """Where in a flattened image [C, H, W] the pixels of its patches lie: [C · size · size, positions], flattened."""
    pixels = np.arange(np.prod(image)).reshape(image)
    windows = sliding_window_view(pixels, (size, size), axis=(1, 2))  # [C, H', W', size, size]
    return np.ascontiguousarray(windows.transpose(0, 3, 4, 1, 2)).reshape(-1)


@lru_cache(maxsize=16)
def _index_tensor(image: tuple[int, ...], size: int) -> Tensor:
    return torch.from_numpy(patch_index(image, size))


def patches_of(torso: MinAtarTorso, obs: Tensor) -> Tensor:
    """Images [B, C, H, W] → the patches that each filter lies on, as columns [B, C · size · size, positions]."""
    size = layers_of(torso)[0].kernel_size[0]
    x = obs.flatten(1)
    x = x if x.is_floating_point() else x.float()
    if torso.high != 1:
        x = x / torso.high
    return x.index_select(1, _index_tensor(tuple(obs.shape[1:]), size)).view(len(obs), obs.shape[1] * size * size, -1)

"""Convolutional torsos: images [B, C, H, W] of bytes → features.

Channels come first, as replay holds them. Bytes are divided by the space's largest value inside (`high`), so that nothing but bytes is
stored and moved. Parameters stay as torch lays them out, views of one flat tensor (flat.py): where channels-last is faster, only the image
is brought into that order, and cuDNN brings the few weights along.

Each torso takes an `activation` in place of its paper's ReLU, and a `layer_norm` before each: over channels and positions together, with a
gain and a bias per channel, so that neither depends on the image's size. (PQN's public code normalises channels alone, at each position.)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from rl_training.errors import ConfigError
from rl_training.models.mlp_layers import ACTIVATIONS, NORM_EPS
from rl_training.models.spectral import SpectralConv2d
from rl_training.models.torsos import Torso
from rl_training.types import ActivationName, PaddingName


class ImageTorso(Torso):
    """`layers` over images of `obs_shape` [C, H, W], flattened. `smallest` is the shorter side it needs.

    `input_dtype`, `channels_last` and `compiled` are for whoever makes it fast (runtime/devices.py, speed/): what the bytes become, another
    layout of the same numbers, and another way to call `encode`.
    """

    name = "image"
    smallest = 1

    def __init__(self, obs_shape: Sequence[int], layers: nn.Module, high: float = 255.0) -> None:
        super().__init__()
        self.layers, self.high = layers, high
        with torch.no_grad():
            self.out_dim = self.layers(torch.zeros(1, *obs_shape)).flatten(1).shape[1]
        self.channels_last, self.input_dtype = False, torch.float32
        self.compiled: Callable[[Tensor], Tensor] | None = None

    @classmethod
    def require_size(cls, obs_shape: Sequence[int]) -> tuple[int, int, int]:
        """C, H, W, or a ConfigError where such images are too small."""
        if len(obs_shape) != 3:
            raise ConfigError(f"torso {cls.name} reads images [C, H, W], not observations of shape {tuple(obs_shape)}")
        channels, height, width = obs_shape
        if min(height, width) < cls.smallest:
            size = f"{cls.smallest} × {cls.smallest}"
            raise ConfigError(
                f"torso {cls.name} needs images of at least {size}, and these are {height} × {width}; "
                "leave torso out for one that fits, or enlarge them in a wrapper of your own"
            )
        return channels, height, width

    def encode(self, obs: Tensor) -> Tensor:
        if self.channels_last:
            obs = obs.contiguous(memory_format=torch.channels_last)  # as bytes: the least to move
        x = obs if obs.is_floating_point() else obs.to(self.input_dtype)  # whole numbers up to 256 are exact in bfloat16 too
        if self.high != 1:
            x = x / self.high
        return self.layers(x).flatten(1)  # type: ignore[no-any-return]  # a module's call is untyped

    def forward(self, obs: Tensor) -> Tensor:
        return self.encode(obs) if self.compiled is None else self.compiled(obs)


class Activate(nn.Module):
    """The activation of that name, after a layer norm if asked for."""

    def __init__(self, channels: int, activation: ActivationName, layer_norm: bool) -> None:
        super().__init__()
        self.activation = ACTIVATIONS[activation]
        self.norm = nn.GroupNorm(1, channels, eps=NORM_EPS) if layer_norm else None

    def forward(self, x: Tensor) -> Tensor:
        return self.activation(x if self.norm is None else self.norm(x))


class NatureTorso(ImageTorso):
    """DQN's convolutions (Mnih et al. 2015, Nature 518, "Methods"): 32 of 8 × 8 by 4, 64 of 4 × 4 by 2, 64 of 3 × 3 by 1, with ReLU.

    Of 84 × 84 images come 7 × 7 × 64 = 3,136 features; the paper's 512 units that follow are the row's `hidden_sizes`. With `torso_padding:
    same`, as Dopamine has it, zeros around each layer's input keep the border, and 11 × 11 × 64 = 7,744 come.
    """

    name = "nature"
    smallest = 36

    def __init__(
        self,
        obs_shape: Sequence[int],
        high: float = 255.0,
        *,
        torso_padding: PaddingName = "valid",
        activation: ActivationName = "relu",
        layer_norm: bool = False,
    ) -> None:
        channels, *size = self.require_size(obs_shape)
        layers: list[nn.Module] = []
        for out, kernel, stride in ((32, 8, 4), (64, 4, 2), (64, 3, 1)):
            convolution = nn.Conv2d(channels, out, kernel, stride)
            if torso_padding == "same":
                layers += pad_same(convolution, size)
                size = [-(-length // stride) for length in size]
            layers += [convolution, Activate(out, activation, layer_norm)]
            channels = out
        super().__init__(obs_shape, nn.Sequential(*layers), high)


def pad_same(convolution: nn.Conv2d, size: Sequence[int]) -> list[nn.Module]:
    """Lets it see zeros around images of `size` [H, W], by its own padding or by the layer returned, which then goes before it."""
    height, width = (same_padding(*side) for side in zip(size, convolution.kernel_size, convolution.stride, strict=True))
    if height[0] != height[1] or width[0] != width[1]:
        return [nn.ZeroPad2d((*width, *height))]
    convolution.padding = height[0], width[0]
    return []


def same_padding(length: int, kernel: int, stride: int) -> tuple[int, int]:
    """Zeros before and after a side so that ⌈length / stride⌉ windows fit, an odd one after: what TensorFlow and JAX call SAME."""
    total = max((-(-length // stride) - 1) * stride + kernel - length, 0)
    return total // 2, total - total // 2


class MinAtarTorso(ImageTorso):
    """MinAtar's own network (Young & Tian 2019, arXiv:1903.03176, §4): one convolution, 16 of 3 × 3 by 1, with ReLU.

    The paper's 128 units that follow are the row's `hidden_sizes`.
    """

    name = "minatar"
    smallest = 3

    def __init__(
        self, obs_shape: Sequence[int], high: float = 255.0, *, activation: ActivationName = "relu", layer_norm: bool = False
    ) -> None:
        channels, _, _ = self.require_size(obs_shape)
        super().__init__(obs_shape, nn.Sequential(nn.Conv2d(channels, 16, 3), Activate(16, activation, layer_norm)), high)


class Residual(nn.Module):
    """x + conv(ReLU(conv(ReLU(x)))), both of 3 × 3; `spectral` divides each by its largest singular value."""

    def __init__(self, channels: int, *, spectral: bool, activation: ActivationName = "relu", layer_norm: bool = False) -> None:
        super().__init__()
        conv = SpectralConv2d if spectral else nn.Conv2d
        self.first, self.second = (conv(channels, channels, 3, padding=1) for _ in range(2))
        self.before_first, self.before_second = (Activate(channels, activation, layer_norm) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.second(self.before_second(self.first(self.before_first(x))))
        return x + out


class ImpalaTorso(ImageTorso):
    """IMPALA's residual network (arXiv:1802.01561, fig. 3, "large"): three stages of 16, 32 and 32 channels times `width`, each a
    convolution of 3 × 3, max-pooling of 3 × 3 by 2 and two residual blocks; then ReLU.

    `spectral_norm` (of the residual convolutions) and the last max-pooling to `pool` × `pool` (None: none, as in the paper) are BTR's
    (arXiv:2411.03820, §3), which has width 2 and 6 × 6. Where an image leaves less than that, nothing is pooled.
    """

    name = "impala"
    smallest = 8

    def __init__(
        self,
        obs_shape: Sequence[int],
        high: float = 255.0,
        *,
        torso_width: int = 1,
        spectral_norm: bool = False,
        pool: int | None = 6,
        activation: ActivationName = "relu",
        layer_norm: bool = False,
    ) -> None:
        channels, height, width = self.require_size(obs_shape)
        parts: list[nn.Module] = []
        for out in (16 * torso_width, 32 * torso_width, 32 * torso_width):
            parts += [nn.Conv2d(channels, out, 3, padding=1), nn.MaxPool2d(3, 2, 1)]
            parts += [Residual(out, spectral=spectral_norm, activation=activation, layer_norm=layer_norm) for _ in range(2)]
            channels, height, width = out, (height + 1) // 2, (width + 1) // 2
        parts.append(Activate(channels, activation, layer_norm))
        if pool is not None and (height > pool or width > pool):
            parts.append(nn.AdaptiveMaxPool2d((min(height, pool), min(width, pool))))
        super().__init__(obs_shape, nn.Sequential(*parts), high)

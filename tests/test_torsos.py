"""Convolutional torsos: the papers' shapes, the scale inside, spectral normalisation, and any head after them."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from rl_training.errors import ConfigError
from rl_training.experiment.network_parts import image_torso
from rl_training.models import build_actor_critic, build_q_network, make_distribution
from rl_training.models.flat import flatten_parameters
from rl_training.models.image_torsos import Activate, ImageTorso, ImpalaTorso, MinAtarTorso, NatureTorso, same_padding
from rl_training.models.mlp_layers import ACTIVATIONS
from rl_training.models.spectral import SpectralConv2d


def count(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def test_natures_shape_and_size() -> None:
    """84 × 84 × 4 → 20 × 20 × 32 → 9 × 9 × 64 → 7 × 7 × 64 = 3,136; with 512 units and 4 actions the paper's 1,686,180 parameters."""
    torso = NatureTorso((4, 84, 84))
    assert torso.out_dim == 3136 and count(torso) == 4 * 32 * 64 + 32 + 32 * 64 * 16 + 64 + 64 * 64 * 9 + 64
    network = build_q_network((4, 84, 84), 4, hidden_sizes=[512], torso=torso)
    assert count(network) == 1_686_180


def test_nature_with_its_border_kept() -> None:
    """84 → 21 → 11 → 11: ⌈length / stride⌉ windows each, which take 4, 3 and 2 zeros more, half of them before; of 3 the odd one after."""
    assert [same_padding(*side) for side in ((84, 8, 4), (21, 4, 2), (11, 3, 1))] == [(2, 2), (1, 2), (1, 1)]
    assert same_padding(16, 2, 4) == (0, 0)  # windows that leave gaps need none
    torso = NatureTorso((4, 84, 84), torso_padding="same")
    assert torso.out_dim == 64 * 11 * 11 and count(torso) == count(NatureTorso((4, 84, 84)))
    images = torch.randint(0, 256, (3, 4, 84, 84), dtype=torch.uint8)
    x = images / 255
    convolutions = [layer for layer in torso.modules() if isinstance(layer, nn.Conv2d)]
    for layer, (before, after) in zip(convolutions, [(2, 2), (1, 2), (1, 1)], strict=True):
        x = nn.functional.conv2d(nn.functional.pad(x, (before, after) * 2), layer.weight, layer.bias, layer.stride).relu()
    torch.testing.assert_close(torso(images), x.flatten(1))
    assert NatureTorso((4, 36, 50), torso_padding="same").out_dim == 64 * 5 * 7  # 36 → 9 → 5, 50 → 13 → 7


def test_minatars_shape_and_size() -> None:
    """10 × 10 × 4 → 8 × 8 × 16 = 1,024 (arXiv:1903.03176); then 128 units."""
    torso = MinAtarTorso((4, 10, 10), high=1)
    assert torso.out_dim == 1024 and count(torso) == 4 * 16 * 9 + 16
    assert count(build_q_network((4, 10, 10), 3, hidden_sizes=[128], torso=torso)) == 592 + 1024 * 128 + 128 + 128 * 3 + 3


@pytest.mark.parametrize(("pool", "out_dim"), [(None, 32 * 11 * 11), (6, 32 * 6 * 6)])
def test_impalas_shape_and_size(pool: int | None, out_dim: int) -> None:
    """84 → 42 → 21 → 11. Each stage has five convolutions of 3 × 3, of which all but the first keep their channels."""
    torso = ImpalaTorso((4, 84, 84), pool=pool)
    stages = ((4, 16), (16, 32), (32, 32))
    assert torso.out_dim == out_dim and count(torso) == sum((i * o + 4 * o * o) * 9 + 5 * o for i, o in stages)
    wide = ImpalaTorso((4, 84, 84), torso_width=2)
    assert wide.out_dim == 2 * 32 * 36 and ImpalaTorso((3, 20, 40)).out_dim == 32 * 3 * 5  # nothing is blown up to 6 × 6


@pytest.mark.parametrize("high", [1, 15, 255])
@pytest.mark.parametrize("make", [NatureTorso, partial(NatureTorso, torso_padding="same"), MinAtarTorso, ImpalaTorso])
def test_bytes_are_divided_by_high_inside(make: Any, high: int) -> None:
    torso = make((2, 36, 40), high=high)
    images = torch.randint(0, high + 1, (3, 2, 36, 40), dtype=torch.uint8)
    naive = torso.layers(images.float() / high).flatten(1)
    torch.testing.assert_close(torso(images), naive)
    assert torso(images).shape == (3, torso.out_dim) and images.dtype == torch.uint8
    torso.channels_last = True  # another layout of the same numbers: sums in another order
    torch.testing.assert_close(torso(images), naive, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("make", [NatureTorso, MinAtarTorso, ImpalaTorso])
def test_what_is_too_small_is_refused_and_the_smallest_is_not(make: type[ImageTorso]) -> None:
    side = make.smallest
    assert make((1, side, side + 3)).out_dim >= 16
    with pytest.raises(ConfigError, match=f"at least {side} × {side}, and these are {side + 3} × {side - 1}"):
        make((1, side + 3, side - 1))
    with pytest.raises(ConfigError, match="reads images"):
        make((4,))


@pytest.mark.parametrize("make", [NatureTorso, MinAtarTorso, ImpalaTorso])
@pytest.mark.parametrize("activation", ["relu", "silu"])
def test_a_layer_norm_stands_before_each_activation(make: Any, activation: Any) -> None:
    """What each activation gets has mean 0 and variance 1 over channels and positions, for every image on its own."""
    torch.manual_seed(0)
    torso, seen = make((2, 40, 40), activation=activation, layer_norm=True), []
    for part in torso.modules():
        if isinstance(part, Activate):
            assert part.norm is not None and part.activation is ACTIVATIONS[activation]
            part.norm.register_forward_hook(lambda module, inputs, out: seen.append(out.flatten(1)))
    torso(torch.randint(256, (3, 2, 40, 40), dtype=torch.uint8))
    assert len(seen) == {NatureTorso: 3, MinAtarTorso: 1, ImpalaTorso: 13}[make]
    for out in seen:
        torch.testing.assert_close(out.mean(1), torch.zeros(3), rtol=0, atol=1e-4)
        torch.testing.assert_close(out.var(1, correction=0), torch.ones(3), rtol=1e-2, atol=0)  # NORM_EPS beside small variances
    plain = make((2, 40, 40), activation=activation)
    assert not any(isinstance(part, torch.nn.GroupNorm) for part in plain.modules())


def test_which_torso_is_chosen() -> None:
    sizes = {(3, 10, 10): "minatar", (3, 16, 80): "minatar", (3, 17, 17): "impala", (3, 63, 64): "impala", (4, 64, 64): "nature"}
    assert {shape: image_torso(shape)[0] for shape in sizes} == sizes


@pytest.mark.parametrize(
    ("head", "keywords"),
    [
        ("scalar", {"dueling": True, "noisy": True}),
        ("categorical", {"num_atoms": 5, "v_min": -1.0, "v_max": 1.0, "dueling": True}),
        ("quantile", {"num_quantiles": 4}),
        ("implicit", {"num_quantiles": 4, "num_acting_quantiles": 3, "noisy": True}),
    ],
)
def test_any_head_goes_after_a_convolution(head: Any, keywords: dict[str, Any]) -> None:
    torso = MinAtarTorso((2, 6, 6))
    network = build_q_network((2, 6, 6), 3, hidden_sizes=[8], torso=torso, head=head, **keywords)
    flat = flatten_parameters(network)
    images = torch.randint(0, 256, (5, 2, 6, 6), dtype=torch.uint8)
    draws = network.draw(torch.Generator().manual_seed(0), (5,), "online")
    out = network.forward(images, draws)
    assert network.q_values(images).shape == (5, 3)
    grads = torch.autograd.grad(out.square().sum(), list(network.parameters()))
    assert all(bool(g.any()) for g in grads)
    with torch.no_grad():  # the parameters are views of the flat tensor
        before = network.q_values(images)
        flat.mul_(2)
        assert not torch.equal(network.q_values(images), before)


def test_an_actor_critic_shares_the_layers_after_the_torso() -> None:
    distribution = make_distribution({"kind": "discrete", "n": 3})
    network = build_actor_critic((4, 84, 84), distribution, hidden_sizes=[512], activation="relu", torso=NatureTorso((4, 84, 84)))
    assert count(network) == 77_984 + 3136 * 512 + 512 + 513 * 3 + 513
    outputs, values = network(torch.zeros(2, 4, 84, 84, dtype=torch.uint8))
    assert outputs.shape == (2, 3) and values.shape == (2,)
    weight = network.encoder.first.layers[0].weight.flatten(1)  # orthogonal with gain √2
    torch.testing.assert_close(weight @ weight.t(), 2 * torch.eye(32), rtol=1e-4, atol=1e-4)


def test_spectral_norm_is_torchs_own_iteration_by_iteration() -> None:
    torch.manual_seed(0)
    ours = SpectralConv2d(3, 5, 3, padding=1)
    theirs = nn.utils.parametrizations.spectral_norm(nn.Conv2d(3, 5, 3, padding=1))
    norm = theirs.parametrizations["weight"]
    with torch.no_grad():
        norm.original.copy_(ours.weight)
        theirs.bias.copy_(ours.bias)
        norm[0]._u.copy_(ours.left)
        norm[0]._v.copy_(ours.right)
    x = torch.randn(2, 3, 4, 4)
    for _ in range(3):
        mine, other = ours(x), theirs(x)
        torch.testing.assert_close(mine, other)
        grad, wanted = (torch.autograd.grad(out.square().sum(), p)[0] for out, p in ((mine, ours.weight), (other, norm.original)))
        torch.testing.assert_close(grad, wanted, rtol=1e-4, atol=1e-5)
        with torch.no_grad():
            ours.weight.sub_(0.1 * grad)
            norm.original.sub_(0.1 * wanted)
    for _ in range(100):
        ours.iterate()
    sigma = torch.linalg.matrix_norm(ours.weight.detach().flatten(1), 2)
    torch.testing.assert_close(ours.normalized_weight().detach() * sigma, ours.weight.detach(), rtol=1e-4, atol=1e-6)


def test_only_a_pass_that_is_trained_by_iterates() -> None:
    conv, x = SpectralConv2d(2, 2, 3), torch.randn(1, 2, 4, 4)
    with torch.no_grad():
        conv.weight.add_(torch.randn_like(conv.weight))  # far from what the vectors belong to
        before = conv.left.clone()
        conv(x)
        assert torch.equal(conv.left, before)
    conv.eval()(x)
    assert torch.equal(conv.left, before)
    conv.train()(x)
    assert not torch.equal(conv.left, before)
    assert set(conv.state_dict()) == {"weight", "bias", "left", "right"}

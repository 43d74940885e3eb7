"""How weights start: the laws by name, what they leave alone, and that a row's settings reach its network."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from torch import nn

from rl_training.experiment.registry import get_algorithm_spec
from rl_training.models import Torso, build_q_network
from rl_training.models.image_torsos import NatureTorso
from rl_training.models.initialization import initialize
from rl_training.models.layers import NoisyLinear

IMAGES = {"obs_shape": [4, 84, 84], "obs_dtype": "uint8", "num_actions": 6, "image": {"high": 255}}


def layers_of(network: nn.Module) -> list[Any]:
    return [layer for layer in network.modules() if isinstance(layer, (nn.Linear, nn.Conv2d))]


def bound_of(layer: nn.Linear | nn.Conv2d, law: str) -> float:
    """Of a uniform law on ±b the variance is b²/3. Glorot's is 2/(fan_in + fan_out), Dopamine's 1/(√3 · fan_in), where a fan of a
    convolution counts each place of its kernel."""
    fan_in, fan_out = layer.weight[0].numel(), layer.weight[:, 0].numel()
    return math.sqrt(3 * (2 / (fan_in + fan_out) if law == "xavier" else 1 / (math.sqrt(3) * fan_in)))


@pytest.mark.parametrize("law", ["xavier", "variance_scaling"])
def test_every_layer_fills_its_law_and_biases_are_zero(law: Any) -> None:
    """Of n ≥ 3,000 draws from ±b the largest is within 1% of b (it is not with chance .99ⁿ < 1e-13), and none is beyond."""
    settings = get_algorithm_spec("iqn").parse({"torso": "nature", "torso_padding": "same", "hidden_sizes": [512], "initialization": law})
    torch.manual_seed(0)
    layers = layers_of(get_algorithm_spec("iqn").build_network(settings, IMAGES))
    assert [tuple(layer.weight.shape[:2]) for layer in layers] == [(32, 4), (64, 32), (64, 64), (512, 7744), (6, 512), (7744, 64)]
    for layer in layers:
        bound, largest = bound_of(layer, law), layer.weight.abs().max().item()
        assert 0.99 * bound < largest <= bound * (1 + 1e-6)  # float32 rounds the bound itself
        assert not layer.bias.any()


def test_torchs_own_start_is_left_and_takes_no_random_numbers() -> None:
    network = build_q_network((4,), 2, hidden_sizes=[8])
    before, state = copy.deepcopy(network.state_dict()), torch.get_rng_state()
    assert initialize(network, "torch") is network
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())


class OwnTorso(Torso):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.out_dim = nn.Linear(4, 3), 3

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        return self.layer(obs)  # type: ignore[no-any-return]


def test_noisy_layers_and_somebody_elses_torso_start_as_their_authors_want() -> None:
    network = build_q_network((4,), 2, hidden_sizes=[5, 8], torso=OwnTorso(), noisy=True)
    before = copy.deepcopy(network)
    initialize(network, "xavier")
    changed = {name for name, value in network.named_parameters() if not torch.equal(value, before.get_parameter(name))}
    assert changed == {"torso.layers.layers.0.weight", "torso.layers.layers.0.bias"}  # 5 units, the one plain layer that is ours
    assert any(isinstance(part, NoisyLinear) for part in network.modules())


def test_a_recurrent_core_is_left() -> None:
    spec = get_algorithm_spec("drqn")
    spaces = {"obs_shape": [3], "obs_dtype": "float32", "num_actions": 2}
    started = []
    for law in ("torch", "variance_scaling"):
        torch.manual_seed(0)
        started.append(spec.build_network(spec.parse({"initialization": law}), spaces))
    changed = {name for name, value in started[1].named_parameters() if not torch.equal(value, started[0].get_parameter(name))}
    assert changed and {name.split(".")[0] for name in changed} == {"encoder", "head"}


def test_a_wider_start_reaches_further_through_the_network() -> None:
    """Each layer's weights are 3^¼ = 1.32 times torch's in standard deviation, so that what depends on the image grows by 1.32⁵ = 3.9 from
    one end of the network to the other; the random biases of torch's start do not depend on it."""
    images = torch.randint(0, 256, (64, 4, 84, 84), dtype=torch.uint8)
    spread = {}
    for law in ("torch", "variance_scaling"):
        torch.manual_seed(1)
        network = build_q_network((4, 84, 84), 6, hidden_sizes=[512], torso=NatureTorso((4, 84, 84)), head="quantile", num_quantiles=50)
        with torch.no_grad():
            spread[law] = initialize(network, law)(images).std(0).mean().item()  # type: ignore[arg-type]
    assert spread["variance_scaling"] > 2 * spread["torch"]

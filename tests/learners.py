"""What the update tests share: batches, and networks whose outputs are the numbers a test wants."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from rl_training.models import QNetwork
from rl_training.speed.tapes import taped_q_network
from rl_training.types import Batch


def batch_of(rows: int = 16, obs_dim: int = 4, action_dim: int = 2, seed: int = 0, **fields: Any) -> Batch:
    """Random transitions; `fields` replace or add some."""
    g = torch.Generator().manual_seed(seed)
    made = {
        "obs": torch.randn(rows, obs_dim, generator=g),
        "actions": torch.randint(action_dim, (rows,), generator=g),
        "rewards": torch.randn(rows, generator=g),
        "next_obs": torch.randn(rows, obs_dim, generator=g),
        "dones": (torch.rand(rows, generator=g) < 0.2).float(),
    }
    return {**made, **{name: torch.as_tensor(value) for name, value in fields.items()}}


def check_pullback(net: QNetwork, obs: Tensor) -> None:
    """The tape of a float64 network says what the network says, and its gradients are autograd's."""
    draws = net.draw(torch.Generator().manual_seed(1), (len(obs),), "online")
    if draws.noise is not None:
        draws = draws._replace(noise=draws.noise.double())
    out = net(obs, draws)
    outer = torch.randn_like(out)
    expected = torch.autograd.grad(out, list(net.parameters()), outer)
    with torch.no_grad():
        taped, pullback = taped_q_network(net, obs, draws)
        grads = pullback(outer)
    torch.testing.assert_close(taped, out.detach())
    assert len(grads) == len(expected)
    for mine, autograd, (name, parameter) in zip(grads, expected, net.named_parameters(), strict=True):
        assert mine.shape == parameter.shape, name
        torch.testing.assert_close(mine, autograd, msg=name)


@torch.no_grad()
def set_outputs(network: QNetwork, rows: Sequence[Any]) -> None:
    """Make a linear network (`hidden_sizes=()`) a table: the one-hot observation i gives `rows[i]`, [A] or [A, N] numbers."""
    layers = network.head.advantage.layers
    assert len(layers) == 1 and network.head.value is None, "a table is one layer"
    layers[0].weight.copy_(torch.as_tensor(rows, dtype=torch.float32).flatten(1).T)
    layers[0].bias.zero_()


def one_hot(*indices: int, size: int) -> Tensor:
    return nn.functional.one_hot(torch.tensor(indices), size).float()


def parameters_of(network: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in network.parameters()]).clone()

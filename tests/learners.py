"""What the update tests share: batches, and networks whose outputs are the numbers a test wants."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from rl_training.algorithms.backups import Bootstrap
from rl_training.algorithms.q_learner import QLearner
from rl_training.algorithms.rules import Rule, TDLoss
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


def check_goes_on_bit_for_bit(make: Callable[[int], QLearner]) -> None:
    """make: a learner whose networks, levels and noise follow from the seed. What is loaded into another goes on as the one saved."""
    first, second = make(0), make(1)
    for step in range(4):
        first.update(batch_of(seed=step), global_step=step)
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    for step in range(4, 8):
        for learner in (first, second):
            learner.update(batch_of(seed=step), global_step=step)
    assert torch.equal(parameters_of(first.q_network), parameters_of(second.q_network))


def check_sequences_are_rows(rule: Rule, *, outputs: int, next_outputs: int) -> None:
    """The loss of [T, B] steps is that of T·B transitions; `outputs` numbers per action taken, `next_outputs` to bootstrap from."""
    g = torch.Generator().manual_seed(0)
    chosen, bootstrap = torch.randn(3, 4, outputs, generator=g), torch.randn(3, 4, next_outputs, generator=g)
    rewards, discounts = torch.randn(3, 4, generator=g), torch.rand(3, 4, generator=g)
    out = TDLoss(rule, chosen, rule.target(Bootstrap(bootstrap), rewards, discounts))
    moved = rule.target(Bootstrap(bootstrap.reshape(12, next_outputs)), rewards.reshape(12), discounts.reshape(12))
    flat = TDLoss(rule, chosen.reshape(12, outputs), moved)
    for name in ("loss", "priority", "q_value", "target_value", "td_error"):
        assert getattr(out, name).shape == (3, 4)
        torch.testing.assert_close(getattr(out, name).reshape(12), getattr(flat, name))


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

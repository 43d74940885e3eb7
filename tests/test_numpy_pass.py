"""The acting pass in NumPy is the network's own, for every row that has one, and follows its parameters."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from rl_training.models.actor_critic import MLPActorCritic
from rl_training.models.build import build_q_network
from rl_training.models.distributions import make_distribution
from rl_training.models.flat import flatten_parameters
from rl_training.models.heads import ScalarHead
from rl_training.models.q_network import QNetwork
from rl_training.models.torsos import MLPTorso
from rl_training.speed.numpy_pass import LARGEST, numpy_forward, numpy_pass
from value_rows import RECURRENT, ROWS, parts_of

pytestmark = pytest.mark.numeric

CLOSE = {"rtol": 1e-4, "atol": 1e-6}
# levels drawn anew for each pass, LSTMs, and an activation that has no form there: these act through torch
WITHOUT = ("iqn", "munchausen_iqn", "btr", "dueling_dqn", *RECURRENT)


def eager(network: Any, obs: np.ndarray, generator: torch.Generator) -> np.ndarray:
    draws = network.draw(generator, (len(obs),), "acting")
    with torch.inference_mode():
        return network.step(torch.from_numpy(obs), (), torch.zeros(0, dtype=torch.bool), draws)[0].numpy()


def both(network: Any, obs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """What NumPy and torch say, each from a generator of its own with one seed, which both leave at the same place."""
    mine, theirs = torch.Generator().manual_seed(5), torch.Generator().manual_seed(5)
    forward = numpy_forward(network, obs, (), mine)
    assert forward is not None
    said = forward(obs, (), np.zeros(len(obs), bool))[0], eager(network, obs, theirs)
    assert torch.equal(mine.get_state(), theirs.get_state())
    return said


def observations(num_envs: int, dim: int = 4) -> np.ndarray:
    return np.random.default_rng(1).normal(size=(num_envs, dim)).astype(np.float32)


@pytest.mark.parametrize("num_envs", [1, 3])
@pytest.mark.parametrize("algo", [algo for algo in ROWS if algo not in WITHOUT])
def test_every_row_acts_as_its_network_says(algo: str, num_envs: int) -> None:
    network, learner, replay, *_ = parts_of(algo)
    obs = observations(num_envs)
    for step in range(3):  # and goes on doing so while it learns
        mine, theirs = both(network, obs)
        np.testing.assert_allclose(mine, theirs, **CLOSE)
        assert mine.dtype == theirs.dtype and mine.shape == theirs.shape
        learner.update(replay.sample(16), global_step=step + 1)


@pytest.mark.parametrize("algo", WITHOUT)
def test_rows_without_such_a_pass_act_through_torch(algo: str) -> None:
    assert numpy_pass(parts_of(algo).network, 1) is None


@pytest.mark.parametrize("head", ["scalar", "categorical", "quantile"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"dueling": True, "layer_norm": True},
        {"noisy": True},
        {"dueling": True, "noisy": True, "layer_norm": True, "activation": "tanh"},
    ],
    ids=str,
)
@pytest.mark.parametrize("hidden", [(), (8,), (8, 6, 5)])
def test_every_head_dueling_noisy_and_depth(head: Any, options: Any, hidden: tuple[int, ...]) -> None:
    network = build_q_network((4,), 3, hidden_sizes=hidden, head=head, num_quantiles=5, num_atoms=5, v_min=-2.0, v_max=2.0, **options)
    np.testing.assert_allclose(*both(network, observations(2)), **CLOSE)


def test_one_quantile_keeps_its_meaning() -> None:
    network = build_q_network((4,), 3, hidden_sizes=(8,), head="quantile", num_quantiles=1, dueling=True)
    np.testing.assert_allclose(*both(network, observations(2)), **CLOSE)


@pytest.mark.parametrize("activation", ["relu", "tanh"])
@pytest.mark.parametrize(
    "action",
    [{"kind": "discrete", "n": 3}, {"kind": "box", "shape": [1], "low": [-1.0], "high": [1.0]}],
    ids=lambda a: a["kind"],
)
def test_policies(action: Any, activation: Any) -> None:
    network = MLPActorCritic(4, make_distribution(action), (8, 8), activation, log_std_init=-0.5)
    np.testing.assert_allclose(*both(network, observations(3)), **CLOSE)


def test_integers_become_floats() -> None:
    network = build_q_network((4,), 3, hidden_sizes=(8,))
    obs = np.arange(8, dtype=np.uint8).reshape(2, 4)
    np.testing.assert_allclose(*both(network, obs), **CLOSE)
    assert obs.dtype == np.uint8 and obs.tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]  # nobody wrote to them


def test_parameters_that_were_moved_are_found_again() -> None:
    # A pass that kept reading where they were would act by a network that no longer learns.
    network, obs = build_q_network((4,), 2, hidden_sizes=(8,)), observations(1)
    forward = numpy_forward(network, obs, (), torch.Generator())
    assert forward is not None
    flat = flatten_parameters(network)
    with torch.no_grad():
        flat.mul_(2)
    np.testing.assert_allclose(forward(obs, (), np.zeros(1, bool))[0], eager(network, obs, torch.Generator()), **CLOSE)


class Shifted(QNetwork):
    def forward(self, obs: Tensor, *draws: Any) -> Tensor:
        return super().forward(obs, *draws) + 1


class Loud(ScalarHead):
    def q_values(self, out: Tensor) -> Tensor:
        return 10 * out


class Square(MLPTorso):
    def forward(self, obs: Tensor) -> Tensor:
        return super().forward(obs) ** 2


@pytest.mark.parametrize(
    "network",
    [
        Shifted(MLPTorso(4, (8,)), ScalarHead(8, 2)),
        QNetwork(MLPTorso(4, (8,)), Loud(8, 2)),
        QNetwork(Square(4, (8,)), ScalarHead(8, 2)),
        QNetwork(nn.Sequential(nn.Linear(4, 8)), ScalarHead(8, 2)),
        nn.Linear(4, 2),
    ],
    ids=["network", "head", "torso", "other torso", "other network"],
)
def test_what_a_user_changed_acts_through_torch(network: Any) -> None:
    assert numpy_pass(network, 1) is None


def test_large_products_are_left_to_torch() -> None:
    network = build_q_network((4,), 2, hidden_sizes=(64, 64))
    assert numpy_pass(network, LARGEST // 64**2) is not None
    assert numpy_pass(network, LARGEST // 64**2 + 1) is None


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("head", ["scalar", "categorical", "quantile"])
def test_a_network_that_has_diverged_acts_without_a_warning(head: Any) -> None:
    # The run says so itself, in one line, when it looks at the loss.
    network, obs = build_q_network((4,), 2, hidden_sizes=(8,), head=head, dueling=True), observations(2)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.fill_(torch.nan)
    assert np.isnan(both(network, obs)[0]).all()

"""Layers with layer norm and ReLU over kept buffers: pass and gradient are autograd's, and follow the parameters."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from rl_training.algorithms import PQN, RecurrentPQN
from rl_training.models import LSTMQNetwork, MLPQNetwork
from rl_training.models.build import build_q_network
from rl_training.models.flat import flatten_parameters
from rl_training.speed.hand_gradients import HandReturnsGradient, use_hand_gradients_of_returns
from rl_training.speed.normed_stack import MOST_SIZES, NormedReturnsGradient, Stacks, is_normed_stack, normed_forward, use_normed_stack
from rl_training.types import Batch

pytestmark = pytest.mark.numeric


def network(hidden: tuple[int, ...] = (8, 6), obs_dim: int = 4) -> MLPQNetwork:
    """With gains and biases of its norms that are neither 1 nor 0, which would hide one left out."""
    torch.manual_seed(0)
    made = MLPQNetwork(obs_dim, 3, hidden, layer_norm=True)
    for module in made.modules():
        if isinstance(module, torch.nn.LayerNorm):
            torch.nn.init.normal_(module.weight)
            torch.nn.init.normal_(module.bias)
    return made


def minibatch(rows: int = 7, obs_dim: int = 4) -> Batch:
    return {"obs": torch.randn(rows, obs_dim), "actions": torch.randint(3, (rows,)), "returns": torch.randn(rows)}


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("hidden", [(8,), (8, 6), (8, 6, 5)])
@pytest.mark.parametrize("obs_dim", [4, 12], ids=["narrow", "wide"])  # the first product's gradient has two forms
def test_the_gradient_is_autograds(hidden: tuple[int, ...], obs_dim: int) -> None:
    learner = PQN(network(hidden, obs_dim), 1e-3, 0.9)
    use_normed_stack(learner)
    assert isinstance(learner.gradient, NormedReturnsGradient)
    for rows in (7, 3, 7):  # buffers of one size, of another, and the first ones again
        batch = minibatch(rows, obs_dim)
        torch.testing.assert_close(learner.gradient(batch), learner.autograd(batch))


def test_an_update_is_that_of_autograd_and_what_it_reports_stays() -> None:
    made = []
    for by_hand in (True, False):
        torch.manual_seed(1)
        learner = PQN(network(), 1e-2, 0.9, max_grad_norm=0.5, adam_eps=1e-2)
        if by_hand:
            use_normed_stack(learner)
        torch.manual_seed(2)
        results = [learner.update(minibatch(), global_step=step) for step in range(10)]
        reported = [{name: float(value) for name, value in result.metrics.items()} for result in results]  # read when all are made
        made.append((torch.cat([p.detach().flatten() for p in learner.parameters]), reported))
    # Adam's eps = lr: each of ten steps is off by no more than its gradient is, about 1e-7.
    torch.testing.assert_close(made[0][0], made[1][0], rtol=1e-4, atol=1e-5)
    for mine, autograds in zip(made[0][1], made[1][1], strict=True):
        assert mine == pytest.approx(autograds, rel=1e-4, abs=1e-5)


def test_a_masked_minibatch_is_learned_from_as_before() -> None:
    learner = PQN(network(), 1e-3, 0.9)
    use_normed_stack(learner)
    batch = {**minibatch(), "mask": torch.tensor([1.0, 1, 0, 1, 0, 1, 1])}
    torch.testing.assert_close(learner.gradient(batch), learner.autograd(batch))


def test_an_action_that_there_is_not_is_refused() -> None:
    learner = PQN(network(), 1e-3, 0.9)
    use_normed_stack(learner)
    for action in (3, -1, 1 << 40):
        with pytest.raises(IndexError, match="action"):
            learner.gradient({**minibatch(2), "actions": torch.tensor([0, action])})


def test_acting_follows_the_network_and_where_its_parameters_lie() -> None:
    made, generator = network((16, 8)), torch.Generator()
    obs = np.random.default_rng(0).normal(size=(5, 4)).astype(np.float32)
    forward = normed_forward(made, obs, (), generator)
    assert forward is not None
    first, state = forward(obs, (), np.zeros(5, bool))
    kept = first.copy()

    def expected() -> np.ndarray:
        with torch.no_grad():
            q_values: np.ndarray = made.q_values(torch.from_numpy(obs)).numpy()
        return q_values

    assert state == () and first.dtype == np.float32
    np.testing.assert_allclose(first, expected(), rtol=1e-4, atol=1e-6)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.mul_(1.5)
    np.testing.assert_allclose(forward(obs, (), np.zeros(5, bool))[0], expected(), rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(first, kept)  # what was given out is not written to again
    flatten_parameters(made)  # moves them
    with torch.no_grad():
        next(made.parameters()).normal_()
    np.testing.assert_allclose(forward(obs, (), np.zeros(5, bool))[0], expected(), rtol=1e-4, atol=1e-6)
    whole = np.arange(20).reshape(5, 4)  # integers become floats
    with torch.no_grad():
        said = made.q_values(torch.from_numpy(whole)).numpy()
    np.testing.assert_allclose(forward(whole, (), np.zeros(5, bool))[0], said, rtol=1e-4, atol=1e-6)


def test_a_diverged_network_shows() -> None:
    """NaN, in a parameter or an observation, comes out as NaN."""
    made = network()
    forward = normed_forward(made, np.zeros((2, 4), np.float32), (), torch.Generator())
    assert forward is not None
    obs = np.array([[0, 0, np.nan, 0], [1, 2, 3, 4]], np.float32)
    q_values = forward(obs, (), np.zeros(2, bool))[0]
    assert np.isnan(q_values[0]).all() and np.isfinite(q_values[1]).all()


def test_buffers_are_kept_for_a_few_sizes_only() -> None:
    stacks = Stacks(network())
    assert stacks(3) is stacks(3)
    for rows in range(4, 4 + 3 * MOST_SIZES):
        stacks(rows)
        assert len(stacks._made) <= MOST_SIZES


@pytest.mark.parametrize(
    "options", [{}, {"layer_norm": True, "dueling": True}, {"layer_norm": True, "noisy": True}, {"layer_norm": True, "activation": "tanh"}]
)
def test_only_a_plain_stack_with_norms_is_one(options: Any) -> None:
    learner = PQN(MLPQNetwork(4, 3, (8, 6), **options), 1e-3, 0.9)
    use_hand_gradients_of_returns(learner)
    use_normed_stack(learner)
    assert type(learner.gradient) is HandReturnsGradient
    assert normed_forward(learner.q_network, np.zeros((2, 4), np.float32), (), torch.Generator()) is None


def test_only_what_is_ours_is_one() -> None:
    class Own(MLPQNetwork):
        def q_values(self, obs: Any, draws: Any = None) -> Any:
            return 2 * super().q_values(obs)

    assert is_normed_stack(network())
    assert not is_normed_stack(network().bfloat16())
    assert not is_normed_stack(Own(4, 3, (8,), layer_norm=True))
    assert not is_normed_stack(build_q_network((4,), 3, hidden_sizes=(8,), head="quantile", num_quantiles=5, layer_norm=True))
    recurrent = RecurrentPQN(LSTMQNetwork((2,), 2, 4, (), (), 5, 1), 1e-3, 0.9)
    use_normed_stack(recurrent)
    assert recurrent.gradient == recurrent.autograd

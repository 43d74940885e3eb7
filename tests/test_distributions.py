"""Policies: densities against torch.distributions, gradients against autograd, draws against the probabilities, bounds."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import distributions as reference

from rl_training.envs.spaces import describe_action_space
from rl_training.models import Categorical, DiagonalGaussian, MultiCategorical, make_distribution
from rl_training.speed import hand_policy

pytestmark = pytest.mark.numeric

GAUSSIAN = DiagonalGaussian(np.array([-1.0, -np.inf]), np.array([0.5, np.inf]), (2,))
CASES: dict[str, Any] = {"categorical": Categorical(4), "multi": MultiCategorical([3, 2]), "gaussian": GAUSSIAN}


def of_torch(name: str, outputs: torch.Tensor) -> Any:
    if name == "categorical":
        return reference.Categorical(logits=outputs)
    return reference.Independent(reference.Normal(outputs[..., :2], outputs[..., 2:].exp()), 1)


@pytest.mark.parametrize("shape", [(5,), (3, 5)])
@pytest.mark.parametrize("name", CASES)
def test_log_prob_entropy_and_their_gradients(name: str, shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    distribution = CASES[name]
    outputs = torch.randn(*shape, distribution.num_outputs, requires_grad=True)
    actions = torch.from_numpy(distribution.sample(outputs.detach().numpy(), np.random.default_rng(0)))
    assert actions.shape == (*shape, *distribution.action_shape) and actions.dtype == distribution.action_dtype
    found = distribution.evaluate(outputs, actions)
    if name == "multi":
        parts = [reference.Categorical(logits=outputs[..., :3]), reference.Categorical(logits=outputs[..., 3:])]
        log_prob = sum(part.log_prob(actions[..., k]) for k, part in enumerate(parts))
        entropy = sum(part.entropy() for part in parts)
    else:
        log_prob, entropy = of_torch(name, outputs).log_prob(actions), of_torch(name, outputs).entropy()
    torch.testing.assert_close(found.log_prob, log_prob)
    torch.testing.assert_close(found.entropy, entropy)
    on_log_prob, on_entropy = torch.randn(shape), torch.randn(shape)
    (expected,) = torch.autograd.grad((log_prob * on_log_prob + entropy * on_entropy).sum(), outputs, retain_graph=True)
    by_hand = hand_policy.evaluate(distribution, outputs.detach(), actions)
    torch.testing.assert_close((by_hand.log_prob, by_hand.entropy), (log_prob.detach(), entropy.detach()))
    torch.testing.assert_close(by_hand.pullback(on_log_prob, on_entropy), expected)
    for weight in (0.0, -0.3):  # the same weight for every step
        (expected,) = torch.autograd.grad((log_prob * on_log_prob + entropy * weight).sum(), outputs, retain_graph=True)
        torch.testing.assert_close(by_hand.pullback(on_log_prob, weight), expected)


def test_categorical_draws_follow_the_probabilities() -> None:
    outputs = np.log(np.array([0.1, 0.2, 0.0001, 0.6999], np.float32)) + 3
    draws = Categorical(4).sample(np.tile(outputs, (20_000, 1)), np.random.default_rng(0))
    shares = np.bincount(draws, minlength=4) / 20_000
    np.testing.assert_allclose(shares, [0.1, 0.2, 0.0001, 0.6999], atol=0.01)  # 3 standard errors of a share of 0.7
    assert CASES["multi"].sample(np.tile(np.float32([9, 0, 0, 0, 9]), (50, 1)), np.random.default_rng(0)).mean(0).tolist() == [0, 1]


def test_an_exponential_that_rounds_to_zero_is_the_action_taken_and_nothing_is_divided_by_it() -> None:
    class Zero:
        def standard_exponential(self, shape: tuple[int, ...], dtype: type) -> np.ndarray:
            return np.array([[1, 0, 1]], dtype)

    with np.errstate(all="raise"):
        assert Categorical(3).sample(np.zeros((1, 3), np.float32), Zero()).tolist() == [1]  # type: ignore[arg-type]


def test_gaussian_draws_have_the_mean_and_deviation() -> None:
    outputs = np.tile(np.float32([1.0, -2.0, np.log(0.5), np.log(3.0)]), (20_000, 1))
    draws = GAUSSIAN.sample(outputs, np.random.default_rng(0))
    assert draws.dtype == np.float32
    np.testing.assert_allclose(draws.mean(0), [1.0, -2.0], atol=0.07)
    np.testing.assert_allclose(draws.std(0), [0.5, 3.0], rtol=0.03)


def test_the_environment_gets_actions_within_its_bounds_and_the_learner_what_was_drawn() -> None:
    drawn = np.float32([[3.0, 40.0], [-7.0, -40.0]])
    np.testing.assert_array_equal(GAUSSIAN.to_env(drawn), np.float32([[0.5, 40.0], [-1.0, -40.0]]))
    np.testing.assert_array_equal(drawn, np.float32([[3.0, 40.0], [-7.0, -40.0]]))
    np.testing.assert_array_equal(GAUSSIAN.mode(np.float32([[1, 2, 8, 9]])), np.float32([[1, 2]]))


def test_a_row_is_described_in_words() -> None:
    # softmax(0, log 3) = 1/4, 3/4
    logits = np.float32([0, np.log(3)])
    assert Categorical(2).describe(logits)["probabilities"] == pytest.approx([0.25, 0.75])
    two = MultiCategorical([2, 2]).describe(np.concatenate([logits, logits[::-1]]))["probabilities"]
    assert two[0] == pytest.approx([0.25, 0.75]) and two[1] == pytest.approx([0.75, 0.25])
    assert GAUSSIAN.describe(np.float32([1, 2, 0, np.log(2)])) == {"mean": [1, 2], "std": pytest.approx([1, 2])}


@pytest.mark.parametrize(
    "space",
    [
        gym.spaces.Discrete(3),
        gym.spaces.MultiDiscrete([3, 2]),
        gym.spaces.MultiDiscrete([[3, 2], [2, 2]], start=[[0, 1], [5, 0]]),
        gym.spaces.Box(-2.0, 2.0, (1,)),
        gym.spaces.Box(-1.0, np.inf, (2, 3)),
    ],
)
def test_what_is_drawn_lies_in_the_space(space: Any) -> None:
    distribution = make_distribution(describe_action_space(space))
    rng = np.random.default_rng(0)
    outputs = rng.normal(size=(7, distribution.num_outputs)).astype(np.float32)
    for actions in (distribution.sample(outputs, rng), distribution.mode(outputs)):
        assert actions.shape == (7, *distribution.action_shape)
        given = distribution.to_env(actions)
        assert len(given) == 7 and all(space.contains(action) for action in given)


def test_a_space_nobody_acts_in_is_named() -> None:
    with pytest.raises(ValueError, match="MultiBinary"):
        make_distribution(describe_action_space(gym.spaces.MultiBinary(3)))

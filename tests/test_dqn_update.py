"""DQN's update against numbers worked out by hand, and the parts of the learner that every value-based algorithm shares."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

from learners import batch_of, one_hot, parameters_of, set_outputs
from rl_training.algorithms import DQN, dqn_loss
from rl_training.algorithms.adam import FlatAdam
from rl_training.models import MLPQNetwork

pytestmark = pytest.mark.numeric

# Two states as one-hot observations, two actions. In state 1 the networks disagree on the best action:
#             online          target
#   state 0   1.0   2.0       0.0   0.0
#   state 1   5.0   3.0       4.0   6.0
ONLINE, TARGET = [[1.0, 2.0], [5.0, 3.0]], [[0.0, 0.0], [4.0, 6.0]]


def table_dqn(*, gamma: float = 0.5, **options: Any) -> DQN:
    algorithm = DQN(MLPQNetwork(2, 2, ()), learning_rate=0.0, gamma=gamma, target_update_interval=10**9, **options)
    set_outputs(algorithm.q_network, ONLINE)
    set_outputs(algorithm.target_network, TARGET)
    return algorithm


def step_01(rows: int = 1, **fields: Any) -> dict[str, Tensor]:
    """`rows` transitions from state 0 by action 0, reward 1, to state 1."""
    made = {"actions": [0] * rows, "rewards": [1.0] * rows, "dones": [0.0] * rows}
    obs, next_obs = one_hot(*[0] * rows, size=2), one_hot(*[1] * rows, size=2)
    return batch_of(rows, **{**made, "obs": obs, "next_obs": next_obs, **fields})


def target_of(algorithm: DQN, batch: dict[str, Tensor]) -> float:
    return float(algorithm.update(batch, global_step=1).metrics["target_mean"])


def test_target_is_reward_plus_the_discounted_best_value_of_the_target_network() -> None:
    # y = 1 + .5 · max(4, 6) = 4
    assert target_of(table_dqn(), step_01()) == pytest.approx(4.0)


def test_double_q_lets_the_online_network_select() -> None:
    # argmax of (5, 3) is action 0, which the target network values at 4: y = 1 + .5 · 4 = 3
    assert target_of(table_dqn(double_q=True), step_01()) == pytest.approx(3.0)


def test_a_terminated_transition_does_not_bootstrap() -> None:
    assert target_of(table_dqn(), step_01(dones=[1.0])) == pytest.approx(1.0)  # y = r


def test_a_truncated_transition_bootstraps() -> None:
    # Truncation is no field of a batch: `dones` is 0, and next_obs the true final observation. y = 4 as above.
    assert target_of(table_dqn(), step_01(dones=[0.0])) == pytest.approx(4.0)


def test_the_batch_s_own_discounts_win() -> None:
    # A three-step return of 1 + .5 + .25 with Γ = .5³: y = 1.75 + .125 · 6 = 2.5. dones=1 must not matter beside `discounts`.
    assert target_of(table_dqn(), step_01(rewards=[1.75], discounts=[0.125], dones=[1.0])) == pytest.approx(2.5)


def test_metrics_are_of_the_chosen_actions() -> None:
    # Q(0, 0) = 1, y = 4, δ = 3: Huber 3 − ½ = 2.5
    metrics = table_dqn().update(step_01(), global_step=1).metrics
    assert {name: pytest.approx(float(value)) for name, value in metrics.items()} == {
        "loss": 2.5,
        "q_value_mean": 1.0,
        "target_mean": 4.0,
        "td_error_mean": 3.0,
    }


def test_last_td_errors_are_per_sample() -> None:
    # rewards 1 and −2 give y = 4 and 1, δ = 3 and 0
    algorithm = table_dqn()
    with pytest.raises(RuntimeError, match="no update"):
        _ = algorithm.last_td_errors
    algorithm.update(step_01(2, rewards=[1.0, -2.0]), global_step=1)
    torch.testing.assert_close(algorithm.last_td_errors, torch.tensor([3.0, 0.0]))
    torch.testing.assert_close(algorithm.last_priorities, algorithm.last_td_errors)


@pytest.mark.parametrize(
    ("reward", "loss", "slope"),
    [
        (-1.5, 0.125, -0.5),  # y = 1.5, δ = .5, in the square: ½ · .25, dL/dQ = −δ
        (1.0, 2.5, -1.0),  # y = 4, δ = 3, in the line: 3 − ½, dL/dQ = −1
    ],
)
def test_importance_weights_act_in_both_branches_of_huber(reward: float, loss: float, slope: float) -> None:
    algorithm = table_dqn()
    batch = step_01(2, rewards=[reward, reward], weights=[0.5, 2.0])
    value = algorithm.evaluate_loss(batch)[0]
    # mean(w · L) = L · (.5 + 2)/2, and so is the gradient of Q(0, 0) = w[0, 0] + b[0]
    assert float(value.detach()) == pytest.approx(1.25 * loss)
    grad = algorithm.gradient(batch).parameters[1]  # weight, bias
    torch.testing.assert_close(grad, torch.tensor([1.25 * slope, 0.0]))


def test_the_squared_error_has_no_line() -> None:
    # As before, but L = δ² and dL/dQ = −2δ: with δ = 3, 9 and −6, times the mean weight 1.25.
    algorithm = table_dqn(loss="mse")
    batch = step_01(2, weights=[0.5, 2.0])
    assert float(algorithm.evaluate_loss(batch)[0].detach()) == pytest.approx(1.25 * 9.0)
    torch.testing.assert_close(algorithm.gradient(batch).parameters[1], torch.tensor([1.25 * -6.0, 0.0]))
    with pytest.raises(ValueError, match="loss must be one of huber, mse"):
        table_dqn(loss="mae")


def test_dqn_loss_is_the_pure_form() -> None:
    # δ = 4 − 1 = 3 and 0 − 3 = −3 → Huber 2.5 each; weights 1 and .5: mean 1.875
    q_values = torch.tensor([[1.0, 2.0], [5.0, 3.0]], requires_grad=True)
    batch = {"q_values": q_values, "actions": torch.tensor([0, 1]), "target_q_values": torch.tensor([4.0, 0.0])}
    out = dqn_loss({**batch, "weights": torch.tensor([1.0, 0.5])})
    assert set(out) == {"loss", "q_value_mean", "target_mean", "td_error_mean"}
    assert [float(out[name].detach()) for name in ("loss", "q_value_mean", "target_mean", "td_error_mean")] == [1.875, 2.0, 2.0, 3.0]
    assert float(dqn_loss(batch)["loss"].detach()) == 2.5
    # dL/dQ = w · (∓1) / 2, for the chosen actions only
    torch.testing.assert_close(torch.autograd.grad(out["loss"], q_values)[0], torch.tensor([[-0.5, 0.0], [0.0, 0.25]]))


def test_no_gradient_flows_into_the_target() -> None:
    algorithm = table_dqn(double_q=True)
    before = parameters_of(algorithm.target_network)
    grads, _, aligned = algorithm.gradient(step_01())
    assert not aligned.bootstrap.outputs.requires_grad
    assert grads[0] is not None
    # State 1 is only bootstrapped from: nothing may reach the weights of its observation.
    assert float(grads[0][:, 1].abs().sum()) == 0
    assert torch.equal(before, parameters_of(algorithm.target_network))


# Optimizer


@pytest.mark.parametrize(("norm", "expected"), [(1.0, [0.6, 0.8]), (10.0, [3.0, 4.0])])
def test_clipping_scales_the_whole_gradient(norm: float, expected: list[float]) -> None:
    # ‖(3, 4)‖ = 5: to 1 by 1/5; below 10 it stays
    optimizer = FlatAdam(torch.zeros(2), [(1,), (1,)])
    optimizer.step([torch.tensor([3.0]), torch.tensor([4.0])], 1e-3, norm)
    torch.testing.assert_close(optimizer.grad, torch.tensor(expected), rtol=1e-5, atol=0)


def test_a_learning_rate_may_be_a_schedule_of_the_environment_step() -> None:
    """Adam's first step is lr · g/(|g| + ε) ≈ lr in each parameter with a gradient: with lr(step) = step/1000 it is seen."""
    algorithm = table_dqn()
    algorithm.learning_rate = lambda step: step / 1000
    before = algorithm.q_network.head.advantage.layers[0].bias.detach().clone()
    algorithm.update(step_01(), global_step=20)
    moved = algorithm.q_network.head.advantage.layers[0].bias.detach() - before
    torch.testing.assert_close(moved, torch.tensor([0.02, 0.0]), rtol=1e-4, atol=1e-7)


# Target network


def synced_at(steps: list[int], *, tau: float = 1.0, interval: int = 500) -> list[float]:
    """The target's first parameter after updates at these steps, the online network's being held at 1 and the target's starting at 0."""
    algorithm = DQN(MLPQNetwork(2, 2, ()), 0.0, 0.5, interval, tau=tau)
    with torch.no_grad():
        for p in algorithm.q_network.parameters():
            p.fill_(1.0)
        for p in algorithm.target_network.parameters():
            p.zero_()
    seen = []
    for step in steps:
        algorithm.update(step_01(), global_step=step)
        seen.append(float(next(algorithm.target_network.parameters()).detach().flatten()[0]))
    return seen


def test_the_target_is_copied_when_a_multiple_is_crossed() -> None:
    assert synced_at([8, 496, 499]) == [0, 0, 0]
    assert synced_at([496, 504]) == [0, 1]  # 8 environments never stand on 500 itself
    assert synced_at([500]) == [1]
    assert synced_at([499, 1001]) == [0, 1]


def test_a_soft_target_moves_once_per_multiple_crossed() -> None:
    # τ = .25: 0 → .25 at one crossing, 1 − .75² = .4375 at two
    assert synced_at([499, 500], tau=0.25) == [0, 0.25]
    assert synced_at([499, 1001], tau=0.25) == [0, 0.4375]
    assert synced_at([500, 501, 999, 1000], tau=0.25) == [0.25, 0.25, 0.25, 0.4375]


def test_sync_target_copies_and_does_not_share() -> None:
    algorithm = DQN(MLPQNetwork(4, 2, (8,)), 1e-2, 0.9, 10**9)
    algorithm.update(batch_of(), global_step=1)
    assert not torch.equal(parameters_of(algorithm.q_network), parameters_of(algorithm.target_network))
    algorithm.sync_target()
    assert torch.equal(parameters_of(algorithm.q_network), parameters_of(algorithm.target_network))
    algorithm.update(batch_of(), global_step=2)
    assert not torch.equal(parameters_of(algorithm.q_network), parameters_of(algorithm.target_network))


# State and randomness


@pytest.mark.parametrize("noisy", [False, True])
def test_a_saved_learner_goes_on_bit_for_bit(noisy: bool) -> None:
    def make(seed: int) -> DQN:
        torch.manual_seed(seed)
        network = MLPQNetwork(4, 2, (16, 16), dueling=True, noisy=noisy)
        return DQN(network, 1e-2, 0.9, 3, double_q=True, tau=0.5, max_grad_norm=1.0, seed=seed)

    first, second = make(0), make(1)
    for step in range(5):
        first.update(batch_of(seed=step), global_step=step)
    state = copy.deepcopy(first.state_dict())
    second.load_state_dict(state)
    for step in range(5, 10):
        results = [algorithm.update(batch_of(seed=step), global_step=step) for algorithm in (first, second)]
        assert float(results[0].metrics["loss"]) == float(results[1].metrics["loss"])
    assert torch.equal(parameters_of(first.q_network), parameters_of(second.q_network))
    assert torch.equal(parameters_of(first.target_network), parameters_of(second.target_network))
    # What was saved did not change under the learner that went on.
    assert not torch.equal(state["q_network"]["torso.layers.0.weight"], first.q_network.state_dict()["torso.layers.0.weight"])


def test_noise_is_drawn_anew_for_each_update_and_for_the_target_on_its_own() -> None:
    algorithm = DQN(MLPQNetwork(4, 2, (8,), noisy=True), 0.0, 0.9, 10**9)
    seen = []
    for network in (algorithm.q_network, algorithm.target_network):
        draw = network.draw

        def spy(*args: Any, draw: Any = draw) -> Any:
            seen.append(draw(*args))
            return seen[-1]

        network.draw = spy
    losses = {float(algorithm.update(batch_of(), global_step=i).metrics["loss"]) for i in range(3)}
    assert len(losses) == 3  # the same batch and weights: only the noise differs
    noise = torch.stack([draws.noise for draws in seen])
    assert noise.shape[0] == 6 and len({tuple(row.tolist()) for row in noise}) == 6


def test_updates_do_not_touch_the_global_generator() -> None:
    algorithm = DQN(MLPQNetwork(4, 2, (8,), noisy=True), 1e-3, 0.9, 1)
    before = torch.get_rng_state()
    algorithm.update(batch_of(), global_step=1)
    assert torch.equal(before, torch.get_rng_state())

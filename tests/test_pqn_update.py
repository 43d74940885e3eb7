"""PQN's returns and update against numbers worked out by hand; the recurrent form against acting step by step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from learners import one_hot, set_outputs
from rl_training.algorithms import PQN, RecurrentPQN
from rl_training.algorithms.rollouts import SequenceRolloutView, StepView
from rl_training.data import RolloutBuffer
from rl_training.data.storage import Field
from rl_training.models import LSTMQNetwork, MLPQNetwork, QNetwork
from rl_training.speed.hand_gradients import HandReturnsGradient, use_hand_gradients_of_returns

pytestmark = pytest.mark.numeric

# max_a Q of states 0 … 3 is 10·s, of action 0; action 1 is worth one less. γ = ½.
TABLE = [[0.0, -1.0], [10.0, 9.0], [20.0, 19.0], [30.0, 29.0]]
#   t      0        1        2            3        4             5
#   obs    0        1        2            0        1             2
#   r      1        2        3            4        5             6
#   next   1        2        3 truncated  1        2 terminated  3 (the rollout ends)
OBS, NEXT = [0, 1, 2, 0, 1, 2], [1, 2, 3, 1, 2, 3]
TRUNCATED, TERMINATED = 2, 4


def table() -> QNetwork:
    network = MLPQNetwork(4, 2, ())
    set_outputs(network, TABLE)
    return network


def rollout_of(next_masks: list[list[bool]] | None = None, masks: list[list[bool]] | None = None) -> RolloutBuffer:
    fields = ("action_masks", "next_action_masks") if masks is not None else ()
    rollout = RolloutBuffer(6, 1, (4,), extra=dict.fromkeys(fields, Field((2,), torch.bool)))
    for t, (state, following) in enumerate(zip(OBS, NEXT, strict=True)):
        extra = {} if masks is None or next_masks is None else {"action_masks": [masks[t]], "next_action_masks": [next_masks[t]]}
        rollout.add(
            obs=one_hot(state, size=4).numpy(),
            next_obs=one_hot(following, size=4).numpy(),
            actions=[1],
            rewards=[t + 1.0],
            terminated=[t == TERMINATED],
            truncated=[t == TRUNCATED],
            episode_starts=[t in (0, TRUNCATED + 1, TERMINATED + 1)],
            **extra,
        )
    return rollout


def returns_of(q_lambda: float, rollout: RolloutBuffer | None = None) -> list[float]:
    rollout = rollout_of() if rollout is None else rollout
    learner = PQN(table(), 1e-3, 0.5, q_lambda=q_lambda)
    found: list[float] = learner.returns(rollout, StepView(rollout))[:, 0].tolist()
    return found


def test_q_lambda_across_a_truncation_and_a_termination() -> None:
    # R_5 = 6 + ½·30 = 21 (the rollout's end);  R_4 = 5 (terminated);  R_3 = 4 + ½(½·10 + ½·5) = 7.75
    # R_2 = 3 + ½·30 = 18 (the time limit bootstraps from the true final observation, and R_3 is another episode's)
    # R_1 = 2 + ½(½·20 + ½·18) = 11.5;  R_0 = 1 + ½(½·10 + ½·11.5) = 6.375
    assert returns_of(0.5) == [6.375, 11.5, 18, 7.75, 5, 21]


def test_lambda_zero_is_one_step_and_lambda_one_the_rewards_until_the_end() -> None:
    assert returns_of(0.0) == [1 + 5, 2 + 10, 3 + 15, 4 + 5, 5, 6 + 15]  # r + ½·max Q(next)
    # R_2 = 18, R_1 = 2 + 9, R_0 = 1 + 5.5: three rewards and ⅛·30;  R_3 = 4 + ½·5
    assert returns_of(1.0) == [6.5, 11, 18, 6.5, 5, 21]


def test_the_maximum_is_over_what_is_allowed() -> None:
    """In state 1 (from step 0), at the time limit and at the rollout's end action 1 alone is allowed; after the termination nothing is."""
    both, one, none = [True, True], [False, True], [False, False]
    found = returns_of(0.0, rollout_of(next_masks=[one, both, one, both, none, one], masks=[both, one, both, both, both, both]))
    assert found == [1 + 4.5, 2 + 10, 3 + 14.5, 4 + 5, 5, 6 + 14.5]


def test_one_update_by_hand() -> None:
    # Q(0, 0) = 0 with R = 2 and Q(3, 1) = 29 with R = 28: δ = 2 and −1, loss = (½·4 + ½·1)/2 = 1.25.
    # RAdam's first step is the gradient itself: each entry moves by ½·lr·δ, weights and biases alike.
    network = table()
    learner = PQN(network, 0.1, 0.5, max_grad_norm=None)
    batch = {"obs": one_hot(0, 3, size=4), "actions": torch.tensor([0, 1]), "returns": torch.tensor([2.0, 28.0])}
    metrics = learner.update(batch, global_step=0).metrics
    expected = {"loss": 1.25, "q_value_mean": 14.5, "target_mean": 15.0, "td_error_mean": 1.5}
    assert {name: float(value) for name, value in metrics.items()} == pytest.approx(expected)
    bias = network.head.advantage.layers[0].bias.detach()
    torch.testing.assert_close(bias, torch.tensor([0.1, -0.05]))
    with torch.no_grad():
        moved = network(torch.eye(4)) - bias - torch.tensor(TABLE)
    torch.testing.assert_close(moved, torch.tensor([[0.1, 0.0], [0, 0], [0, 0], [0, -0.05]]), rtol=0, atol=1e-5)


def test_learning_a_rollout_is_epochs_of_its_minibatches() -> None:
    learner = PQN(table(), lambda step: 1e-3 * step, 0.5, update_epochs=3, minibatch_size=2)
    seen: list[dict[str, Tensor]] = []
    plain = learner.gradient

    def watched(batch: Any) -> Any:
        seen.append({name: value.clone() for name, value in batch.items()})
        return plain(batch)

    learner.gradient = watched
    result = learner.learn(rollout_of(), global_step=1)
    assert result.num_gradient_steps == len(seen) == 9 and int(learner.optimizer.steps) == 9
    wanted = sorted(zip(OBS, returns_of(learner.q_lambda), strict=True))  # targets are made once, by the network that acted
    for epoch in range(3):
        obs, returns = (torch.cat([batch[name] for batch in seen[3 * epoch :][:3]]) for name in ("obs", "returns"))
        steps = list(zip(obs.argmax(-1).tolist(), returns.tolist(), strict=True))
        assert sorted(steps) == wanted
    assert set(result.metrics) == {"loss", "q_value_mean", "target_mean", "td_error_mean"}
    assert not {"target_network", "replay"} & set(learner.state_dict())


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("options", [{}, {"layer_norm": True, "activation": "tanh", "dueling": True}], ids=["plain", "layer_norm"])
def test_the_gradient_by_hand_is_autograds(options: Any) -> None:
    torch.manual_seed(0)
    learner = PQN(MLPQNetwork(4, 3, (8, 6), **options), 1e-3, 0.9)
    batch = {"obs": torch.randn(7, 4), "actions": torch.randint(3, (7,)), "returns": torch.randn(7)}
    expected = learner.autograd(batch)
    use_hand_gradients_of_returns(learner)
    assert isinstance(learner.gradient, HandReturnsGradient)
    torch.testing.assert_close(learner.gradient(batch), expected)


def test_only_a_plain_head_has_a_gradient_by_hand() -> None:
    recurrent = RecurrentPQN(LSTMQNetwork((2,), 2, 4, (), (), 5, 1), 1e-3, 0.9)
    gelu = PQN(MLPQNetwork(4, 3, (8,), activation="gelu"), 1e-3, 0.9)
    for learner in (recurrent, gelu):
        use_hand_gradients_of_returns(learner)
        assert learner.gradient == learner.autograd


def test_recurrent_returns_are_those_of_acting_step_by_step() -> None:
    """max_a Q before and after every step from the state the network carried there, and the recursion written out."""
    torch.manual_seed(0)
    network, rng, envs, steps = LSTMQNetwork((2,), 3, 4, (6,), (), 5, 1), np.random.default_rng(0), 3, 14
    rollout = RolloutBuffer(steps, envs, (2,))
    state = tuple(torch.full_like(part, 0.3) for part in network.initial_state(envs))  # the rollout begins in the middle of episodes
    starts, obs = np.zeros(envs, bool), rng.normal(size=(envs, 2)).astype(np.float32)
    ahead = np.zeros((steps, envs))
    for t in range(steps):
        state = network.reset_state(state, torch.from_numpy(starts))
        with torch.no_grad():
            _, after = network.step(torch.from_numpy(obs), state, torch.zeros(envs))
            final = rng.normal(size=(envs, 2)).astype(np.float32)
            ahead[t] = network.step(torch.from_numpy(final), after, torch.zeros(envs))[0].amax(-1).numpy()
        ends = rng.random((2, envs)) < 0.12
        fields = {"obs": obs, "next_obs": final, "actions": rng.integers(3, size=envs), "rewards": rng.normal(size=envs)}
        ended = {"terminated": ends[0], "truncated": ends[1] & ~ends[0]}
        rollout.add(**fields, **ended, episode_starts=starts, initial_state=state)
        starts, state = ended["terminated"] | ended["truncated"], after
        obs = np.where(starts[:, None], rng.normal(size=(envs, 2)).astype(np.float32), final)
    terminated, truncated = rollout.field("terminated"), rollout.field("truncated")
    assert terminated[:-1].any() and truncated[:-1].any()
    expected = np.zeros((steps, envs))
    for t in reversed(range(steps)):
        for e in range(envs):
            reward, ends_here = float(rollout.field("rewards")[t, e]), truncated[t, e] or t == steps - 1
            follow = ahead[t, e] if ends_here else 0.4 * ahead[t, e] + 0.6 * expected[t + 1, e]
            expected[t, e] = reward + (0.0 if terminated[t, e] else 0.9 * follow)
    learner = RecurrentPQN(network, 1e-2, 0.9, q_lambda=0.6, minibatch_size=20)
    # float32 over unrolls of at most 14 steps, in another order of the products
    np.testing.assert_allclose(learner.returns(rollout, SequenceRolloutView(rollout)), expected, rtol=1e-4, atol=1e-5)
    before = network.core.lstm.weight_hh_l0.clone()
    result = learner.learn(rollout, global_step=0)
    assert result.num_gradient_steps >= 4 and not torch.equal(before, network.core.lstm.weight_hh_l0)
    assert float(result.metrics["target_mean"]) == pytest.approx(expected.mean(), rel=1e-4)  # padding does not count

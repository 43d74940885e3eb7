"""C51's update against numbers worked out by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from learners import batch_of, check_goes_on_bit_for_bit, check_sequences_are_rows, one_hot, set_outputs
from rl_training.algorithms import C51DQN
from rl_training.algorithms.backups import Bootstrap
from rl_training.algorithms.by_head import make_rule
from rl_training.algorithms.c51_dqn import CategoricalRule
from rl_training.algorithms.rules import TDLoss
from rl_training.models import MLPC51QNetwork

pytestmark = pytest.mark.numeric

# Atoms 0, 1, 2. Two states as one-hot observations, two actions; logits are logs of these distributions. In state 1 the networks
# disagree on the best mean:
#             online                              target
#   state 0   (¼, ½, ¼)       (¼, ½, ¼)           uniform
#   state 1   (0, 0, 1)→2     (1, 0, 0)→0         (½, 0, ½)→1   (0, ½, ½)→1.5
TINY = 1e-30  # a probability of 0, as a logit that float32 can hold
ONLINE = [[[0.25, 0.5, 0.25], [0.25, 0.5, 0.25]], [[TINY, TINY, 1.0], [1.0, TINY, TINY]]]
TARGET = [[[1.0, 1.0, 1.0], [1.0, 1.0, 1.0]], [[0.5, TINY, 0.5], [TINY, 0.5, 0.5]]]
LN2 = math.log(2)


def table_c51(**options: Any) -> C51DQN:
    algorithm = C51DQN(MLPC51QNetwork(2, 2, 3, 0.0, 2.0, ()), 0.0, 0.5, 10**9, num_atoms=3, v_min=0.0, v_max=2.0, **options)
    set_outputs(algorithm.q_network, torch.tensor(ONLINE).log())
    set_outputs(algorithm.target_network, torch.tensor(TARGET).log())
    return algorithm


def step_01(rows: int = 1, **fields: Any) -> dict[str, Tensor]:
    """`rows` transitions from state 0 by action 0, reward 1, to state 1."""
    made = {"actions": [0] * rows, "rewards": [1.0] * rows, "dones": [0.0] * rows}
    obs, next_obs = one_hot(*[0] * rows, size=2), one_hot(*[1] * rows, size=2)
    return batch_of(rows, **{**made, "obs": obs, "next_obs": next_obs, **fields})


def projected(algorithm: C51DQN, batch: dict[str, Tensor]) -> list[float]:
    aligned = algorithm.align(batch)
    return algorithm.rule.target(aligned.bootstrap, aligned.rewards, aligned.discounts)[0].tolist()


def test_the_whole_update_by_hand() -> None:
    # The target network prefers action 1, (0, ½, ½) on 0, 1, 2, moved to 1, 1.5, 2: mass ½ at 1.5 is shared by atoms 1 and 2.
    # m = (0, ¼, ¾), mean 1.75; p = (¼, ½, ¼), mean 1.
    #   loss = −¼ ln ½ − ¾ ln ¼ = 1.75 ln 2
    #   KL = loss − H(m), H(m) = ¼ ln 4 + ¾ ln(4/3)
    algorithm = table_c51()
    assert projected(algorithm, step_01()) == pytest.approx([0.0, 0.25, 0.75])
    result = algorithm.update(step_01(), global_step=1)
    assert {name: float(value) for name, value in result.metrics.items()} == pytest.approx(
        {"loss": 1.75 * LN2, "q_value_mean": 1.0, "target_mean": 1.75, "td_error_mean": 0.75, "clipped_share": 0.0}
    )
    entropy = 0.25 * math.log(4) + 0.75 * math.log(4 / 3)
    assert algorithm.last_priorities.tolist() == pytest.approx([1.75 * LN2 - entropy])
    assert algorithm.last_td_errors.tolist() == pytest.approx([0.75])


def test_double_q_lets_the_online_network_select() -> None:
    # Online means in state 1 are 2 and 0: action 0, (½, 0, ½) on 0, 1, 2 → at 1 and 2
    assert projected(table_c51(double_q=True), step_01()) == pytest.approx([0.0, 0.5, 0.5])


def test_after_a_termination_all_mass_is_at_the_reward() -> None:
    assert projected(table_c51(), step_01(dones=[1.0])) == pytest.approx([0.0, 1.0, 0.0])
    assert projected(table_c51(), step_01(dones=[1.0], rewards=[0.25])) == pytest.approx([0.75, 0.25, 0.0])


def test_the_batch_s_own_discounts_win() -> None:
    # Γ = .25 moves (0, ½, ½) to 1.25 and 1.5: atom 1 gets ½·¾ + ½·½ = .625; dones must not matter beside `discounts`
    assert projected(table_c51(), step_01(discounts=[0.25], dones=[1.0])) == pytest.approx([0.0, 0.625, 0.375])


def test_importance_weights_scale_each_sample_s_loss_and_gradient() -> None:
    algorithm = table_c51()
    loss = algorithm.evaluate_loss(step_01(2, weights=[0.5, 2.0]))[0]
    assert float(loss.detach()) == pytest.approx(1.25 * 1.75 * LN2)
    grad = algorithm.gradient(step_01(2, weights=[0.5, 2.0])).parameters[1]  # weight, bias
    # d/dlogits = p − m = (¼, ¼, −½), for the chosen action only
    torch.testing.assert_close(grad, 1.25 * torch.tensor([0.25, 0.25, -0.5, 0.0, 0.0, 0.0]))


def test_the_share_that_leaves_the_support_is_reported() -> None:
    # Reward 2, γ = .5: atoms 1 and 2 move to 2.5 and 3, beyond v_max = 2: all of (0, ½, ½). Reward 1.25: to 1.75 and 2.25: half.
    for reward, share in ((2.0, 1.0), (1.25, 0.5), (1.0, 0.0), (-2.0, 1.0)):
        metrics = table_c51().update(step_01(rewards=[reward]), global_step=1).metrics
        assert float(metrics["clipped_share"]) == pytest.approx(share)


def test_the_priority_falls_to_0_where_the_prediction_is_right() -> None:
    """The cross-entropy does not: it falls to the target's entropy."""
    rule = CategoricalRule(num_atoms=3, v_min=0.0, v_max=2.0)
    target = torch.tensor([[0.2, 0.3, 0.5]])
    out = TDLoss(rule, target.log(), target)
    assert float(out.priority) == pytest.approx(0.0, abs=1e-6) and float(out.priority) >= 0
    assert float(out.td_error) == pytest.approx(0.0, abs=1e-6)
    assert float(out.loss) > 0.5


def test_the_rule_on_sequences_is_the_rule_on_rows() -> None:
    check_sequences_are_rows(CategoricalRule(num_atoms=5, v_min=-1.0, v_max=3.0), outputs=5, next_outputs=5)


def test_the_mean_is_kept_where_nothing_is_clipped() -> None:
    """E[ΦTZ] = R + Γ·E[Z]: what makes C51's greedy policy DQN's on the support."""
    g = torch.Generator().manual_seed(0)
    rule = CategoricalRule(num_atoms=51, v_min=-10.0, v_max=10.0)
    bootstrap = torch.randn(64, 51, generator=g)
    rewards, discounts = 2 * torch.rand(64, generator=g) - 1, 0.9 * torch.rand(64, generator=g)
    mean = torch.softmax(bootstrap, -1) @ rule.support
    target = rule.target(Bootstrap(bootstrap), rewards, discounts)
    assert float(rule.clipped_share(Bootstrap(bootstrap), rewards, discounts).max()) == 0
    torch.testing.assert_close(target @ rule.support, rewards + discounts * mean, atol=1e-4, rtol=0)


def test_rescaled_atoms_move_in_h_space() -> None:
    # Γ = 0: h(3) = √4 − 1 + .001·3 = 1.003 on atoms 0, 1, 2: .997 and .003
    rule = make_rule("categorical", num_atoms=3, v_min=0.0, v_max=2.0, value_rescaling=True)
    target = rule.target(Bootstrap(torch.zeros(1, 3)), torch.tensor([3.0]), torch.tensor([0.0]))
    torch.testing.assert_close(target, torch.tensor([[0.0, 0.997, 0.003]]), atol=1e-5, rtol=0)


def test_a_saved_learner_goes_on_bit_for_bit() -> None:
    def make(seed: int) -> C51DQN:
        torch.manual_seed(seed)
        network = MLPC51QNetwork(4, 2, 11, -2.0, 2.0, (16,), dueling=True, noisy=True)
        return C51DQN(network, 1e-2, 0.9, 3, double_q=True, max_grad_norm=1.0, seed=seed)

    check_goes_on_bit_for_bit(make)


def test_a_support_that_does_not_fit_is_refused() -> None:
    network = MLPC51QNetwork(2, 2, 3, 0.0, 2.0, ())
    with pytest.raises(ValueError, match=r"v_max is 3.0, but the network's head has 2.0"):
        C51DQN(network, 1e-3, 0.9, 1, v_max=3.0)
    with pytest.raises(ValueError, match="num_atoms is 51"):
        C51DQN(network, 1e-3, 0.9, 1, num_atoms=51)
    with pytest.raises(ValueError, match="v_min < v_max"):
        CategoricalRule(num_atoms=3, v_min=1.0, v_max=1.0)

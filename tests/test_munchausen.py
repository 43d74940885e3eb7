"""Munchausen's backup against numbers worked out by hand, in front of every head and both views."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from command_line import Cli
from learners import batch_of, one_hot, set_outputs
from rl_training.algorithms import C51DQN, DQN, QRDQN, MunchausenBackup
from rl_training.algorithms.dqn import ScalarRule
from rl_training.algorithms.munchausen import soft_policy
from rl_training.algorithms.q_learner import QLearner
from rl_training.algorithms.rules import rescale, unrescale
from rl_training.algorithms.sequence_view import SequenceView
from rl_training.experiment.registry import get_algorithm_spec
from rl_training.models import MLPC51QNetwork, MLPQNetwork, MLPQRQNetwork
from sequence_chunks import TableNetwork, table_chunk

pytestmark = pytest.mark.numeric

LN2, LN3 = math.log(2), math.log(3)
# τ = ½ and two states, in both of which the target network's Q/τ = (ln 3, 0) + const: π = (¾, ¼).
# q(0) = (½ ln 3, 0), q(1) = (4 + ½ ln 3, 4). τ·log π(1|0) = −½ ln 4 = −ln 2, and the soft maximum of state 1 is
# τ·log Σ exp(q/τ) = 4 + ½ ln 4 = 4 + ln 2 = Σ π(q − τ log π).
TABLE = [[LN3 / 2, 0.0], [4 + LN3 / 2, 4.0]]
BACKUP = MunchausenBackup(alpha=0.9, tau=0.5, clip=-1.0)


def learner(kind: Any, network: Any, outputs: Any, backup: Any = BACKUP) -> QLearner:
    made: QLearner = kind(network, learning_rate=0.0, gamma=0.5, target_update_interval=10**9, backup=backup)
    set_outputs(made.target_network, outputs)
    return made


def scalar(backup: Any = BACKUP) -> QLearner:
    return learner(DQN, MLPQNetwork(2, 2, ()), TABLE, backup)


def step_01(**fields: Any) -> dict[str, Tensor]:
    """From state 0 by action 1, reward 1, to state 1."""
    made = {"actions": [1], "rewards": [1.0], "dones": [0.0], "obs": one_hot(0, size=2), "next_obs": one_hot(1, size=2)}
    return batch_of(1, **{**made, **fields})


def target_of(algorithm: QLearner, batch: dict[str, Tensor]) -> float:
    return float(algorithm.update(batch, global_step=1).metrics["target_mean"])


def test_the_target_is_reward_log_policy_and_soft_maximum() -> None:
    # y = 1 + .9·(−ln 2) + ½·(4 + ln 2) = 3 − .4 ln 2
    assert target_of(scalar(), step_01()) == pytest.approx(3 - 0.4 * LN2)


def test_the_log_policy_is_clipped() -> None:
    # −ln 2 = −.69 is below −½: y = 1 − .9·½ + ½·(4 + ln 2)
    assert target_of(scalar(MunchausenBackup(tau=0.5, clip=-0.5)), step_01()) == pytest.approx(2.55 + LN2 / 2)


def test_a_termination_keeps_the_bonus_and_does_not_bootstrap() -> None:
    assert target_of(scalar(), step_01(dones=[1.0])) == pytest.approx(1 - 0.9 * LN2)


def test_with_n_steps_the_bonus_is_the_first_step_s() -> None:
    # R = 1 + ½ + ¼ and Γ = ⅛ from the replay: y = 1.75 − .9 ln 2 + ⅛(4 + ln 2)
    batch = step_01(rewards=[1.75], discounts=[0.125])
    assert target_of(scalar(), batch) == pytest.approx(2.25 - 0.775 * LN2)


def test_without_bonus_and_temperature_it_is_dqn() -> None:
    # α = 0 and τ → 0: y = 1 + ½·(4 + ½ ln 3), the maximum. float32's rounding of values near 4 is 2e-7.
    dqn = learner(DQN, MLPQNetwork(2, 2, ()), TABLE, None)
    limit = scalar(MunchausenBackup(alpha=0.0, tau=1e-6))
    assert target_of(limit, step_01()) == pytest.approx(target_of(dqn, step_01()), rel=1e-6)


@pytest.mark.parametrize(("state", "values"), [(0, [0.0, 0.0]), (1, [1e4, 1e4 - 0.03])])
def test_large_values_keep_their_digits(state: int, values: list[float]) -> None:
    # q/τ of 1e4 and τ = .03 would be 3e5, whose float32 steps are .03: subtracted first, log π(1) − log π(0) = −Δq/τ to 1e-4,
    # where Δq is what float32 makes of it.
    q = torch.tensor(values)
    _, log_policy = soft_policy(q, 0.03)
    assert float(log_policy[1] - log_policy[0]) == pytest.approx(float(q[1] - q[0]), abs=1e-6)
    assert float(log_policy.div(0.03).exp().sum()) == pytest.approx(1.0, abs=1e-5)


def test_the_fixed_point_of_a_two_state_task() -> None:
    """State 0: action 0 leads to state 1 without reward, action 1 ends with ½. State 1: actions end with 1 and 0.

    q = r + α·τ·log π with π = softmax(q/τ), so q(1 − α) = r − αV with V = τ·log Σ exp(q/τ). Put in, V = λ·log Σ exp(r/λ) with
    λ = (1 − α)τ: the soft maximum at the lower temperature λ, and the gaps between actions are 1/(1 − α) times those of r.
    With α = ½, τ = 1 (λ = ½), γ = .9:  V₁ = ½ log(e² + 1);  q₁ = 2(r − ½V₁) for r = (1, 0);  in state 0 r = (.9·V₁, ½).
    """
    backup = MunchausenBackup(alpha=0.5, tau=1.0, clip=-100.0)
    algorithm = learner(DQN, MLPQNetwork(2, 2, ()), [[0.0, 0.0], [0.0, 0.0]], backup)
    batch = batch_of(
        4,
        obs=one_hot(0, 0, 1, 1, size=2),
        actions=[0, 1, 0, 1],
        rewards=[0.0, 0.5, 1.0, 0.0],
        next_obs=one_hot(1, 0, 0, 0, size=2),
        dones=[0.0, 1.0, 1.0, 1.0],
        discounts=[0.9, 0.0, 0.0, 0.0],
    )
    for _ in range(60):  # a contraction by max(α, γ): .9⁶⁰ of it is 2e-3, and state 1, on which state 0 waits, goes by .5⁶⁰
        set_outputs(algorithm.target_network, algorithm.td_loss(batch)[0].target.view(2, 2).tolist())

    def soft(a: float, b: float) -> float:
        return 0.5 * math.log(math.exp(2 * a) + math.exp(2 * b))

    v1 = soft(1, 0)
    v0 = soft(0.9 * v1, 0.5)
    expected = [[2 * (0.9 * v1 - v0 / 2), 2 * (0.5 - v0 / 2)], [2 * (1 - v1 / 2), -v1]]
    torch.testing.assert_close(algorithm.target_network(torch.eye(2)), torch.tensor(expected), rtol=1e-5, atol=1e-5)


def test_quantiles_are_mixed_level_by_level() -> None:
    # Quantiles q ± 1 of every action. y_j = R + bonus + ½·Σ_a π_a(θ_aj − τ log π_a): the scalar target ± ½.
    spread = [[[q - 1, q + 1] for q in row] for row in TABLE]
    algorithm = learner(QRDQN, MLPQRQNetwork(2, 2, 2, ()), spread)
    target = algorithm.td_loss(step_01())[0].target
    torch.testing.assert_close(target, torch.tensor([[2.5 - 0.4 * LN2, 3.5 - 0.4 * LN2]]))


def test_each_action_s_atoms_are_moved_projected_and_mixed() -> None:
    """Atoms −10, −9, …, 10. Each action's mass is at one atom (logit 50 there), so that the target has at most two pairs of atoms.

    In state 1 all mass of action 0 is at 2 and of action 1 at 1; τ = 1/ln 3 makes π = (¾, ¼), τ log π = (τ ln ¾, −τ ln 4). Both actions of
    state 0 say 0: the bonus is ½·τ·log ½. With Γ = ½ the mass ¾ goes to 1 + b + ½(2 − τ ln ¾) and ¼ to 1 + b + ½(1 + τ ln 4).
    """
    logits = torch.zeros(2, 2, 21)
    logits[0, :, 10] = logits[1, 0, 12] = logits[1, 1, 11] = 50.0
    tau = 1 / LN3
    network = MLPC51QNetwork(2, 2, 21, -10.0, 10.0, ())
    algorithm = learner(C51DQN, network, logits.tolist(), MunchausenBackup(alpha=0.5, tau=tau, clip=-1.0))
    bonus = -0.5 * tau * LN2
    expected = torch.zeros(21)
    for mass, place in ((0.75, 2 + bonus - tau / 2 * math.log(0.75)), (0.25, 1.5 + bonus + tau * LN2)):
        below = math.floor(place)
        expected[below + 10] += mass * (below + 1 - place)
        expected[below + 11] += mass * (place - below)
    torch.testing.assert_close(algorithm.td_loss(step_01())[0].target[0], expected, rtol=1e-5, atol=1e-6)


# Episode 0 → 1 → 0 → 1 of actions 1 with rewards 1, 2, 3.
def sequence(n_step: int, **options: Any) -> list[float]:
    network, rule = TableNetwork(TABLE), ScalarRule(value_rescaling=bool(options))
    chunk = table_chunk([0, 1, 0, 1], [1, 2, 3])
    chunk["actions"] = torch.ones_like(chunk["actions"])
    backup = MunchausenBackup(alpha=0.9, tau=0.5, clip=-1.0, **options)
    aligned = SequenceView(gamma=0.5, n_step=n_step).align(chunk, network, network, backup=backup, generator=torch.Generator())
    target: list[float] = rule.target(aligned.bootstrap, aligned.rewards, aligned.discounts)[:, 0].tolist()
    return target


def test_in_sequences_the_bonus_stays_where_the_action_was_taken() -> None:
    # τ log π of action 1 is −ln 2 in both states; soft maxima are ln 2 (state 0) and 4 + ln 2 (state 1).
    bonus = -0.9 * LN2
    one_step = [1 + bonus + (4 + LN2) / 2, 2 + bonus + LN2 / 2, 3 + bonus + (4 + LN2) / 2]
    assert sequence(1) == pytest.approx(one_step)
    # Two steps: R₀ = 1 + 2/2 and Γ = ¼ from state 0;  R₁ = 2 + 3/2 and ¼ from state 1;  the last has one step left.
    two_steps = [2 + bonus + LN2 / 4, 3.5 + bonus + (4 + LN2) / 4, one_step[2]]
    assert sequence(2) == pytest.approx(two_steps)


def test_with_value_rescaling_the_policy_is_that_of_the_reward_s_units() -> None:
    # The table is h(Q): π, entropy and bonus are those of Q = h⁻¹(table), and h comes last.
    q = unrescale(torch.tensor(TABLE, dtype=torch.float64)).tolist()
    soft = [math.log(sum(math.exp(2 * x) for x in row)) / 2 for row in q]
    bonus = [0.9 * max(row[1] - v, -1.0) for row, v in zip(q, soft, strict=True)]
    y = [1 + bonus[0] + soft[1] / 2, 2 + bonus[1] + soft[0] / 2, 3 + bonus[0] + soft[1] / 2]
    assert sequence(1, value_rescaling=True) == pytest.approx(rescale(torch.tensor(y)).tolist(), rel=1e-5)


def test_actions_that_are_not_allowed_have_no_part() -> None:
    # In state 1 action 0 alone is allowed: π = (1, 0), no entropy, and y = 1 − .9 ln 2 + ½·(4 + ½ ln 3).
    batch = step_01(next_action_masks=[[True, False]])
    assert target_of(scalar(), batch) == pytest.approx(3 - 0.9 * LN2 + LN3 / 4)


def test_the_bonus_is_that_of_the_policy_that_could_choose() -> None:
    # In state 0 only action 1 was allowed: log π(1|0) = 0, y = 1 + ½·(4 + ln 2). In state 1 only it is: the soft maximum is Q⁻ = 4,
    # y = 1 − .9 ln 2 + ½·4.
    only = torch.tensor([[False, True]])
    assert target_of(scalar(), step_01(action_masks=only)) == pytest.approx(3 + 0.5 * LN2)
    assert target_of(scalar(), step_01(next_action_masks=only)) == pytest.approx(3 - 0.9 * LN2)


def test_in_sequences_masks_belong_to_their_steps() -> None:
    # 0 → 1 → 0 by action 1 with rewards 1 and 1. Before the first step both actions were allowed, before the second only action 1; after
    # the first step only action 1 is, after the second both. y_0 = 1 − .9 ln 2 + ½·4 and y_1 = 1 + 0 + ½·(0 + ln 2).
    network = TableNetwork(TABLE)
    chunk = table_chunk([0, 1, 0], [1.0, 1.0]) | {"actions": torch.ones(2, 1, dtype=torch.int64)}
    chunk["action_masks"] = torch.tensor([[[True, True]], [[False, True]]])
    chunk["next_action_masks"] = torch.tensor([[[False, True]], [[True, True]]])
    aligned = SequenceView(gamma=0.5).align(chunk, network, network, backup=BACKUP, generator=torch.Generator())
    targets = ScalarRule().target(aligned.bootstrap, aligned.rewards, aligned.discounts)
    torch.testing.assert_close(targets[:, 0], torch.tensor([3 - 0.9 * LN2, 1 + 0.5 * LN2]))


def test_where_nothing_is_allowed_nothing_is_bootstrapped_from() -> None:
    batch = step_01(next_action_masks=[[False, False]], dones=[1.0])
    assert target_of(scalar(), batch) == pytest.approx(1 - 0.9 * LN2)  # and not NaN


def test_beside_double_q_it_is_refused(cli: Cli) -> None:
    for row, settings in (("munchausen_dqn", ["double_q=true"]), ("double_dqn", ["munchausen=true"]), ("r2d2", ["munchausen=true"])):
        set_them = [word for each in settings for word in ("--set", f"algo_kwargs.{each}")]
        said = cli.refused("train", "--config", f"configs/{row}/cartpole.yaml", *set_them)
        assert said.endswith("algo_kwargs.munchausen takes the place of double_q: set double_q: false")
    assert get_algorithm_spec("r2d2").parse({"munchausen": True, "double_q": False}).to_dict()["munchausen_tau"] == 0.03


@pytest.mark.parametrize("wrong", [{"tau": 0.0}, {"clip": 0.1}])
def test_parameters_out_of_range_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="tau must be > 0 and clip <= 0"):
        MunchausenBackup(**wrong)

"""DRQN: the masked sequence loss in closed form, updates, target and state."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor

from rl_training.algorithms import DQN, DRQN, QLearner, drqn_loss, make_rule
from rl_training.algorithms.backups import greedy_backup
from rl_training.algorithms.dqn import ScalarRule
from rl_training.algorithms.views import TransitionView
from rl_training.models import HeadKind, RecurrentQNetwork, build_q_network
from rl_training.models.recurrent import recurrent_q_parts
from sequence_chunks import Memoryless, TableNetwork, lstm, random_chunks, table_chunk

pytestmark = pytest.mark.numeric


def flat(module: torch.nn.Module) -> Tensor:
    return torch.cat([p.detach().reshape(-1) for p in module.parameters()])


def test_loss_and_metrics_over_valid_steps_only() -> None:
    # δ = 0.5 and 3 on valid steps, 100 on padding: H = 0.125 and 2.5 → loss (0.125 + 2.5)/2
    batch = {
        "chosen_q_values": torch.tensor([[1.0], [2.0], [0.0]], requires_grad=True),
        "target_q_values": torch.tensor([[1.5], [5.0], [100.0]]),
        "mask": torch.tensor([[1.0], [1.0], [0.0]]),
    }
    result = drqn_loss(batch)
    values = {key: float(value.detach()) for key, value in result.items()}
    assert values == {"loss": 1.3125, "q_value_mean": 1.5, "target_mean": 3.25, "td_error_mean": 1.75}
    result["loss"].backward()
    # dH/dQ = −δ inside, −1 outside, over Σ mask = 2; exactly 0 on padding
    assert batch["chosen_q_values"].grad is not None
    assert batch["chosen_q_values"].grad[:, 0].tolist() == [-0.25, -0.5, 0.0]


def test_nothing_to_train_on_is_no_loss() -> None:
    result = drqn_loss({"chosen_q_values": torch.ones(2, 1), "target_q_values": torch.zeros(2, 1), "mask": torch.zeros(2, 1)})
    assert all(float(value) == 0.0 for value in result.values())


def test_the_target_gets_no_gradient() -> None:
    target = torch.ones(2, 1, requires_grad=True)
    result = drqn_loss({"chosen_q_values": torch.zeros(2, 1, requires_grad=True), "target_q_values": target, "mask": torch.ones(2, 1)})
    result["loss"].backward()
    assert target.grad is None


def test_one_update_on_a_table_in_closed_form() -> None:
    # Q(s) = 0, Q⁻ the same; chunk 1 → 2, r = 3, γ = ½: y = 3, δ = 3, loss 2.5, dloss/dQ(1, a=0) = −1.
    # Adam's first step is lr·sign(gradient): Q(1, 0) = 0.1, nothing else moves.
    net = TableNetwork([[0.0, 0.0]] * 3)
    learner = DRQN(net, 0.1, 0.5, 1000)
    result = learner.update(table_chunk([1, 2], [3], length=3), global_step=1)
    assert {key: float(value) for key, value in result.metrics.items()} == {
        "loss": 2.5,
        "q_value_mean": 0.0,
        "target_mean": 3.0,
        "td_error_mean": 3.0,
    }
    assert result.num_gradient_steps == 1
    table = net.head.table.detach()
    assert float(table[1, 0]) == pytest.approx(0.1, rel=1e-5)
    table[1, 0] = 0
    assert not table.any(), "padding (state 0) and the next state stay untouched"


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("double_q", [False, True])
def test_a_sequence_of_length_one_is_dqns_transition(double_q: bool) -> None:
    torch.manual_seed(0)
    net = Memoryless(3, 3, (8, 8))
    recurrent = DRQN(copy.deepcopy(net), 1e-2, 0.9, 1, double_q, max_grad_norm=1.0)
    feed_forward = DQN(copy.deepcopy(net), 1e-2, 0.9, 1, double_q, max_grad_norm=1.0)
    for step in range(1, 4):
        batch = random_chunks(step, length=1, batch=16)
        transitions = {key: batch[key][0] for key in ("obs", "next_obs", "actions", "rewards", "dones")} | {"weights": batch["weights"]}
        ours, theirs = recurrent.update(batch, global_step=step), feed_forward.update(transitions, global_step=step)
        for key, value in theirs.metrics.items():
            torch.testing.assert_close(ours.metrics[key], value)
        # A chunk's only step is both its maximum and its mean.
        torch.testing.assert_close(recurrent.last_sequence_priorities, feed_forward.last_td_errors)
    # Adam divides by the gradient's size, so where a gradient nearly cancels its rounding shows: 1% of a step of 0.01.
    torch.testing.assert_close(flat(recurrent.q_network), flat(feed_forward.q_network), atol=1e-4, rtol=1e-5)


HEADS = ("scalar", "categorical", "quantile", "implicit")


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("double_q", [False, True])
@pytest.mark.parametrize("head", HEADS)
def test_every_head_and_rule_works_on_sequences_as_on_transitions(head: HeadKind, double_q: bool) -> None:
    torch.manual_seed(0)
    net = build_q_network((3,), 3, hidden_sizes=(8, 8), head=head, dueling=True, num_quantiles=5, num_target_quantiles=4)
    net.__class__ = type("Memoryless", (type(net),), {"unroll_core": Memoryless.unroll_core})
    rule = make_rule(head)
    recurrent = DRQN(copy.deepcopy(net), 1e-2, 0.9, 1, double_q, rule=rule)
    feed_forward = QLearner(
        copy.deepcopy(net),
        view=TransitionView(gamma=0.9),
        rule=rule,
        learning_rate=1e-2,
        target_update_interval=1,
        backup=greedy_backup(double_q),
    )
    for step in range(1, 4):
        batch = random_chunks(step, length=1, batch=16)
        transitions = {key: batch[key][0] for key in ("obs", "next_obs", "actions", "rewards", "dones")} | {"weights": batch["weights"]}
        ours, theirs = recurrent.update(batch, global_step=step), feed_forward.update(transitions, global_step=step)
        for key, value in theirs.metrics.items():
            torch.testing.assert_close(ours.metrics[key], value)
        torch.testing.assert_close(recurrent.last_priorities, feed_forward.last_priorities)
    # Adam divides by the gradient's size, so where a gradient nearly cancels its rounding shows: 1% of a step of 0.01.
    torch.testing.assert_close(flat(recurrent.q_network), flat(feed_forward.q_network), atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("head", HEADS)
def test_an_lstm_with_any_head_learns_a_fixed_batch(head: HeadKind) -> None:
    torch.manual_seed(0)
    net = RecurrentQNetwork(
        *recurrent_q_parts(
            (3,),
            3,
            features_dim=8,
            encoder_hidden_sizes=(),
            head_hidden_sizes=(),
            hidden_size=6,
            num_layers=1,
            head=head,
            dueling=True,
            noisy=True,
            noisy_sigma=0.01,
            num_quantiles=8,
            num_target_quantiles=8,
        )
    )
    learner = DRQN(net, 1e-2, 0.5, 10**9, True, rule=make_rule(head), n_step=2, burn_in=1)
    batch = random_chunks(3, length=6, burn_in=1)
    results = [learner.update(batch, global_step=step) for step in range(1, 80)]
    errors = [float(result.metrics["td_error_mean"]) for result in results]
    # A distribution's own spread stays in the pairwise TD error of quantiles, so the mean need not go to 0.
    assert errors[-1] < 0.5 * errors[0]
    assert bool(torch.isfinite(learner.last_priorities).all()) and learner.last_priorities.shape == (4,)


def test_the_update_minimises_the_pure_loss() -> None:
    learner = DRQN(lstm(), 1e-3, 0.9, 1000, n_step=3, burn_in=2)
    batch = random_chunks(1, length=7, burn_in=2)
    aligned = learner.align(batch)
    target = ScalarRule().target(aligned.bootstrap, aligned.rewards, aligned.discounts)
    assert aligned.mask is not None
    pure = drqn_loss({"chosen_q_values": aligned.chosen, "target_q_values": target, "mask": aligned.mask, "weights": batch["weights"]})
    reported = learner.update(batch, global_step=1).metrics
    for key, value in pure.items():
        torch.testing.assert_close(reported[key], value.detach())


def test_repeated_updates_fit_a_fixed_batch() -> None:
    learner = DRQN(lstm(), 1e-2, 0.0, 10**9)  # γ = 0: supervised regression of the rewards
    batch = random_chunks(3, length=6)
    losses = [float(learner.update(batch, global_step=step).metrics["loss"]) for step in range(1, 200)]
    assert losses[-1] < 0.05 * losses[0]


def test_the_target_follows_when_a_multiple_is_crossed() -> None:
    learner = DRQN(lstm(), 1e-2, 0.9, 10)
    batch = random_chunks(0, length=4)
    start = flat(learner.target_network)
    learner.update(batch, global_step=8)
    assert torch.equal(flat(learner.target_network), start)
    learner.update(batch, global_step=12)
    assert torch.equal(flat(learner.target_network), flat(learner.q_network))


@pytest.mark.parametrize("noisy", [False, True])
def test_state_goes_on_exactly(noisy: bool) -> None:
    def make(seed: int) -> DRQN:
        return DRQN(lstm(seed, noisy=noisy), 1e-2, 0.9, 3, True, n_step=2, burn_in=1, max_grad_norm=1.0, seed=seed)

    learner, other = make(0), make(1)
    for step in range(1, 4):
        learner.update(random_chunks(step, length=5, burn_in=1), global_step=step)
    other.load_state_dict(copy.deepcopy(learner.state_dict()))
    for step in range(4, 8):
        batch = random_chunks(step, length=5, burn_in=1)
        for one in (learner, other):
            one.update(batch, global_step=step)
        assert torch.equal(learner.last_priorities, other.last_priorities)
    assert torch.equal(flat(learner.q_network), flat(other.q_network))
    assert torch.equal(flat(learner.target_network), flat(other.target_network))


def test_rescaling_belongs_to_the_rule() -> None:
    with pytest.raises(ValueError, match="value_rescaling"):
        DRQN(lstm(), 1e-3, 0.9, 10, rule=ScalarRule(), value_rescaling=True)

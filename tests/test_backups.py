"""Backups in closed form, and what each rule makes of a mixture with shift and bonus."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from learners import batch_of, one_hot, set_outputs
from rl_training.algorithms import C51DQN, DQN, QRDQN
from rl_training.algorithms.backups import Backup, Bootstrap, DoubleBackup, MaxBackup, Seen
from rl_training.algorithms.c51_dqn import CategoricalRule
from rl_training.algorithms.dqn import ScalarRule
from rl_training.algorithms.qr_dqn import QuantileRule
from rl_training.algorithms.rules import rescale, unrescale
from rl_training.algorithms.sequence_view import bootstrap_at
from rl_training.models import MLPC51QNetwork, MLPQNetwork, MLPQRQNetwork
from rl_training.runtime.accelerate import accelerate_learner
from rl_training.speed import ahead_of_time
from rl_training.speed.ahead_of_time import Compiled, compile_learner, trace
from rl_training.speed.graphs import GraphedUpdates
from value_rows import ROWS, batches, parts_of

A0 = torch.tensor([0])


def identity(outputs: Tensor) -> Tensor:
    return outputs


def mean(outputs: Tensor) -> Tensor:
    return outputs.mean(-1)


def test_max_and_double_select_one_action() -> None:
    scalar = torch.tensor([[1.0, 3.0, 2.0]])
    assert MaxBackup()(Seen(scalar, identity, A0)).outputs.tolist() == [3.0]
    prefers_2 = torch.tensor([[0.0, 1.0, 5.0]])
    assert DoubleBackup()(Seen(scalar, identity, A0, prefers_2)).outputs.tolist() == [2.0]
    quantiles = torch.tensor([[[0.0, 10.0], [4.0, 4.0], [9.0, 0.0]]])  # means 5, 4, 4.5
    assert MaxBackup()(Seen(quantiles, mean, A0)).outputs.tolist() == [[0.0, 10.0]]
    assert DoubleBackup()(Seen(quantiles, mean, A0, prefers_2)).outputs.tolist() == [[9.0, 0.0]]


def test_an_action_that_is_not_allowed_is_not_selected() -> None:
    scalar, mask = torch.tensor([[1.0, 3.0, 2.0]]), torch.tensor([[True, False, True]])
    assert MaxBackup()(Seen(scalar, identity, A0, next_mask=mask)).outputs.tolist() == [2.0]
    online = torch.tensor([[0.0, 9.0, -1.0]])
    assert DoubleBackup()(Seen(scalar, identity, A0, online, next_mask=mask)).outputs.tolist() == [1.0]
    quantiles = torch.tensor([[[0.0, 10.0], [7.0, 7.0], [9.0, 0.0]]])
    assert MaxBackup()(Seen(quantiles, mean, A0, next_mask=mask)).outputs.tolist() == [[0.0, 10.0]]


@pytest.mark.parametrize("double_q", [False, True])
@pytest.mark.parametrize("network", [MLPQNetwork(2, 2, ()), MLPQRQNetwork(2, 2, 2, ())], ids=["scalar", "quantiles"])
def test_a_batchs_masks_decide_what_is_bootstrapped_from(network: Any, double_q: bool) -> None:
    # Q(1) = (4, 8): of the rows one allows both, one the worse action alone, one ended and allows none. y = 1 + ½·(8, 4), and 1.
    learner = (DQN if network.head.outputs == 1 else QRDQN)(network, 1e-9, 0.5, 10**9, double_q)
    for each in (learner.q_network, learner.target_network):
        set_outputs(each, [[[q] * network.head.outputs for q in row] for row in ([0.0, 0.0], [4.0, 8.0])])
    masks = torch.tensor([[True, True], [True, False], [False, False]])
    obs = {"obs": one_hot(0, 0, 0, size=2), "next_obs": one_hot(1, 1, 1, size=2), "actions": [0, 0, 0]}
    batch = batch_of(3, **obs, rewards=[1.0] * 3, dones=[0.0, 0.0, 1.0], next_action_masks=masks)
    assert learner.td_loss(batch)[0].target_value.tolist() == [5.0, 3.0, 1.0]
    unmasked = {name: value for name, value in batch.items() if name != "next_action_masks"}
    assert learner.td_loss(unmasked)[0].target_value.tolist() == [5.0, 5.0, 1.0]


# What rules make of π = (¼, ¾) with shifts (2, −2): R = 1, Γ = ½.
PI, SHIFT = torch.tensor([[0.25, 0.75]]), torch.tensor([[2.0, -2.0]])
REWARDS, DISCOUNTS = torch.tensor([1.0]), torch.tensor([0.5])


def test_a_mixture_of_scalars() -> None:
    # ¼·(4 + 2) + ¾·(8 − 2) = 6: y = 1 + ½·6 = 4
    bootstrap = Bootstrap(torch.tensor([[4.0, 8.0]]), PI, SHIFT)
    assert ScalarRule().target(bootstrap, REWARDS, DISCOUNTS).tolist() == [4.0]
    # In h-space the same mixture is made of h⁻¹: h(R + Γ·Σ π (h⁻¹(z) + shift)), not Σ π h(…)
    rescaled = ScalarRule(value_rescaling=True).target(bootstrap._replace(outputs=rescale(bootstrap.outputs)), REWARDS, DISCOUNTS)
    torch.testing.assert_close(unrescale(rescaled), torch.tensor([4.0]))


def test_a_mixture_of_quantiles() -> None:
    # quantile by quantile: ¼·(0 + 2) + ¾·(2 − 2) = .5 and ¼·(4 + 2) + ¾·(6 − 2) = 4.5: y = 1 + ½ of each
    bootstrap = Bootstrap(torch.tensor([[[0.0, 4.0], [2.0, 6.0]]]), PI, SHIFT)
    assert QuantileRule().target(bootstrap, REWARDS, DISCOUNTS).tolist() == [[1.25, 3.25]]


def test_a_mixture_of_distributions() -> None:
    # Atoms 0, 1, 2, 3. Action 0 is all at 0: moved to 1 + ½(0 + 2) = 2. Action 1 is at 2 or 3, half each: 1 + ½(2 − 2) = 1 and 1.5.
    # Mixed: ¼ at 2; ¾·(½ at 1, and ½ at 1.5 shared by 1 and 2) = ¾·(¾ at 1, ¼ at 2) = 9/16 at 1, 3/16 at 2.
    far = -1e4
    logits = torch.tensor([[[0.0, far, far, far], [far, far, 0.0, 0.0]]])
    rule = CategoricalRule(num_atoms=4, v_min=0.0, v_max=3.0)
    target = rule.target(Bootstrap(logits, PI, SHIFT), REWARDS, DISCOUNTS)
    torch.testing.assert_close(target, torch.tensor([[0.0, 9 / 16, 7 / 16, 0.0]]))
    assert float(rule.clipped_share(Bootstrap(logits, PI, SHIFT), REWARDS, DISCOUNTS)) == 0
    # shifts (8, −2) take action 0 to 5, beyond the support: its quarter
    beyond = Bootstrap(logits, PI, torch.tensor([[8.0, -2.0]]))
    assert float(rule.clipped_share(beyond, REWARDS, DISCOUNTS)) == pytest.approx(0.25)


def test_certainty_is_the_action_itself() -> None:
    """π = (0, 1) without shift is the bootstrap of one action, for every rule."""
    g = torch.Generator().manual_seed(0)
    rules: list[Any] = [ScalarRule(value_rescaling=True), QuantileRule(value_rescaling=True)]
    rules += [CategoricalRule(num_atoms=5, v_min=-1.0, v_max=2.0, value_rescaling=True)]
    for rule, shape in zip(rules, [(3, 4, 2), (3, 4, 2, 5), (3, 4, 2, 5)], strict=True):
        outputs = torch.randn(shape, generator=g)
        rewards, discounts = torch.randn(3, 4, generator=g), torch.rand(3, 4, generator=g)
        certain = torch.tensor([0.0, 1.0]).expand(3, 4, 2)
        one = rule.target(Bootstrap(outputs[:, :, 1]), rewards, discounts)
        torch.testing.assert_close(rule.target(Bootstrap(outputs, certain), rewards, discounts), one)


class Soft(Backup):
    """π = softmax(Q), its entropy, and the log-probability of the action taken as a bonus; it needs everything there is."""

    needs_online = True
    needs_current = True

    def __call__(self, seen: Seen) -> Bootstrap:
        assert seen.outputs is not None and seen.online_next_q_values is not None
        log_pi = torch.log_softmax(seen.online_next_q_values, -1)
        bonus = torch.log_softmax(seen.q_values(seen.outputs), -1).gather(-1, seen.actions.unsqueeze(-1)).squeeze(-1)
        return Bootstrap(seen.next_outputs, log_pi.exp(), -log_pi, bonus)


def test_the_view_gives_what_is_asked_for_and_adds_the_bonus() -> None:
    # Q⁻(0) = (0, 0), so log π(a|0) = −ln 2; online Q(1) = (5, 5): π = ½ each, entropy ln 2; Q⁻(1) = (2, 4).
    # y = (1 − ln 2) + ½·(3 + ln 2) = 2.5 − ½ ln 2
    network = MLPQNetwork(2, 2, ())
    learner = DQN(network, 1e-9, 0.5, 10**9, backup=Soft())
    set_outputs(learner.q_network, [[1.0, 2.0], [5.0, 5.0]])
    set_outputs(learner.target_network, [[0.0, 0.0], [2.0, 4.0]])
    batch = batch_of(1, obs=one_hot(0, size=2), next_obs=one_hot(1, size=2), actions=[0], rewards=[1.0], dones=[0.0])
    expected = 2.5 - 0.5 * torch.log(torch.tensor(2.0))
    torch.testing.assert_close(learner.update(batch, global_step=1).metrics["target_mean"], expected)
    # After a termination nothing is bootstrapped from, and the bonus stays: 1 − ln 2.
    ended = learner.update({**batch, "dones": torch.ones(1)}, global_step=2).metrics["target_mean"]
    torch.testing.assert_close(ended, 1 - torch.log(torch.tensor(2.0)))


def test_of_an_n_step_return_the_first_step_has_the_bonus() -> None:
    of = Bootstrap(torch.arange(6.0).view(3, 1, 2), torch.rand(3, 1, 2), torch.rand(3, 1, 2), torch.arange(3.0).view(3, 1))
    moved = bootstrap_at(of, torch.tensor([[2], [2], [1]]))
    assert torch.equal(moved.outputs, of.outputs[[1, 2, 2]]) and torch.equal(moved.probabilities, of.probabilities[[1, 2, 2]])
    assert torch.equal(moved.shift, of.shift[[1, 2, 2]]) and torch.equal(moved.bonus, of.bonus)


@pytest.mark.parametrize("algo", ROWS)
def test_a_mixture_compiled_and_graphed_is_the_eager_one(algo: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def interpreted(step: Any, inputs: Any) -> Compiled:
        graph = trace(step, inputs)
        return Compiled(lambda given: graph(*given), 0.0, False)

    monkeypatch.setattr(ahead_of_time, "compile_ahead_of_time", interpreted)
    (_, eager, replay, *_), (_, traced, *_) = parts_of(algo), parts_of(algo)
    eager.backup = traced.backup = Soft()
    compile_learner(traced, next(batches(replay, 1)))
    for index, batch in enumerate(batches(replay, 10)):
        mine, theirs = (learner.update(batch, global_step=index + 1).metrics for learner in (traced, eager))
        torch.testing.assert_close({**mine}, {**theirs}, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(traced.q_network.state_dict(), eager.q_network.state_dict(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "learner",
    [
        lambda: DQN(MLPQNetwork(4, 2, (8,)), 1e-3, 0.9, 10, backup=Soft()),
        lambda: C51DQN(MLPC51QNetwork(4, 2, 5, -2.0, 2.0, (8,)), 1e-3, 0.9, 10, backup=Soft()),
        lambda: QRDQN(MLPQRQNetwork(4, 2, 3, (8,)), 1e-3, 0.9, 10, backup=Soft()),
    ],
)
def test_a_mixture_by_hand_is_autograds(learner: Any) -> None:
    pair = []
    for fast in (False, True):
        torch.manual_seed(0)
        pair.append(learner())
        if fast:
            accelerate_learner(pair[-1])
            assert pair[-1].gradient != pair[-1].autograd
    for step in range(10):
        mine, theirs = (each.update(batch_of(seed=step), global_step=step).metrics for each in pair)
        torch.testing.assert_close({**mine}, {**theirs}, rtol=1e-4, atol=1e-5)


def test_a_graph_of_a_mixture_reports_it() -> None:
    parts = parts_of("c51_dqn")
    parts.learner.backup = Soft()
    updates = GraphedUpdates(parts.learner, parts.replay, 16, None, torch.device("cpu"))
    metrics = [updates(step).metrics for step in range(1, 5)][-1]
    assert all(bool(torch.isfinite(metrics[name])) for name in metrics)

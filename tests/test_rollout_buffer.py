"""The rollout: GAE by hand, what minibatches and sequences hold, and its state."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from rl_training.data import RolloutBuffer, generalized_advantages
from rl_training.data.rollout_buffer import equal_parts

pytestmark = pytest.mark.numeric


def column(*values: float) -> Any:
    return np.array(values, np.float32)[:, None]


def flags(*values: int) -> Any:
    return np.array(values, bool)[:, None]


def test_gae_across_a_truncation_and_a_termination() -> None:
    # γ = 0.5, λ = 0.5 (γλ = 0.25), five steps of one environment:
    #   t      0    1          2    3          4 (the rollout ends)
    #   r      1    2          3    4          5
    #   V      1    2          3    4          5
    #   V'     2    10 (final) 4    –          6 (the next observation's)
    #   end    -    truncated  -    terminated -
    # δ_0 = 1 + 0.5·2 − 1 = 1,  δ_1 = 2 + 0.5·10 − 2 = 5 (bootstraps from the true final observation),
    # δ_2 = 3 + 0.5·4 − 3 = 2,  δ_3 = 4 − 4 = 0 (no bootstrap, whatever V' says),  δ_4 = 5 + 0.5·6 − 5 = 3
    # A_4 = 3;  A_3 = 0 (ended);  A_2 = 2 + 0.25·0 = 2;  A_1 = 5 (ended: A_2 is another episode's);  A_0 = 1 + 0.25·5 = 2.25
    advantages = generalized_advantages(
        column(1, 2, 3, 4, 5),
        column(1, 2, 3, 4, 5),
        column(2, 10, 4, 99, 6),
        terminated=flags(0, 0, 0, 1, 0),
        ended=flags(0, 1, 0, 1, 0),
        gamma=0.5,
        gae_lambda=0.5,
    )
    np.testing.assert_array_equal(advantages[:, 0], [2.25, 5, 2, 0, 3])
    assert advantages.dtype == np.float32


def test_a_lost_life_stops_gae_and_no_recurrent_state() -> None:
    # γ = λ = 0.5, r = V = 1 everywhere, V' = 2, a life lost at t = 1 of 3: δ_1 = 1 − 1 = 0, δ_0 = δ_2 = 1 + 0.5·2 − 1 = 1,
    # A_2 = 1, A_1 = 0 (nothing follows it), A_0 = 1 + 0.25·0 = 1
    rollout = RolloutBuffer(3, 1, (1,))
    for t in range(3):
        no, lost = np.zeros(1, bool), np.array([t == 1])
        rollout.add(
            obs=np.zeros((1, 1)),
            actions=np.zeros(1),
            rewards=np.ones(1),
            next_obs=np.zeros((1, 1)),
            terminated=no,
            truncated=no,
            episode_starts=no,
            lost_life=lost,
        )
    ones = np.ones((3, 1), np.float32)
    np.testing.assert_array_equal(rollout.advantages(ones, 2 * ones, gamma=0.5, gae_lambda=0.5)[:, 0], [1, 0, 1])
    assert rollout.sequences().mask.shape == (3, 1)  # one stretch: the state goes on
    assert rollout.bootstrap_rows().tolist() == [2]


def test_lambda_one_is_the_monte_carlo_return_and_lambda_zero_the_td_error() -> None:
    rng = np.random.default_rng(0)
    rewards, values = (rng.normal(size=(6, 3)).astype(np.float32) for _ in range(2))
    next_values = np.vstack([values[1:], rng.normal(size=(1, 3)).astype(np.float32)])
    none = np.zeros((6, 3), bool)
    # Σ γ^k r_{t+k} + γ^{T−t} V_T − V_t
    returns = next_values[-1].astype(np.float64)
    expected = np.zeros((6, 3))
    for t in range(5, -1, -1):
        returns = rewards[t] + 0.9 * returns
        expected[t] = returns - values[t]
    options: dict[str, Any] = {"terminated": none, "ended": none, "gamma": 0.9}
    np.testing.assert_allclose(generalized_advantages(rewards, values, next_values, **options, gae_lambda=1.0), expected, atol=1e-5)
    one_step = rewards + 0.9 * next_values - values
    np.testing.assert_allclose(generalized_advantages(rewards, values, next_values, **options, gae_lambda=0.0), one_step, atol=1e-6)


def filled(steps: int, envs: int, **changes: Any) -> RolloutBuffer:
    """obs = 10·t + env, next_obs = obs + 1000, actions and rewards alike."""
    rollout = RolloutBuffer(steps, envs, (1,), seed=3)
    blank = np.zeros((steps, envs), bool)
    fields = {"terminated": blank, "truncated": blank, "episode_starts": blank, "valid": ~blank, **changes}
    for t in range(steps):
        number = 10 * t + np.arange(envs)
        rollout.add(
            obs=number[:, None],
            next_obs=number[:, None] + 1000,
            actions=number,
            rewards=number,
            **{name: values[t] for name, values in fields.items()},
        )
    return rollout


def grid(steps: int, envs: int, *marked: tuple[int, int]) -> Any:
    array = np.zeros((steps, envs), bool)
    for at in marked:
        array[at] = True
    return array


def test_a_bootstrap_is_asked_for_where_no_other_step_gives_it() -> None:
    # env 0 is cut at t = 1 by a time limit and at the end by the rollout; env 1 terminates at t = 1 and at the rollout's end.
    rollout = filled(3, 2, truncated=grid(3, 2, (1, 0)), terminated=grid(3, 2, (1, 1), (2, 1)))
    assert rollout.bootstrap_rows().tolist() == [1 * 2 + 0, 2 * 2 + 0]


def test_minibatches_hold_every_valid_step_once_in_another_order_each_epoch() -> None:
    rollout = filled(5, 3, valid=~grid(5, 3, (2, 1)))  # a reset step of environment 1: 14 real steps
    assert rollout.num_transitions == 14 and len(rollout) == 5
    items = rollout.items(advantages=rollout.field("rewards") * 2)
    epochs = []
    both = list(rollout.minibatches(items, 5, epochs=2))
    for batches in (both[:3], both[3:]):
        assert [len(batch["obs"]) for batch in batches] == [5, 5, 4]
        for batch in batches:
            assert torch.equal(batch["obs"][:, 0], batch["actions"].float())
            assert torch.equal(batch["advantages"], 2 * batch["obs"][:, 0])
        epochs.append(torch.cat([batch["actions"] for batch in batches]).tolist())
    assert sorted(epochs[0]) == sorted(epochs[1]) == sorted({10 * t + e for t in range(5) for e in range(3)} - {21})
    assert epochs[0] != epochs[1]
    whole = list(rollout.minibatches(items, 14, epochs=3))
    assert len(whole) == 3 and all(sorted(batch["actions"].tolist()) == sorted(epochs[0]) for batch in whole)


@pytest.mark.parametrize(
    ("total", "size", "parts"), [(256, 256, [256]), (256, 100, [86, 85, 85]), (3, 64, [3]), (65, 64, [33, 32]), (0, 4, [])]
)
def test_parts_are_equal_and_no_leftover(total: int, size: int, parts: list[int]) -> None:
    assert equal_parts(total, size) == parts


def test_sequences_are_what_one_episode_did() -> None:
    # env 0: starts its episode at t = 2; env 1: carried in, a reset step (not valid) at t = 1, whose observation begins the next episode;
    # env 2: starts with the rollout, and again at t = 3.
    starts = grid(4, 3, (2, 0), (2, 1), (0, 2), (3, 2))
    rollout = filled(4, 3, episode_starts=starts, valid=~grid(4, 3, (1, 1)))
    sequences = rollout.sequences()
    found = []
    for column_index, (env, from_start) in enumerate(zip(sequences.env, sequences.from_start, strict=True)):
        steps = sequences.steps[:, column_index][sequences.mask[:, column_index] > 0]
        found.append((int(env), (steps // 3).tolist(), bool(from_start)))
        assert (steps % 3 == env).all()
    assert found == [
        (0, [0, 1], True),
        (0, [2, 3], False),
        (1, [0], True),
        (1, [2, 3], False),
        (2, [0, 1, 2], False),
        (2, [3], False),
    ]


def test_sequences_begin_from_their_true_state() -> None:
    rollout = RolloutBuffer(2, 3, (1,))
    state = torch.arange(1.0, 7.0).view(1, 3, 2)
    for t in range(2):
        rollout.add(
            obs=np.zeros((3, 1)),
            next_obs=np.zeros((3, 1)),
            actions=[0, 0, 0],
            rewards=[0, 0, 0],
            terminated=False,
            truncated=False,
            episode_starts=[[False, True, False], [False, False, True]][t],
            initial_state=(state + 100 * t, -state - 100 * t),  # the second step's is not the rollout's start
        )
    sequences = rollout.sequences()
    assert sequences.env.tolist() == [0, 1, 2, 2] and sequences.from_start.tolist() == [True, False, True, False]
    h, c = rollout.initial_states(sequences)
    assert h[0].tolist() == [[1, 2], [0, 0], [5, 6], [0, 0]]
    assert torch.equal(c, -h)


def test_sequence_minibatches_hold_every_step_once_with_its_own_state() -> None:
    rng = np.random.default_rng(1)
    rollout = filled(12, 5, episode_starts=rng.random((12, 5)) < 0.2)
    sequences = rollout.sequences()
    tag = torch.arange(len(sequences.env), dtype=torch.float32)
    states = (tag[None, :, None], -tag[None, :, None])
    items = rollout.items()
    for size, least, most in ((20, 2, 3), (60, 1, 1)):
        epochs = list(rollout.sequence_minibatches(items, sequences, states, size, epochs=2))
        assert 2 * least <= len(epochs) <= 2 * most
        total = check_sequence_batches(epochs, sequences)
        assert total == sorted(2 * [10 * t + e for t in range(12) for e in range(5)])


def check_sequence_batches(batches: list[Any], sequences: Any) -> list[int]:
    """That every stretch is whole and has its own state (its number in `sequences`); the steps seen, sorted."""
    seen: list[int] = []
    for batch in batches:
        assert batch["obs"].shape == (*batch["mask"].shape, 1)
        assert torch.equal(batch["initial_c"], -batch["initial_h"])
        real = batch["mask"] > 0
        seen += batch["actions"][real].tolist()
        for k, sequence in enumerate(batch["initial_h"][0, :, 0].long().tolist()):
            steps = sequences.steps[:, sequence][sequences.mask[:, sequence] > 0]
            assert batch["actions"][real[:, k], k].tolist() == (10 * (steps // 5) + steps % 5).tolist()
        assert real.any(0).all() and real.any(1).all()  # no empty sequence, no row of padding alone
    return sorted(seen)


def test_an_environment_that_is_lost_ends_as_at_a_time_limit() -> None:
    rollout = filled(3, 2, terminated=grid(3, 2, (2, 1)))
    rollout.end_episodes(np.array([0, 1]))
    assert rollout.field("truncated")[2].tolist() == [True, False]  # environment 1 had terminated: that it had
    RolloutBuffer(3, 2, (1,)).end_episodes(np.array([0]))  # nothing held yet, nothing to end


def test_a_saved_rollout_goes_on(tmp_path: Any) -> None:
    rollout = filled(3, 2)
    rollout.clear()
    half = {"obs": [[1], [2]], "next_obs": [[3], [4]], "actions": [0, 1], "rewards": [0.5, 1.5], "terminated": False, "truncated": [0, 1]}
    rollout.add(**half, initial_state=(torch.ones(1, 2, 4), torch.zeros(1, 2, 4)))
    state = rollout.state_dict()
    assert state["rows"]["obs"].shape == (1, 2, 1)  # only the steps in use
    other = RolloutBuffer(3, 2, (1,), seed=99)
    other.load_state_dict(state)
    for each in (rollout, other):
        each.add(**half)
        each.add(**half)
    assert len(other) == 3 and other.full
    with pytest.raises(ValueError, match="full"):
        other.add(**half)
    a, b = ([batch["obs"] for batch in each.minibatches(each.items(), 2)] for each in (rollout, other))
    assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True))
    h, _ = other.initial_states(other.sequences())
    assert torch.equal(h, torch.ones(1, 2, 4))
    with pytest.raises(ValueError, match="shape"):
        RolloutBuffer(3, 3, (1,)).load_state_dict(state)
    with pytest.raises(ValueError, match="does not fit"):
        RolloutBuffer(3, 2, (1,)).load_state_dict({**state, "position": 4})

"""n-step windows: closed forms at every kind of ending, and a naive per-episode computation under random streams."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_training.data import NStepAccumulator
from rl_training.types import Step

KEYS = ("obs", "actions", "rewards", "next_obs", "dones", "discounts")


def push(accumulator: NStepAccumulator, t: list[float], reward: list[float], end: str, valid: list[bool] | None = None) -> dict[str, Any]:
    """One step: observation t leads to t + 1, action 10·t. `end` has a letter per environment: `.` none, `T` terminated, `L` time limit."""
    return accumulator.push(
        obs=np.array(t, np.float32)[:, None],
        actions=np.array(t, np.int64) * 10,
        rewards=np.array(reward, np.float32),
        next_obs=np.array(t, np.float32)[:, None] + 1,
        terminated=np.array([letter == "T" for letter in end]),
        truncated=np.array([letter == "L" for letter in end]),
        valid=None if valid is None else np.array(valid),
    )


def rows(out: dict[str, Any]) -> list[tuple[float, ...]]:
    assert set(out) == set(KEYS)
    return list(zip(*(np.asarray(out[key], np.float64).reshape(-1).tolist() for key in KEYS), strict=True))


def test_inside_an_episode() -> None:
    accumulator = NStepAccumulator(3, 0.5, 1)
    assert rows(push(accumulator, [0], [1.0], ".")) == []
    assert rows(push(accumulator, [1], [2.0], ".")) == []
    # R_0 = 1 + .5·2 + .25·4 = 3, bootstrapped from s_3 with γ³ = .125
    assert rows(push(accumulator, [2], [4.0], ".")) == [(0, 0, 3.0, 3, 0, 0.125)]
    # R_1 = 2 + .5·4 + .25·8 = 6, from s_4
    assert rows(push(accumulator, [3], [8.0], ".")) == [(1, 10, 6.0, 4, 0, 0.125)]


def test_termination_brings_out_all_tails_without_bootstrap() -> None:
    accumulator = NStepAccumulator(3, 0.5, 1)
    for t, reward in enumerate([1.0, 2.0, 4.0]):
        push(accumulator, [t], [reward], ".")
    # r_3 = 8 ends it: R_1 = 2+.5·4+.25·8 = 6, R_2 = 4+.5·8 = 8, R_3 = 8; all discounts 0, all end in s_4
    expected = [(1, 10, 6.0, 4, 1, 0.0), (2, 20, 8.0, 4, 1, 0.0), (3, 30, 8.0, 4, 1, 0.0)]
    assert rows(push(accumulator, [3], [8.0], "T")) == expected
    # nothing of it reaches into the next episode
    assert rows(push(accumulator, [100], [1.0], ".")) == []


def test_truncation_bootstraps_each_tail_with_its_own_discount() -> None:
    # r = 1, 1, γ = .5, truncated after 2 of n = 3: R_0 = 1.5 with γ² = .25, R_1 = 1 with γ = .5, both from s_2
    accumulator = NStepAccumulator(3, 0.5, 1)
    push(accumulator, [0], [1.0], ".")
    assert rows(push(accumulator, [1], [1.0], "L")) == [(0, 0, 1.5, 2, 0, 0.25), (1, 10, 1.0, 2, 0, 0.5)]


def test_an_episode_of_one_step() -> None:
    accumulator = NStepAccumulator(4, 0.9, 1)
    assert rows(push(accumulator, [7], [5.0], "T")) == [(7, 70, 5.0, 8, 1, 0.0)]
    assert rows(push(accumulator, [9], [5.0], "L")) == [(9, 90, 5.0, 10, 0, pytest.approx(0.9))]


def test_n_of_one_is_the_step_itself() -> None:
    accumulator = NStepAccumulator(1, 0.5, 3)
    out = push(accumulator, [1, 2, 3], [1.0, 2.0, 3.0], ".TL")
    assert rows(out) == [(1, 10, 1.0, 2, 0, 0.5), (2, 20, 2.0, 3, 1, 0.0), (3, 30, 3.0, 4, 0, 0.5)]
    assert all(out[key].dtype == np.float32 for key in ("rewards", "dones", "discounts"))
    assert rows(push(accumulator, [4, 5, 6], [1.0, 2.0, 3.0], "TTT", [False, True, False])) == [(5, 50, 2.0, 6, 1, 0.0)]
    assert rows(push(accumulator, [4, 5, 6], [1.0, 2.0, 3.0], "...", [False] * 3)) == []


def test_environments_come_in_order_and_do_not_mix() -> None:
    accumulator = NStepAccumulator(2, 0.5, 3)
    assert rows(push(accumulator, [0, 10, 20], [1.0, 1.0, 1.0], "..T")) == [(20, 200, 1.0, 21, 1, 0.0)]
    # environment 0 is full (R = 1 + .5·2 = 2), 1 ends by the limit (R = 2 then its tail 2), 2 has just begun
    expected = [(0, 0, 2.0, 2, 0, 0.25), (10, 100, 2.0, 12, 0, 0.25), (11, 110, 2.0, 12, 0, 0.5)]
    assert rows(push(accumulator, [1, 11, 30], [2.0, 2.0, 2.0], ".L.")) == expected


@pytest.mark.parametrize("n_step", [1, 3])
def test_reset_steps_are_not_steps(n_step: int) -> None:
    accumulator, plain = NStepAccumulator(n_step, 0.9, 1), NStepAccumulator(n_step, 0.9, 1)
    out, expected = [], []
    for t, end in enumerate("..L...T..."):
        expected += rows(push(plain, [t], [t + 1.0], end))
        out += rows(push(accumulator, [t], [t + 1.0], end, [True]))
        if end != ".":  # the vector environment's reset step: its contents must not matter
            out += rows(push(accumulator, [999], [999.0], ".", [False]))
    assert out == expected


def naive(stream: list[tuple[Any, ...]], n: int, gamma: float) -> list[tuple[float, ...]]:
    """All transitions of one environment's valid steps (t, reward, end): episode by episode, straight from the definition."""
    episodes: list[list[tuple[Any, ...]]] = [[]]
    for step in stream:
        episodes[-1].append(step)
        if step[2] != ".":
            episodes.append([])
    out = []
    for episode in episodes:
        finished = bool(episode) and episode[-1][2] != "."
        for i in range(len(episode)):
            window = episode[i : i + n]
            if len(window) < n and not finished:
                continue
            done = window[-1][2] == "T"
            ret = sum(gamma**k * step[1] for k, step in enumerate(window))
            out.append((window[0][0], window[0][0] * 10, ret, window[-1][0] + 1, float(done), 0.0 if done else gamma ** len(window)))
    return out


steps = st.tuples(st.integers(-8, 8).map(float), st.sampled_from("......TL"), st.sampled_from([True, True, True, False]))


@settings(max_examples=150, deadline=None)
@given(
    n=st.integers(1, 6),
    gamma=st.sampled_from([0.0, 0.5, 0.97, 1.0]),
    streams=st.integers(1, 4).flatmap(lambda e: st.lists(st.lists(steps, min_size=e, max_size=e), max_size=40)),
    restart=st.integers(0, 40),
)
def test_equals_the_naive_computation(n: int, gamma: float, streams: list[list[tuple[float, str, bool]]], restart: int) -> None:
    num_envs = len(streams[0]) if streams else 1
    accumulator = NStepAccumulator(n, gamma, num_envs)
    got: list[list[tuple[float, ...]]] = [[] for _ in range(num_envs)]
    for t, step in enumerate(streams):
        if t == restart:  # a checkpoint in the middle of the windows: arrays come back as tensors
            state = accumulator.state_dict()
            accumulator = NStepAccumulator(n, gamma, num_envs)
            accumulator.load_state_dict(as_loaded(state))
        ids = [1000.0 * env + t for env in range(num_envs)]
        out = rows(push(accumulator, ids, [s[0] for s in step], "".join(s[1] for s in step), [s[2] for s in step]))
        order = [(row[0] // 1000, row[0]) for row in out]
        assert order == sorted(order)  # by environment, then time
        for row in out:
            got[int(row[0] // 1000)].append(row)
    for env in range(num_envs):
        stream = [(1000.0 * env + t, step[env][0], step[env][1]) for t, step in enumerate(streams) if step[env][2]]
        # a window spans valid steps: its last next_obs is the one of its last valid step
        expected = naive(stream, n, gamma)
        assert len(got[env]) == len(expected)
        np.testing.assert_allclose(np.array(got[env]), np.array(expected), rtol=1e-6, atol=1e-6)


def as_loaded(state: Any) -> Any:
    """A state as the checkpoint gives it back: tensors where arrays were."""
    if isinstance(state, dict):
        return {key: as_loaded(value) for key, value in state.items()}
    return torch.from_numpy(state.copy()) if isinstance(state, np.ndarray) else state


def test_dropped_windows_are_forgotten() -> None:
    accumulator = NStepAccumulator(2, 0.5, 2)
    push(accumulator, [0, 10], [1.0, 1.0], "..")
    accumulator.drop([0])
    assert rows(push(accumulator, [50, 11], [1.0, 1.0], "..")) == [(10, 100, 1.5, 12, 0, 0.25)]
    assert rows(push(accumulator, [51, 12], [1.0, 1.0], "..")) == [(50, 500, 1.5, 52, 0, 0.25), (11, 110, 1.5, 13, 0, 0.25)]


def test_what_comes_out_is_not_overwritten_by_later_steps() -> None:
    accumulator = NStepAccumulator(2, 0.5, 1)
    push(accumulator, [0], [1.0], ".")
    out = push(accumulator, [1], [1.0], ".")
    before = rows(out)
    for t in range(2, 6):
        push(accumulator, [t], [1.0], ".")
    assert rows(out) == before


@pytest.mark.parametrize("arguments", [(0, 0.9, 1), (1, 1.5, 1), (1, -0.1, 1), (1, 0.9, 0)])
def test_bad_arguments(arguments: tuple[int, float, int]) -> None:
    with pytest.raises(ValueError, match="must"):
        NStepAccumulator(*arguments)


def test_a_state_of_another_shape_is_refused() -> None:
    with pytest.raises(ValueError, match="n_step"):
        NStepAccumulator(3, 0.9, 2).load_state_dict(NStepAccumulator(2, 0.9, 2).state_dict())


# What rides along with a step.


def ride(accumulator: NStepAccumulator, t: int, lost: bool = False, end: str = ".") -> dict[str, Any]:
    """Step t of two environments: reward 1, the second never ends or loses a life; the version is t, next_action_masks says t + 1."""
    step = Step(
        obs=np.array([[t], [10 + t]], np.float32),
        actions=np.array([t, 10 + t]),
        rewards=np.ones(2, np.float32),
        next_obs=np.array([[t + 1], [11 + t]], np.float32),
        terminated=np.array([end == "T", False]),
        truncated=np.array([end == "L", False]),
        lost_life=np.array([lost, False]),
        next_action_masks=np.full((2, 1), t + 1),
        weights_version=np.full(2, t),
    )
    return accumulator.push(step)


def test_a_lost_life_cuts_its_windows_and_no_others() -> None:
    accumulator = NStepAccumulator(3, 0.5, 2)
    out = [rows(ride(accumulator, t, lost=t == 1)) for t in range(4)]
    assert out[0] == []
    # life lost in step 1: R_0 = 1 + .5, R_1 = 1, nothing to bootstrap from; the other environment's window is not full yet
    assert out[1] == [(0, 0, 1.5, 2, 1, 0.0), (1, 1, 1.0, 2, 1, 0.0)]
    assert out[2] == [(10, 10, 1.75, 13, 0, 0.125)]
    # the life after it has two steps, 2 and 3: no window of three yet
    assert out[3] == [(11, 11, 1.75, 14, 0, 0.125)]
    one = NStepAccumulator(1, 0.5, 2)
    assert rows(ride(one, 5, lost=True)) == [(5, 5, 1.0, 6, 1, 0.0), (15, 15, 1.0, 16, 0, 0.5)]


@pytest.mark.parametrize("n_step", [1, 2])
def test_what_is_carried_belongs_to_the_first_step_and_masks_to_the_last(n_step: int) -> None:
    accumulator = NStepAccumulator(n_step, 0.5, 2, carried=("weights_version", "next_action_masks"))
    for t in range(5):
        out = ride(accumulator, t, end="T" if t == 3 else ".")
        for obs, next_obs, version, mask in zip(out["obs"], out["next_obs"], out["weights_version"], out["next_action_masks"], strict=True):
            assert version == obs[0] % 10 and mask == next_obs[0] % 10
        # at n = 2 the second environment's window is full from step 1 on; the first one's two tails come out at its end
        assert len(out["obs"]) == (2 if n_step == 1 else [0, 2, 2, 3, 1][t])
        if t == 2:
            state = as_loaded(accumulator.state_dict())
            accumulator = NStepAccumulator(n_step, 0.5, 2, carried=("weights_version", "next_action_masks"))
            accumulator.load_state_dict(state)


def test_what_was_declared_must_come() -> None:
    with pytest.raises(ValueError, match="weights_version was declared"):
        push(NStepAccumulator(2, 0.5, 1, carried=("weights_version",)), [0], [1.0], ".")
    saved = NStepAccumulator(2, 0.5, 1)
    push(saved, [0], [1.0], ".")
    with pytest.raises(ValueError, match="saved windows hold"):
        NStepAccumulator(2, 0.5, 1, carried=("weights_version",)).load_state_dict(saved.state_dict())


def test_open_steps_are_counted() -> None:
    accumulator = NStepAccumulator(3, 0.5, 2)
    counts = []
    for t in range(4):
        ride(accumulator, t, end="L" if t == 2 else ".")
        counts.append(accumulator.num_open)
    assert counts == [2, 4, 2, 3]  # at step 2 one episode ends, the other's window is full

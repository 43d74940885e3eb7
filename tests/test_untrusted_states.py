"""States that a stranger's checkpoint brings to the parts of a run: what would take memory, hang or reach past an array is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rl_training.data import NStepAccumulator, PrioritizedReplayBuffer, RecurrentReplayBuffer, ReplayBuffer
from rl_training.runtime.behaviour import EpsilonGreedy

THREE = {name: np.zeros((3, 1), np.float32) for name in ("obs", "next_obs")} | {
    name: np.zeros(3) for name in ("actions", "rewards", "dones")
}


@pytest.mark.parametrize(("size", "position"), [(-1, -1), (3, 0), (4, 4), (4, -1), (5, 0)])
def test_a_ring_that_writes_beside_its_slots(size: int, position: int) -> None:
    buffer = ReplayBuffer(4, (1,))
    buffer.add_batch(**THREE)
    state = buffer.state_dict()
    ReplayBuffer(4, (1,)).load_state_dict(state)
    with pytest.raises(ValueError, match="they do not fit a capacity of 4"):
        ReplayBuffer(4, (1,)).load_state_dict({**state, "storage": {**state["storage"], "size": size, "position": position}})


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"priorities": np.ones(4)}, "the saved priorities are not 3 numbers"),  # the fourth would be drawn, and holds nothing
        ({"priorities": np.ones(2)}, "the saved priorities are not 3 numbers"),
        ({"priorities": np.array([1.0, np.nan, 1.0])}, "the saved priorities are not 3 numbers"),
        ({"priorities": np.array([1.0, -2.0, 1.0])}, "the saved priorities are not 3 numbers"),
        ({"alpha": float("nan")}, "the saved alpha is nan"),
        ({"eps": -1.0}, "the saved eps is -1.0"),
        ({"max_priority": float("inf")}, "the saved max_priority is inf"),
    ],
)
def test_priorities_that_nothing_can_be_drawn_by(change: dict[str, Any], said: str) -> None:
    buffer = PrioritizedReplayBuffer(4, (1,))
    buffer.add_batch(**THREE)
    state = buffer.state_dict()
    PrioritizedReplayBuffer(4, (1,)).load_state_dict(state)
    with pytest.raises(ValueError, match=said):
        PrioritizedReplayBuffer(4, (1,)).load_state_dict({**state, "sampler": {**state["sampler"], **change}})


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"counts": np.array([10**12])}, "must hold 0 … 1 steps for each of 1 environments"),
        ({"counts": np.array([-1])}, "must hold 0 … 1 steps"),
        ({"counts": np.zeros(2)}, "must hold 0 … 1 steps"),
        ({"rings": {"obs": np.zeros((1, 1, 1)), "actions": np.zeros((2, 1))}}, "rings of other lengths"),
    ],
)
def test_windows_of_more_steps_than_there_are(change: dict[str, Any], said: str) -> None:
    windows = NStepAccumulator(2, 0.9, 1)
    no = np.zeros(1, bool)
    windows.push(obs=np.zeros((1, 1)), actions=np.zeros(1), rewards=np.zeros(1), next_obs=np.zeros((1, 1)), terminated=no, truncated=no)
    state = windows.state_dict()
    NStepAccumulator(2, 0.9, 1).load_state_dict(state)
    with pytest.raises(ValueError, match=said):
        NStepAccumulator(2, 0.9, 1).load_state_dict({**state, **change})


@pytest.mark.parametrize("change", [{"shift": np.zeros(1, np.int64)}, {"slot": np.array([9])}, {"begin": np.array([-1])}])
def test_chunks_that_never_move_on(change: dict[str, Any]) -> None:
    buffer = RecurrentReplayBuffer(40, 1, (1,), 4, 2)
    h = np.zeros((1, 2), np.float32)
    buffer.add(env_index=0, obs=[0.0], actions=0, rewards=0.0, next_obs=[0.0], dones=False, episode_start=True, initial_state=(h, h))
    state = buffer.state_dict()
    RecurrentReplayBuffer(40, 1, (1,), 4, 2).load_state_dict(state)
    with pytest.raises(ValueError, match="slot, begin and shift are not where a chunk can be"):
        RecurrentReplayBuffer(40, 1, (1,), 4, 2).load_state_dict({**state, "open": {**state["open"], **change}})


@pytest.mark.parametrize("used", [-1, 10**12])
def test_exploration_that_would_be_drawn_for_ever(used: int) -> None:
    behaviour = EpsilonGreedy(lambda step: 0.5, num_actions=2, learning_starts=0, seed=0, ahead=8)
    behaviour.begin(0, 1)
    with pytest.raises(ValueError, match="steps of saved exploration are used"):
        behaviour.load_state_dict({**behaviour.state_dict(), "used": used})

"""Frames stored once: equal to a naive buffer of whole stacks, whatever happens to it, and as small as it claims."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from frame_worlds import World, sequences_equal, transitions_equal
from rl_training.data import (
    NStepAccumulator,
    PrioritizedRecurrentReplayBuffer,
    PrioritizedReplayBuffer,
    ReplayBuffer,
    sampled_ring,
    samplers,
    storage,
)
from rl_training.data.frames import FrameLayout, FrameNumbers
from rl_training.data.sequences import ChunkLayout


@contextmanager
def living_in(tensors: bool) -> Iterator[None]:
    """`tensors`: replay as it is off the CPU."""
    with pytest.MonkeyPatch.context() as patch:
        if tensors:
            for module in (storage, sampled_ring, samplers):
                patch.setattr(module, "uses_numpy", lambda device: False)
        yield


WORLDS = st.builds(
    World,
    num_envs=st.integers(1, 3),
    stack=st.integers(1, 4),
    longest=st.sampled_from([1, 3, 12, 60]),
    reset_steps=st.booleans(),
    seed=st.integers(0, 2**20),
)
LAYOUTS = st.builds(
    lambda trained, burn_in, overlap: ChunkLayout(trained + burn_in, burn_in, min(overlap, trained + burn_in - 1)),
    st.integers(1, 6),
    st.integers(0, 3),
    st.integers(0, 4),
)


@settings(max_examples=25, deadline=None)
@given(WORLDS, st.integers(1, 40), st.booleans(), st.booleans(), st.integers(1, 4))
def test_transitions_are_those_of_whole_stacks(world: World, capacity: int, prioritized: bool, tensors: bool, n_step: int) -> None:
    with living_in(tensors):
        transitions_equal(world, capacity, prioritized=prioritized, n_step=n_step)


@settings(max_examples=25, deadline=None)
@given(WORLDS, st.integers(1, 40), st.booleans(), st.booleans(), LAYOUTS)
def test_sequences_are_those_of_whole_stacks(world: World, capacity: int, prioritized: bool, tensors: bool, layout: ChunkLayout) -> None:
    with living_in(tensors):
        sequences_equal(world, capacity, layout, prioritized=prioritized)


ATARI: dict[str, Any] = {"obs_shape": (4, 84, 84), "obs_dtype": torch.uint8, "frames": FrameLayout(4)}


@pytest.mark.parametrize("tensors", [False, True])
def test_a_transition_takes_little_more_than_its_frame(tensors: bool) -> None:
    """Of 7,056 bytes, with n-step windows and priorities: Stable-Baselines3 takes 56.4 kB, or 28.2 without time limits."""
    with living_in(tensors):
        buffer = PrioritizedReplayBuffer(2_000, **ATARI)
    assert 7_056 < buffer.bytes_per_transition <= 7_300
    assert buffer.bytes_per_transition >= buffer.nbytes / 2_000
    plain = ReplayBuffer(50, (4, 84, 84), obs_dtype=torch.uint8)
    assert plain.bytes_per_transition > 2 * 4 * 7_056


def test_a_sequence_shares_its_frames_with_those_it_overlaps() -> None:
    """L = 80 of which 40 are burn-in, so neighbours overlap by half; LSTM of 512."""
    buffer = PrioritizedRecurrentReplayBuffer(8_000, 1, sequence_length=80, burn_in=40, sequence_overlap=40, hidden_size=512, **ATARI)
    # 100 chunks cover 4,000 steps; the frames of open chunks are a fixed number beside them
    beside = (80 + 1) * 7_056 / 4_000
    assert 7_056 < buffer.bytes_per_transition <= 7_600 + beside


def held_frames() -> ReplayBuffer:
    world, numbers, windows = World(1, 2, 5, False, 0), FrameNumbers(2, 1), NStepAccumulator(1, 0.9, 1)
    buffer = ReplayBuffer(8, (2, 3, 3), obs_dtype=torch.uint8, frames=FrameLayout(2))
    for _ in range(6):
        buffer.add_items({**windows.push(numbers.number(world.step())), **numbers.take()})
    return buffer


def test_frames_that_do_not_follow_the_last_begin_anew() -> None:
    """As after a checkpoint without replay: the numbers go on, and nothing may name a frame from before."""
    world, numbers, windows = World(1, 2, 1_000, False, 0), FrameNumbers(2, 1), NStepAccumulator(1, 0.9, 1)
    buffer = held_frames()
    for _ in range(9):
        numbers.number(world.step())
    numbers.take()
    for count in (0, 0, 1):  # the first step's obs is lost, and the second's stack reaches back to it
        buffer.add_items({**windows.push(numbers.number(world.step())), **numbers.take()})
        assert len(buffer) == count
    assert buffer.sample(1)["obs"].tolist() == world_obs_before(world)


def world_obs_before(world: World) -> Any:
    stack = [number - 1 for number in world.stacks[0]]
    return (np.array(stack)[None, :, None, None] * np.arange(1, 10).reshape(3, 3) % 251).tolist()


def test_whole_stacks_are_not_taken_for_ids() -> None:
    buffer = held_frames()
    fields: dict[str, Any] = {"actions": 0, "rewards": 0.0, "dones": 0.0, "discounts": 0.9}
    with pytest.raises(TypeError, match="add_items"):
        buffer.add(obs=np.zeros((2, 3, 3), np.uint8), next_obs=np.zeros((2, 3, 3), np.uint8), **fields)
    with pytest.raises(ValueError, match="name the frame 99"):
        buffer.add(obs=np.int64(99), next_obs=np.int64(99), **fields)
    with pytest.raises(ValueError, match="not 4 frames"):
        ReplayBuffer(8, (2, 3, 3), frames=FrameLayout(4))


@pytest.mark.parametrize(
    ("part", "change", "said"),
    [
        ("frames", {"stacks": torch.full((9, 2), 99)}, "beyond the 10 there are"),
        ("frames", {"stacks": torch.full((9, 2), -1)}, "beyond the 10 there are"),
        ("frames", {"capacity": 99}, "the capacity of the saved frames is 99"),
        ("frames", {"next": 10**30}, "numbered from"),
        ("frames", {"rows": torch.zeros(3, 2)}, "rows is"),
        ("storage", {"rows": torch.full((6, 5), 2**40)}, "beyond the 10 there are"),
        (None, {"live": 99}, "99 of 6 saved items"),
        (None, {"needs": np.zeros(2)}, "of 6 saved items"),
        (None, {"needs": np.array([9, 0, 0, 0, 0, 0])}, "does not grow"),  # the first would be looked for without end
    ],
)
def test_saved_frames_that_reach_beyond_the_store(part: str | None, change: dict[str, Any], said: str) -> None:
    state = held_frames().state_dict()
    held_frames().load_state_dict(state)
    changed = {**state, **change} if part is None else {**state, part: {**state[part], **change}}
    with pytest.raises(ValueError, match=said):
        held_frames().load_state_dict(changed)

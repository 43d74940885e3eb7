"""Frames stored once: equal to a naive buffer of whole stacks, whatever happens to it, and as small as it claims."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_training.data import (
    NStepAccumulator,
    PrioritizedRecurrentReplayBuffer,
    PrioritizedReplayBuffer,
    RecurrentReplayBuffer,
    ReplayBuffer,
    sampled_ring,
    samplers,
    storage,
)
from rl_training.data.frames import FrameLayout, FrameNumbers
from rl_training.data.sequences import ChunkAssembler, ChunkLayout
from rl_training.data.storage import Field
from rl_training.types import Step

FRAME = (1, 3, 3)  # nine bytes: no whole number of words
HIDDEN = 2


class World:
    """Environments whose frames are numbered as they come: an episode's first one, then what each step leads to. They hold their number.

    Some ends are truncations, some are followed by a reset step (`valid` False), some steps lose a life.
    """

    def __init__(self, num_envs: int, stack: int, longest: int, reset_steps: bool, seed: int) -> None:
        self.rng, self.num_envs, self.stack, self.longest, self.reset_steps = random.Random(seed), num_envs, stack, longest, reset_steps
        self.frames = 0
        self.time = 0
        self.stacks = [deque([0] * stack, stack) for _ in range(num_envs)]
        self.begins = [True] * num_envs
        self.resetting = [False] * num_envs
        self.left = [self._length() for _ in range(num_envs)]

    def _length(self) -> int:
        return self.rng.randint(1, self.longest)

    def _new(self, env: int) -> None:
        self.frames += 1
        self.stacks[env].append(self.frames)

    def step(self) -> Step:
        """One vector step, with whole stacks; `weights_version` is the oldest frame that `obs` needs."""
        made = range(self.num_envs)
        valid = [not self.resetting[env] for env in made]
        begins = list(self.begins)
        for env in made:
            if begins[env] and valid[env]:
                self.stacks[env].extend([0] * self.stack)
                self._new(env)
        obs, needs = self._whole(), [min((i for i in self.stacks[env] if i), default=0) for env in made]
        terminated, truncated, lost = (np.zeros(self.num_envs, bool) for _ in range(3))
        for env in made:
            if valid[env]:
                self._new(env)
                self.left[env] -= 1
                lost[env] = self.rng.random() < 0.1
                if self.left[env] == 0:
                    (terminated if self.rng.random() < 0.5 else truncated)[env] = True
        next_obs = self._whole()
        for env in made:
            self.resetting[env] = bool(valid[env] and self.left[env] == 0 and self.reset_steps)
            self.begins[env] = self.left[env] == 0 and not self.resetting[env]
            if self.begins[env]:
                self.left[env] = self._length()
        self.time += 1
        actions = np.array([self.time * self.num_envs + env for env in made])  # tell every step from every other
        state = np.stack([actions, -actions], 1).astype(np.float32)[None]
        return Step(
            obs, actions, actions / 8, next_obs, terminated, truncated, np.array(begins), np.array(valid), (state, state), lost_life=lost,
            weights_version=np.array(needs),
        )  # fmt: skip

    def _whole(self) -> Any:
        """[E, K·C, H, W]: a frame's number, spread over its bytes; zeros before an episode's start."""
        numbers = np.array([list(stack) for stack in self.stacks])
        return (numbers[:, :, None, None] * np.arange(1, 10).reshape(3, 3) % 251).astype(np.uint8)


class Model:
    """What a ring of `capacity` items holds that has to let those go whose frames are overwritten."""

    def __init__(self, capacity: int, num_frames: int) -> None:
        self.capacity, self.num_frames = capacity, num_frames
        self.items: list[dict[str, Any]] = []  # all that ever came in
        self.gone = 0  # of them
        self.max_priority = 1.0

    def add(self, items: list[dict[str, Any]], frames: int) -> None:
        oldest = frames - self.num_frames + 1

        def let_go() -> None:
            stale = [i for i in range(self.gone, len(self.items)) if self.items[i]["need"] < oldest]
            self.gone = max(self.gone, len(self.items) - self.capacity, *(i + 1 for i in stale), 0)

        let_go()
        self.items += [{**item, "priority": self.max_priority} for item in items if item["need"] >= oldest]
        let_go()

    @property
    def live(self) -> list[dict[str, Any]]:
        return self.items[self.gone :]

    def at(self, slot: int) -> dict[str, Any] | None:
        """The item in a slot, if it is there."""
        for i in range(self.gone, len(self.items)):
            if i % self.capacity == slot:
                return self.items[i]
        return None

    def update(self, slots: list[int], priorities: list[float]) -> None:
        for slot, priority in zip(slots, priorities, strict=True):
            if (item := self.at(slot)) is not None:
                item["priority"] = priority
                self.max_priority = max(self.max_priority, priority)

    def leaves(self, size: int, alpha: float, eps: float) -> Any:
        held = [self.at(slot) for slot in range(size)]
        return np.array([0.0 if item is None else (item["priority"] + eps) ** alpha for item in held])


@contextmanager
def living_in(tensors: bool) -> Iterator[None]:
    """`tensors`: replay as it is off the CPU."""
    with pytest.MonkeyPatch.context() as patch:
        if tensors:
            for module in (storage, sampled_ring, samplers):
                patch.setattr(module, "uses_numpy", lambda device: False)
        yield


def one_by_one(items: dict[str, Any], key: str) -> list[dict[str, Any]]:
    return [{name: value[i] for name, value in items.items()} for i in range(len(items.get(key, ())))]


def exercise(world: World, makers: Any, make_buffer: Any, read: Any, compare: Any, *, steps: int, tensors: bool) -> None:
    """The same steps into the frame store and into the model, in random portions, with samples, priorities and restarts between."""
    naive, framed = makers
    numbers = FrameNumbers(world.stack, world.num_envs)
    rng = random.Random(world.frames + steps)
    with living_in(tensors):
        buffer = make_buffer()
        framed_ring = buffer._ring
        model = Model(framed_ring.storage.capacity, framed_ring.frames.capacity)
        prioritized, stale = framed_ring.prioritized, None
        kept: list[Any] = []
        expected: list[dict[str, Any]] = []
        for _ in range(steps):
            step = world.step()
            expected += read(naive.push(step))
            kept.append(framed.push(numbers.number(step)))
            if rng.random() < 0.4:
                continue
            whole = [items for items in kept if items]
            joined = {name: np.concatenate([items[name] for items in whole]) for name in whole[0]} if whole else {}
            buffer.add_items({**joined, **numbers.take()})
            model.add(expected, world.frames)
            kept, expected = [], []
            assert len(buffer) == len(model.live)
            if rng.random() < 0.1:
                state, numbered = buffer.state_dict(), numbers.state_dict()
                buffer = make_buffer()
                buffer.load_state_dict(state)
                numbers.load_state_dict(numbered)
            if not model.live:
                with pytest.raises(ValueError, match="empty"):
                    buffer.sample(1)
                continue
            batch = buffer.sample(16)
            compare(batch, {item["key"]: item for item in model.live})
            if prioritized:
                drawn = batch["indices"]
                for indices in (drawn, stale):
                    if indices is not None:
                        raw = np.array([rng.choice([0.0, 0.5, 3.0, 7.0]) for _ in indices], np.float32)
                        once = list({int(slot): i for i, slot in enumerate(indices)}.values())  # of a slot named twice, either may count
                        buffer.update_priorities(indices[once], raw[once])
                        model.update(indices[once].tolist(), raw[once].tolist())
                if rng.random() < 0.3:
                    stale = drawn
                saved = buffer.state_dict()["sampler"]["priorities"]
                np.testing.assert_allclose(saved, model.leaves(len(saved), 0.6, 1e-6), rtol=1e-9)


WORLDS = {
    "num_envs": st.integers(1, 3),
    "stack": st.integers(1, 4),
    "longest": st.sampled_from([1, 3, 12, 60]),
    "reset_steps": st.booleans(),
    "seed": st.integers(0, 2**20),
    "capacity": st.integers(1, 40),
    "prioritized": st.booleans(),
    "tensors": st.booleans(),
}
CARRIED = {"weights_version": Field((), torch.int64)}


@settings(max_examples=25, deadline=None)
@given(**WORLDS, n_step=st.integers(1, 4))
def test_transitions_are_those_of_whole_stacks(
    num_envs: int, stack: int, longest: int, reset_steps: bool, seed: int, capacity: int, prioritized: bool, tensors: bool, n_step: int
) -> None:
    makers = [NStepAccumulator(n_step, 0.9, num_envs, carried=CARRIED) for _ in range(2)]
    kind = PrioritizedReplayBuffer if prioritized else ReplayBuffer
    how: dict[str, Any] = {"obs_dtype": torch.uint8, "extra": CARRIED, "frames": FrameLayout(stack), "seed": seed}

    def read(items: Any) -> list[dict[str, Any]]:
        return [{**item, "need": int(item["weights_version"]), "key": int(item["actions"])} for item in one_by_one(items, "rewards")]

    def compare(batch: Any, live: dict[int, Any]) -> None:
        assert batch["obs"].shape == batch["next_obs"].shape == (16, stack, 3, 3) and batch["obs"].dtype == torch.uint8
        drawn = [live[key] for key in batch["actions"].tolist()]
        for name in ("obs", "next_obs", "rewards", "dones", "discounts", "weights_version"):
            assert np.array_equal(batch[name], np.stack([item[name] for item in drawn])), name

    world = World(num_envs, stack, longest, reset_steps, seed)
    exercise(world, makers, lambda: kind(capacity, (stack, *FRAME[1:]), **how), read, compare, steps=60, tensors=tensors)


@settings(max_examples=25, deadline=None)
@given(**WORLDS, length=st.integers(1, 6), burn_in=st.integers(0, 3), overlap=st.integers(0, 4))
def test_sequences_are_those_of_whole_stacks(
    num_envs: int,
    stack: int,
    longest: int,
    reset_steps: bool,
    seed: int,
    capacity: int,
    prioritized: bool,
    tensors: bool,
    length: int,
    burn_in: int,
    overlap: int,
) -> None:
    length += burn_in
    overlap = min(overlap, length - 1)
    shape = (stack, *FRAME[1:])
    kind = PrioritizedRecurrentReplayBuffer if prioritized else RecurrentReplayBuffer
    how: dict[str, Any] = {"obs_dtype": torch.uint8, "extra": CARRIED, "frames": FrameLayout(stack), "burn_in": burn_in, "seed": seed}
    if prioritized:
        how["alpha"] = 0.6

    def make() -> Any:
        return kind(capacity + length, num_envs, shape, length, HIDDEN, 1, overlap, **how)

    fields: dict[str, Any] = {"obs": Field(shape, torch.uint8), "actions": Field((), torch.int64), "state_shape": (2, 1, HIDDEN)}
    naive = ChunkAssembler(ChunkLayout(length, burn_in, overlap), num_envs, **fields, carried=CARRIED)

    def read(items: Any) -> list[dict[str, Any]]:
        chunks = one_by_one(items, "end")
        return [{**c, "need": int(c["weights_version"][c["begin"]]), "key": tuple(c["actions"].tolist())} for c in chunks]

    def compare(batch: Any, live: dict[Any, Any]) -> None:
        assert batch["obs"].shape == batch["next_obs"].shape == (length, 16, *shape)
        drawn = [live[tuple(actions)] for actions in batch["actions"].T.tolist()]
        for name in ("obs", "rewards", "dones", "weights_version"):
            stored = np.stack([item[name] for item in drawn], 1)
            assert np.array_equal(batch[name], stored[:length]), name
            if name == "obs":
                assert np.array_equal(batch["next_obs"], stored[1:])
        assert np.array_equal(batch["initial_c"], np.stack([item["initial_state"][1] for item in drawn], 1))
        assert batch["mask"].sum(0).tolist() == [item["end"] - burn_in for item in drawn]

    world = World(num_envs, stack, longest, reset_steps, seed)
    exercise(world, (naive, make().make_assembler()), make, read, compare, steps=60, tensors=tensors)


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
    ],
)
def test_saved_frames_that_reach_beyond_the_store(part: str | None, change: dict[str, Any], said: str) -> None:
    state = held_frames().state_dict()
    held_frames().load_state_dict(state)
    changed = {**state, **change} if part is None else {**state, part: {**state[part], **change}}
    with pytest.raises(ValueError, match=said):
        held_frames().load_state_dict(changed)

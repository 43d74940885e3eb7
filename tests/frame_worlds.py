"""A naive buffer of whole stacks, and what frames stored once must equal whatever happens to both. Used by tests/test_frames.py, and on a
GPU by benchmarks/gpu_pixels.py."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from rl_training.data import (
    NStepAccumulator,
    PrioritizedRecurrentReplayBuffer,
    PrioritizedReplayBuffer,
    RecurrentReplayBuffer,
    ReplayBuffer,
)
from rl_training.data.frames import FrameLayout, FrameNumbers
from rl_training.data.sequences import ChunkAssembler, ChunkLayout
from rl_training.data.storage import Field
from rl_training.types import Step

SIZE = (3, 3)  # of a frame: nine bytes, no whole number of words
HIDDEN = 2
BATCH = 16
CARRIED = {"weights_version": Field((), torch.int64)}
Sample = Callable[[Any], Callable[[], Any]]
"""Makes of a buffer what draws a batch from it."""


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


def one_by_one(items: dict[str, Any], key: str) -> list[dict[str, Any]]:
    return [{name: value[i] for name, value in items.items()} for i in range(len(items.get(key, ())))]


def plainly(buffer: Any) -> Callable[[], Any]:
    return lambda: buffer.sample(BATCH)


def exercise(world: World, makers: Any, make_buffer: Any, read: Any, compare: Any, *, steps: int, sampling: Sample = plainly) -> int:
    """The same steps into the frame store and into the model, in random portions, with samples, priorities and restarts between.

    Returns how many batches were drawn and found equal.
    """
    naive, framed = makers
    numbers = FrameNumbers(world.stack, world.num_envs)
    rng = random.Random(world.frames + steps)
    buffer = make_buffer()
    sample = sampling(buffer)
    ring = buffer._ring
    model = Model(ring.storage.capacity, ring.frames.capacity)
    stale, drawn = None, 0
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
            sample = sampling(buffer)
        if not model.live:
            continue
        batch = {name: value.cpu() for name, value in sample().items()}
        compare(batch, {item["key"]: item for item in model.live})
        drawn += 1
        if ring.prioritized:
            for indices in (batch["indices"], stale):
                if indices is not None:
                    raw = np.array([rng.choice([0.0, 0.5, 3.0, 7.0]) for _ in indices], np.float32)
                    once = list({int(slot): i for i, slot in enumerate(indices)}.values())  # of a slot named twice, either may count
                    buffer.update_priorities(indices[once], torch.from_numpy(raw[once]))
                    model.update(indices[once].tolist(), raw[once].tolist())
            if rng.random() < 0.3:
                stale = batch["indices"].clone()
            saved = torch.as_tensor(buffer.state_dict()["sampler"]["priorities"]).cpu().numpy()
            np.testing.assert_allclose(saved, model.leaves(len(saved), 0.6, 1e-6), rtol=1e-9)
    return drawn


def transitions_equal(
    world: World, capacity: int, *, prioritized: bool, n_step: int, device: str = "cpu", steps: int = 60, sampling: Sample = plainly
) -> int:
    makers = [NStepAccumulator(n_step, 0.9, world.num_envs, carried=CARRIED) for _ in range(2)]
    kind = PrioritizedReplayBuffer if prioritized else ReplayBuffer
    shape = (world.stack, *SIZE)
    how: dict[str, Any] = {"obs_dtype": torch.uint8, "extra": CARRIED, "frames": FrameLayout(world.stack), "device": device}

    def read(items: Any) -> list[dict[str, Any]]:
        return [{**item, "need": int(item["weights_version"]), "key": int(item["actions"])} for item in one_by_one(items, "rewards")]

    def compare(batch: Any, live: dict[int, Any]) -> None:
        assert batch["obs"].shape == batch["next_obs"].shape == (BATCH, *shape) and batch["obs"].dtype == torch.uint8
        drawn = [live[key] for key in batch["actions"].tolist()]
        for name in ("obs", "next_obs", "rewards", "dones", "discounts", "weights_version"):
            assert np.array_equal(batch[name], np.stack([item[name] for item in drawn])), name

    return exercise(world, makers, lambda: kind(capacity, shape, **how), read, compare, steps=steps, sampling=sampling)


def sequences_equal(
    world: World, capacity: int, layout: ChunkLayout, *, prioritized: bool, device: str = "cpu", steps: int = 60, sampling: Sample = plainly
) -> int:
    shape, length = (world.stack, *SIZE), layout.length
    kind = PrioritizedRecurrentReplayBuffer if prioritized else RecurrentReplayBuffer
    how: dict[str, Any] = {"obs_dtype": torch.uint8, "extra": CARRIED, "frames": FrameLayout(world.stack), "device": device}

    def make() -> Any:
        return kind(capacity + length, world.num_envs, shape, length, HIDDEN, 1, layout.overlap, burn_in=layout.burn_in, **how)

    fields: dict[str, Any] = {"obs": Field(shape, torch.uint8), "actions": Field((), torch.int64), "state_shape": (2, 1, HIDDEN)}
    naive = ChunkAssembler(layout, world.num_envs, **fields, carried=CARRIED)

    def read(items: Any) -> list[dict[str, Any]]:
        chunks = one_by_one(items, "end")
        return [{**c, "need": int(c["weights_version"][c["begin"]]), "key": tuple(c["actions"].tolist())} for c in chunks]

    def compare(batch: Any, live: dict[Any, Any]) -> None:
        assert batch["obs"].shape == batch["next_obs"].shape == (length, BATCH, *shape)
        drawn = [live[tuple(actions)] for actions in batch["actions"].T.tolist()]
        for name in ("obs", "rewards", "dones", "weights_version"):
            stored = np.stack([item[name] for item in drawn], 1)
            assert np.array_equal(batch[name], stored[:length]), name
            if name == "obs":
                assert np.array_equal(batch["next_obs"], stored[1:])
        assert np.array_equal(batch["initial_c"], np.stack([item["initial_state"][1] for item in drawn], 1))
        assert batch["mask"].sum(0).tolist() == [item["end"] - layout.burn_in for item in drawn]

    return exercise(world, (naive, make().make_assembler()), make, read, compare, steps=steps, sampling=sampling)

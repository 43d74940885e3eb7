"""Replay in other processes: each shard owns a buffer with its tree, and the learner draws from all of them as from one.

A batch takes from each shard in proportion to its mass, the sum of its leaves (data/sum_tree.py), or its items where they are drawn
uniformly. So every item is drawn with P(i) = leaf_i / Σ leaves of all shards, and importance weights are (min_j leaf_j / leaf_i)^β over the
whole batch. Masses are those that the shards last told of, a few batches ago. Batches are asked for ahead, and made while one is learned
from.

Items go from an actor to a shard without passing the learner, which hands on a reference. A shard that dies is started again, empty.
Where frames are stored once, an actor's always go to the same shard: its items name those that came before them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from rl_training.data.frame_streams import FrameStreams
from rl_training.data.generators import generator_state, load_generator_state
from rl_training.data.sampled_ring import SampledBuffer
from rl_training.errors import CheckpointError, RunError, warn
from rl_training.experiment.state_files import join_state, read_tensors, split_state, write_tensors
from rl_training.runtime.distributed.cluster import Cluster, reason
from rl_training.types import Array, Batch, Items, State

PREFETCH = 2  # batches asked for ahead
MOST_ADDS = 4  # blocks on their way to one shard
SLOTS = 1 << 40  # an index is shard · SLOTS + slot


class ShardFacts(NamedTuple):
    """What a shard says of itself with every answer."""

    mass: float
    items: int
    transitions: int


class Drawn(NamedTuple):
    """A shard's part of a batch. leaves: of its items, where they are drawn by priority."""

    batch: dict[str, Array]
    leaves: Array | None
    facts: ShardFacts


class ShardProcess:
    """One Ray process around a buffer."""

    def __init__(self, make: Callable[..., SampledBuffer], changes: Mapping[str, Any], streams: FrameStreams | None) -> None:
        """streams: where frames are stored once, what numbers those of its actors."""
        self._buffer: Any = make(**changes)
        self._streams = streams

    def facts(self) -> ShardFacts:
        buffer = self._buffer
        return ShardFacts(buffer.mass, len(buffer), buffer.num_transitions)

    def add_items(self, items: Items, stream: int) -> ShardFacts:
        self._buffer.add_items(items if self._streams is None else self._streams.renumber(stream, items))
        return self.facts()

    def sample(self, count: int) -> Drawn:
        buffer = self._buffer
        batch = {name: value.numpy() for name, value in buffer.sample(count, 0.0).items() if name != "weights"}
        leaves = buffer.leaves(batch["indices"]) if "indices" in batch else None
        return Drawn(batch, leaves, ShardFacts(buffer.mass, len(buffer), 0))  # transitions are counted where somebody asks for them

    def update_priorities(self, slots: Array, priorities: Array) -> None:
        self._buffer.update_priorities(slots, priorities)

    def write(self, file: Path) -> tuple[State, str]:
        """Its own file of a checkpoint; what the manifest says of it, and its digest."""
        state = self._buffer.state_dict(copy=False)
        if self._streams is not None:
            state["streams"] = self._streams.state_dict()
        tree, tensors = split_state(state)
        return tree, write_tensors(file, tensors)

    def read(self, file: Path, tree: State, expected: str) -> ShardFacts:
        state = join_state(tree, read_tensors(file, expected), source=str(file))
        self._buffer.load_state_dict(state)
        if self._streams is not None:
            self._streams.load_state_dict(state["streams"])
        return self.facts()


class ShardedReplay:
    """A `Replay` whose items are elsewhere. `attach` starts the shards; before it, nothing can be asked."""

    packs = False

    def __init__(
        self,
        make: Callable[..., SampledBuffer],
        *,
        shards: int,
        capacity: int,
        time_axis: bool,
        device: torch.device,
        seed: int,
        streams: FrameStreams | None = None,
    ) -> None:
        """make: a shard's buffer, of `capacity` and `seed`. capacity: of all together. time_axis: batches are [T, B, ...].

        streams: where frames are stored once, what a shard numbers them by.
        """
        seeds = np.random.SeedSequence(seed).spawn(shards)
        self._changes = [{"capacity": capacity // shards, "seed": int(each.generate_state(1)[0])} for each in seeds]
        self._make, self._batch_axis, self._device, self._streams = make, int(time_axis), device, streams
        self.framed = streams is not None
        self.generator = np.random.default_rng(seed)
        self._facts = [ShardFacts(0.0, 0, 0)] * shards
        self._adds: list[deque[Any]] = [deque() for _ in range(shards)]
        self._asked: deque[list[tuple[int, Any]]] = deque()
        self._next = 0  # the shard that gets the next block
        self.lost_items = 0

    def attach(self, cluster: Cluster, first_place: int) -> None:
        self._cluster, self._ray, self._first_place = cluster, cluster.ray, first_place
        self._shards = [self._start(index) for index in range(len(self._changes))]

    def _start(self, index: int) -> Any:
        return self._cluster.start(ShardProcess, self._first_place + index, self._make, self._changes[index], self._streams)

    # Items

    def __len__(self) -> int:
        return sum(facts.items for facts in self._facts)

    @property
    def num_transitions(self) -> int:
        self._refresh()
        return sum(facts.transitions for facts in self._facts)

    def add_items(self, items: Items) -> None:
        self.add_reference(self._ray.put(items), 0)

    def add_reference(self, items: Any, actor: int) -> None:
        """items: a reference to finished ones of this actor, which go to the shard without passing here."""
        if self.framed:
            index = actor % len(self._shards)
        else:
            index, self._next = self._next, (self._next + 1) % len(self._shards)
        waiting = self._adds[index]
        waiting.append(self._shards[index].add_items.remote(items, actor))
        done, _ = self._ray.wait(list(waiting), num_returns=len(waiting), timeout=0)
        for _ in range(max(len(done), len(waiting) - MOST_ADDS, not len(self))):  # in their order: the first ones are done first
            if self._heard(index, waiting.popleft()) is None:
                break  # the others were lost with it

    def _heard(self, index: int, reference: Any) -> Any:
        """What a shard answers, or None where it has died: then it is started again, empty."""
        try:
            answer = self._ray.get(reference)
        except self._ray.exceptions.RayTaskError as error:
            raise error.cause from None
        except self._ray.exceptions.RayError as error:
            self._replace(index, error)
            return None
        facts = answer.facts if isinstance(answer, Drawn) else answer
        if isinstance(facts, ShardFacts):
            self._facts[index] = facts
        return answer

    def _replace(self, index: int, error: BaseException) -> None:
        lost = self._facts[index].items
        self.lost_items += lost
        self._facts[index], self._adds[index] = ShardFacts(0.0, 0, 0), deque()
        self._asked = deque([each for each in asked if each[0] != index] for asked in self._asked)
        self._ray.kill(self._shards[index])
        self._shards[index] = self._start(index)
        text = f"replay shard {index} died and is started again: its {lost:,} items are lost ({reason(error)})"
        warn(text, RuntimeWarning)

    def _refresh(self) -> None:
        for index, reference in enumerate([shard.facts.remote() for shard in self._shards]):
            self._heard(index, reference)

    # Batches

    def sample(self, batch_size: int, beta: float | Tensor = 0.0, *, packed: bool = False) -> Batch:
        """`weights` are global (see the module's text)."""
        while len(self._asked) < PREFETCH:
            self._asked.append(self._ask(batch_size))
        drawn: list[tuple[int, Drawn]] = []
        while (missing := batch_size - sum(_count(part) for _, part in drawn)) > 0:
            asked = self._asked.popleft() if not drawn and self._asked else self._ask(missing)
            drawn += [(index, part) for index, reference in asked if (part := self._heard(index, reference)) is not None]
        self._asked.append(self._ask(batch_size))  # made while this one is learned from
        return self._together(drawn, float(beta))

    def _ask(self, count: int) -> list[tuple[int, Any]]:
        """So many items, from each shard by its mass."""
        if not sum(facts.mass for facts in self._facts):
            self._refresh()
        masses = np.array([facts.mass for facts in self._facts])
        if not masses.sum():
            raise RunError("every replay shard is empty: nothing is left to learn from")
        counts = self.generator.multinomial(count, masses / masses.sum())
        return [(index, self._shards[index].sample.remote(int(some))) for index, some in enumerate(counts) if some]

    def _together(self, drawn: list[tuple[int, Drawn]], beta: float) -> Batch:
        batch: Batch = {}
        for name in drawn[0][1].batch:
            values = [index * SLOTS + part.batch[name] if name == "indices" else part.batch[name] for index, part in drawn]
            axis = 0 if name == "indices" else self._batch_axis
            batch[name] = torch.from_numpy(np.concatenate(values, axis=axis)).to(self._device)
        if drawn[0][1].leaves is not None:
            leaves = np.concatenate([part.leaves for _, part in drawn if part.leaves is not None])
            batch["weights"] = torch.from_numpy(((leaves.min() / leaves) ** beta).astype(np.float32)).to(self._device)
        return batch

    def unpack(self, batch: Batch) -> Batch:
        return batch

    def update_priorities(self, indices: Any, priorities: Any) -> None:
        """Nobody waits for it. A shard that died meanwhile shows at the next sample."""
        where, values = torch.as_tensor(indices).cpu().numpy(), torch.as_tensor(priorities).detach().cpu().numpy()
        if not np.isfinite(values).all():
            raise RunError("a priority is not finite: the loss has diverged")
        for index in np.unique(where // SLOTS):
            mine = where // SLOTS == index
            self._shards[index].update_priorities.remote(where[mine] % SLOTS, values[mine])

    # State: a small one here, and a file of each shard's own

    def state_dict(self, *, copy: bool = True) -> State:
        return {"shards": len(self._shards), "next": self._next, "generator": generator_state(self.generator)}

    def load_state_dict(self, state: State) -> None:
        if state.get("shards") != len(self._shards):
            raise CheckpointError(f"the checkpoint's replay is in {state.get('shards', 1)} shards, this run's in {len(self._shards)}")
        self._next = int(state["next"]) % len(self._shards)
        load_generator_state(self.generator, state["generator"])

    def write_files(self, folder: Path) -> dict[str, tuple[State, str]]:
        """The shards write side by side, on the learner's machine."""
        names = [f"replay-{index}" for index in range(len(self._shards))]
        asked = [shard.write.remote(folder.absolute() / f"{name}.safetensors") for shard, name in zip(self._shards, names, strict=True)]
        written: dict[str, tuple[State, str]] = {}
        for index, (name, reference) in enumerate(zip(names, asked, strict=True)):
            answer = self._heard(index, reference)
            if answer is None:  # an empty one has taken its place
                answer = self._ray.get(self._shards[index].write.remote(folder.absolute() / f"{name}.safetensors"))
            written[name] = answer
        return written

    def read_files(self, folder: Path, files: Mapping[str, tuple[State, str]]) -> None:
        names = [f"replay-{index}" for index in range(len(self._shards))]
        if missing := [name for name in names if name not in files]:
            raise CheckpointError(f"{folder}: has no {missing[0]}.safetensors")

        def ask(index: int) -> Any:
            return self._shards[index].read.remote(folder.absolute() / f"{names[index]}.safetensors", *files[names[index]])

        for index, reference in enumerate([ask(index) for index in range(len(names))]):
            if self._heard(index, reference) is None and self._heard(index, ask(index)) is None:
                raise RunError(f"replay shard {index} died twice while it read {names[index]}.safetensors")


def _count(part: Drawn) -> int:
    return len(part.batch["indices"]) if "indices" in part.batch else part.batch["rewards"].shape[-1]

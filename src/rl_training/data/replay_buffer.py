"""Uniform experience replay (Lin 1992; arXiv:1312.5602): a ring of transitions that may carry their own discount."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rl_training.data.framed_ring import ROW, FramedRing
from rl_training.data.frames import FrameLayout
from rl_training.data.sampled_ring import Priorities, SampledBuffer, SampledRing
from rl_training.data.storage import Field, as_array, as_torch_dtype

if TYPE_CHECKING:
    from rl_training.types import Batch, Items, State


class ReplayBuffer(SampledBuffer):
    """Ring of `capacity` transitions, sampled uniformly with replacement.

    Holds `obs` and `next_obs` `[*obs_shape]`, `actions` `[*action_shape]`, `rewards`, `dones` (termination only) and, where they
    are given, `discounts` (γ^k·(1−terminated)): with every transition or with none. extra: further fields, stored and sampled under their
    names (`next_action_masks` for one; see `Step`).

    frames: an observation is a stack of frames, each of which is stored once (frames.py). Items then name them by their ids and bring
    those that are new (`add_items`); a batch is as if whole stacks had been stored. Episodes shorter than `frames.SHORT` steps on
    average need more frames than there are, and the oldest transitions leave early.
    """

    packs = True

    def __init_subclass__(cls) -> None:
        """A subclass that samples in its own way is not asked for rows, unless it says that it gives them."""
        if "sample" in vars(cls) and "packs" not in vars(cls):
            cls.packs = False

    def __init__(
        self,
        capacity: int,
        obs_shape: Sequence[int],
        action_shape: Sequence[int] = (),
        obs_dtype: Any = torch.float32,
        device: str | torch.device = "cpu",
        seed: int = 0,
        *,
        action_dtype: Any = torch.int64,
        extra: Mapping[str, Field] | None = None,
        frames: FrameLayout | None = None,
        _priorities: Priorities | None = None,
    ) -> None:
        whole = Field(tuple(obs_shape), as_torch_dtype(obs_dtype))
        obs, scalar = whole if frames is None else ROW, Field((), torch.float32)
        fields = {"obs": obs, "next_obs": obs, "rewards": scalar, "dones": scalar, "discounts": scalar}
        fields["actions"] = Field(tuple(action_shape), as_torch_dtype(action_dtype))
        self.extra = dict(extra or {})
        how: dict[str, Any] = {"device": device, "seed": seed, "priorities": _priorities}
        self._framed: FramedRing | None = None
        if frames is not None:
            self.packs = False
            held = frames.capacity(capacity)
            self._framed = FramedRing(capacity, fields | self.extra, obs=whole, stack=frames.stack, num_frames=held, **how)
        self._ring = SampledRing(capacity, fields | self.extra, **how) if self._framed is None else self._framed
        self._has_discounts: bool | None = None  # fixed by the first transition
        self.capacity = capacity

    @property
    def num_transitions(self) -> int:
        return len(self)

    @property
    def bytes_per_transition(self) -> float:
        """What is allocated, for each transition: with its priority and, where frames are stored once, with them."""
        return self._ring.all_bytes / self.capacity

    def add(self, **transition: Any) -> None:
        """One transition: `add_batch` without the leading axis."""
        self.add_batch(**{name: None if value is None else as_array(value)[None] for name, value in transition.items()})

    def add_batch(self, *, obs: Any, actions: Any, rewards: Any, next_obs: Any, dones: Any, discounts: Any = None, **extra: Any) -> None:
        """Transitions with a leading axis (possibly none), oldest first, of array-likes. They are copied."""
        if unknown := extra.keys() - {*self.extra, "priorities"}:
            raise TypeError(f"this buffer holds no {', '.join(sorted(unknown))}: declare it as an extra field")
        given = {"obs": obs, "actions": actions, "rewards": rewards, "next_obs": next_obs, "dones": dones, "discounts": discounts, **extra}
        self.add_items({name: as_array(value) for name, value in given.items() if value is not None})

    def add_items(self, items: Items) -> None:
        """Finished transitions, oldest first. They are copied; what this buffer does not hold is passed over."""
        if self._framed is not None:
            items = self._framed.take_frames(items)
            if "rewards" not in items:  # frames alone
                return
        rewards = items["rewards"]
        count = len(rewards)
        if count == 0:
            return
        given = "discounts" in items
        if self._has_discounts is not given:
            if self._has_discounts is not None:
                raise ValueError("give `discounts` with every transition of a buffer or with none")
            self._set_discounts(given)
        if not given:
            items = {**items, "discounts": rewards}  # a place holder that no batch carries
        self._ring.add(items, count)

    def sample(self, batch_size: int, beta: float | Tensor = 0.0, *, packed: bool = False) -> Batch:
        """`obs, actions, rewards, next_obs, dones`, and `discounts` if the transitions carry them: `[B, ...]` on the device.

        packed: as rows, of which `unpack` makes these; for a compiled update, which unpacks them itself. `beta` says nothing here.
        """
        return self._whole(self._ring.sample(batch_size, beta, packed=packed))

    def _whole(self, batch: Batch) -> Batch:
        """A batch with stacks in the place of the rows that stand for them."""
        if self._framed is not None:
            both = self._framed.frames.stacks(torch.cat([batch["obs"], batch["next_obs"]]))  # one gather
            size = len(both) // 2
            batch["obs"], batch["next_obs"] = both[:size], both[size:]
        return batch

    def expect_discounts(self) -> None:
        """Every transition will bring its discount. Said before the first one, it has a saved state of others refused when it is loaded."""
        self._set_discounts(True)

    def _set_discounts(self, given: bool | None) -> None:
        self._has_discounts = given
        storage = self._ring.storage
        storage.read_only(storage.fields if given else storage.fields.keys() - {"discounts"})

    def state_dict(self, *, copy: bool = True) -> State:
        """The rows in use and the sampler. `copy=False` shares the rows' memory, for a checkpoint that is written at once."""
        return {"has_discounts": self._has_discounts, **self._ring.state_dict(copy=copy)}

    def load_state_dict(self, state: State) -> None:
        saved = state["has_discounts"]
        if self._has_discounts is not None and saved is not self._has_discounts:
            raise ValueError(f"has_discounts is {saved!r:.20}, and this buffer's is {self._has_discounts}")
        self._ring.load_state_dict(state)
        self._set_discounts(saved)

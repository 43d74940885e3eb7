"""A replay in front of another: what it changes is its own, the rest is the other's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from rl_training.data.generators import Generator
    from rl_training.data.replay import Replay
    from rl_training.types import Items, State

R = TypeVar("R", bound="Replay")


class ReplayFront(Generic[R]):
    """Hands everything on but `sample`, `unpack` and `packs`."""

    def __init__(self, replay: R) -> None:
        self._replay = replay

    @property
    def generator(self) -> Generator:
        return self._replay.generator

    @property
    def num_transitions(self) -> int:
        return self._replay.num_transitions

    def __len__(self) -> int:
        return len(self._replay)

    def add_items(self, items: Items) -> None:
        self._replay.add_items(items)

    def update_priorities(self, indices: Any, priorities: Any) -> None:
        self._replay.update_priorities(indices, priorities)

    def state_dict(self, *, copy: bool = True) -> State:
        return self._replay.state_dict(copy=copy)

    def load_state_dict(self, state: State) -> None:
        self._replay.load_state_dict(state)

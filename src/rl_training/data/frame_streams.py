"""Many feeds, one store of frames: each feed numbers its own frames (frames.py), and here they get the store's ids."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from rl_training.data.framed_ring import NAMED
from rl_training.data.frames import FRAMES, GONE, NO_FRAME, STACKS
from rl_training.data.storage import as_array

if TYPE_CHECKING:
    from rl_training.types import Array, Items, State


class FrameStreams:
    """Gives frames ids in the order they come in, whichever stream they are of, and remembers which ids each stream's last ones got.

    A stream's items and stacks name its own ids: those of frames that came with them or before. It begins anew where its frames do not
    follow the last ones, as those of an actor do that was started again. What names a frame that is not known here names one that is gone,
    and is left out by the store.
    """

    def __init__(self, streams: int, reach: int) -> None:
        """reach: the frames of a stream, from the newest one back, that its items may name."""
        self._reach = reach
        self._next = NO_FRAME + 1
        self._given: list[Array] = [np.zeros(0, np.int64)] * streams  # the ids that each stream's last frames got
        self._upcoming = [NO_FRAME + 1] * streams  # each stream's own id for its next frame

    def renumber(self, stream: int, items: Items) -> Items:
        """The items of a stream, and the frames they bring, with the store's ids."""
        if FRAMES in items and len(items[FRAMES]):
            self._give(stream, items[STACKS][:, -1])
        return {name: self._renumbered(stream, ids) if name in (STACKS, *NAMED) else ids for name, ids in items.items()}

    def _give(self, stream: int, own: Array) -> None:
        begin, count = int(own[0]), len(own)
        known = self._given[stream] if begin == self._upcoming[stream] else np.zeros(0, np.int64)
        new = np.arange(self._next, self._next + count)
        self._given[stream] = np.concatenate([known[max(0, len(known) - self._reach) :], new])
        self._upcoming[stream] = begin + count
        self._next += count

    def _renumbered(self, stream: int, own: Array) -> Array:
        given = self._given[stream]
        place = own - (self._upcoming[stream] - len(given))
        known = (place >= 0) & (place < len(given))
        ids: Array = np.append(given, GONE)[np.where(known, place, -1)]
        return np.where(own == NO_FRAME, NO_FRAME, ids)

    @property
    def is_one(self) -> bool:
        """There is one stream, whose ids are the store's: what is saved of its feed says all there is."""
        return len(self._given) == 1 and self._next == self._upcoming[0]

    def go_on_as_one(self, upcoming: int) -> None:
        """One stream, whose next frame has this id."""
        self._next = self._upcoming[0] = upcoming
        self._given[0] = np.arange(max(NO_FRAME + 1, upcoming - self._reach), upcoming)

    def state_dict(self) -> State:
        return {"next": self._next, "upcoming": list(self._upcoming), "given": [ids.copy() for ids in self._given]}

    def load_state_dict(self, state: State) -> None:
        upcoming, given = [int(own) for own in state["upcoming"]], [as_array(ids) for ids in state["given"]]
        if not len(upcoming) == len(given) == len(self._given):
            raise ValueError(f"saved frame streams are {len(given)}, expected {len(self._given)}")
        following = int(state["next"])
        for own, ids in zip(upcoming, given, strict=True):
            if ids.ndim != 1 or not len(ids) < own < 2**62 or (np.diff(ids, prepend=NO_FRAME, append=following) < 1).any():
                raise ValueError("saved frame streams: the ids of a stream's frames do not grow to the next one")
        self._next, self._upcoming, self._given = following, upcoming, [ids.astype(np.int64) for ids in given]

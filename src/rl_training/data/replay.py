"""What the rest of the package asks of a replay, and no more. The four buffers have it; one of your own may."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from torch import Tensor

    from rl_training.data.generators import Generator
    from rl_training.types import Batch, Items, State


class Memory(Protocol):
    """What is learned from, a replay or a rollout, as a run and its checkpoints see it."""

    @property
    def num_transitions(self) -> int: ...

    def state_dict(self, *, copy: bool = True) -> State:
        """`copy=False` may share memory, for a reader that is done before anything is added."""
        ...

    def load_state_dict(self, state: State) -> None: ...


@runtime_checkable
class WritesFiles(Protocol):
    """A memory whose parts are elsewhere, each of which writes its own file of a checkpoint, beside what `state_dict` gives."""

    def write_files(self, folder: Path) -> dict[str, tuple[State, str]]:
        """By name without suffix: what the manifest says of the file, and its digest."""
        ...

    def read_files(self, folder: Path, files: Mapping[str, tuple[State, str]]) -> None: ...


class Replay(Memory, Protocol):
    """Stores finished items and samples them."""

    @property
    def packs(self) -> bool:
        """Whether `sample(packed=True)` gives rows, of which `unpack` makes the fields inside a compiled step; if not, nobody asks."""
        ...

    @property
    def generator(self) -> Generator:
        """What sampling draws from: NumPy's on the CPU, torch's elsewhere (a CUDA graph must register it)."""
        ...

    def __len__(self) -> int:
        """Items held: transitions or chunks."""
        ...

    def add_items(self, items: Items) -> None:
        """Copies finished items, oldest first."""
        ...

    def sample(self, batch_size: int, beta: float | Tensor = ..., *, packed: bool = False) -> Batch:
        """Items drawn with replacement; a prioritized replay adds `indices` and, by `beta`, `weights`."""
        ...

    def unpack(self, batch: Batch) -> Batch:
        """A batch that was sampled `packed` as it would have been without."""
        ...

    def update_priorities(self, indices: Any, priorities: Any) -> None:
        """Raw magnitudes for the items a sample named; a TypeError where the replay is uniform."""
        ...

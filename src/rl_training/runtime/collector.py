"""Where a run's steps come from: what the loop, the run and its checkpoints ask of whoever acts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from rl_training.models.network import Network
from rl_training.types import EnvStep, State


class Collector(Protocol):
    """The actor of this process (actor.py), or actors in others (distributed/). Both feed the replay themselves."""

    network: Network
    """What is acted with, or its original where copies act."""
    learns_from: int
    """The environment step from which there is enough to learn from."""

    @property
    def most_steps(self) -> int:
        """The environment steps that one `step` takes at most."""
        ...

    def step(self, env_steps: int, meanwhile: Callable[[], None] | None = None) -> EnvStep:
        """What came next at the clock's `env_steps`: one vector step here, a block of them from elsewhere (blocks.py).

        `meanwhile` is called where the environments are about to step, so that work beside the host can be queued.
        """
        ...

    def flush(self) -> None:
        """What was collected must be in the replay now: it is about to be learned from."""
        ...

    @property
    def num_open(self) -> int:
        """Steps that are in nothing finished yet."""
        ...

    @property
    def resume_note(self) -> str:
        """What resume cannot promise of the environments; empty where it is exact."""
        ...

    def refill_from(self, env_steps: int) -> None:
        """The replay is empty at this point of the run: collect as much as at the beginning before learning again."""
        ...

    def close(self) -> None: ...

    def state_dict(self) -> State:
        """Called before the replay's is read: what is kept back goes there first."""
        ...

    def load_state_dict(self, state: State) -> None:
        """Called when the replay has been restored: what cannot go on is ended there."""
        ...

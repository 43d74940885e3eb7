"""What a run is given and what it gives back."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from rl_training.data.replay import Memory
from rl_training.experiment.checkpointing import Checkpoint
from rl_training.experiment.runs import RunDirectory
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.collector import Collector
from rl_training.runtime.evaluator import Evaluate
from rl_training.types import Stateful


@dataclass(frozen=True)
class RunOptions:
    """What a caller may add to a config: none of it changes what is learned."""

    run_suffix: str | None = None
    callbacks: Sequence[Callback] = ()
    env: Callable[..., Any] | None = None
    resume_from: Checkpoint | None = None
    goes_on_in: RunDirectory | None = None  # the run that is resumed, locked; without `resume_from` it has no checkpoint yet: start over

    def preparing(self, text: str) -> None:
        """Tells who watches what takes a while before the run is there."""
        for callback in self.callbacks:
            callback.on_preparing(text)


@dataclass(frozen=True)
class TrainResult:
    """Where a run is, its last checkpoint, and how it ended."""

    run_dir: Path
    checkpoint_path: Path
    metrics: dict[str, float]
    stop_reason: str | None = None
    """Why a callback ended the run before its total; None where it took all its steps."""


@dataclass
class Clock:
    """Environment steps of all environments together (reset steps do not count), and updates."""

    env_steps: int = 0
    updates: int = 0


class Learner(Stateful, Protocol):
    """What a run asks of an algorithm; how it learns is between it and its loop."""

    @property
    def model_key(self) -> str:
        """Where the acting network stands in `state_dict()`."""
        ...

    def current_learning_rate(self, global_step: int) -> float: ...


@dataclass
class Parts:
    """What a run is made of. Everything here that changes is saved with a checkpoint."""

    learner: Learner
    actor: Collector
    replay: Memory | None
    evaluate: Evaluate
    spaces: Mapping[str, Any]  # saved, so that a policy loads without making an environment
    exploration_rate: Callable[[int], float] | None = None
    measures: Callable[[], Mapping[str, float]] | None = None  # what else a record holds, read when it is written
    notes: dict[str, str] = field(default_factory=dict)  # for metadata.json: what `auto` resolved to and why, what resume can promise

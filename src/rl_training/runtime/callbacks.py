"""What user code can hook into a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rl_training.types import EnvStep, UpdateResult

if TYPE_CHECKING:
    from rl_training.runtime.run import Run


class Callback:
    """Override what you need; what is not overridden costs nothing. `run.stop(reason)` ends the run in good order."""

    def on_start(self, run: Run) -> None: ...

    def on_step(self, run: Run, step: EnvStep) -> None: ...

    def on_update(self, run: Run, result: UpdateResult) -> None: ...

    def on_status(self, run: Run, what: str, text: str) -> None: ...

    def on_log(self, run: Run, record: Mapping[str, float]) -> None: ...

    def on_eval(self, run: Run, metrics: Mapping[str, float]) -> None: ...

    def on_checkpoint(self, run: Run, path: Path) -> None: ...

    def on_end(self, run: Run) -> None: ...


def overriding(callbacks: Sequence[Callback], hook: str) -> list[Callback]:
    """Those that really have this hook: the loop calls nobody for nothing."""
    return [callback for callback in callbacks if getattr(type(callback), hook) is not getattr(Callback, hook)]

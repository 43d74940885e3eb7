"""What user code can hook into a run: `agent.learn(callbacks=[StopAtReturn(475), ...])`."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

from rl_training.errors import UserError
from rl_training.runtime.cadence import due
from rl_training.types import EnvStep, UpdateResult

if TYPE_CHECKING:
    from rl_training.runtime.run import Run


class Callback:
    """Override what you need; what is not overridden costs nothing.

    `run.clock` says where the run is, `run.stop(reason)` ends it in good order (final evaluation, checkpoint), `run.save_soon()` asks for
    a checkpoint after this step. Callbacks watch: one that changes what is learned is not part of a checkpoint, and resume cannot be exact.
    """

    def on_preparing(self, text: str) -> None:
        """Before the run is there, when something begins that takes a while, such as the start of Ray."""

    def on_start(self, run: Run) -> None:
        """Once, when the run directory is there (a resumed run stands at `run.clock` already)."""

    def on_step(self, run: Run, step: EnvStep) -> None:
        """After every vector step and the updates it brought."""

    def on_update(self, run: Run, result: UpdateResult) -> None:
        """After every update; reading a metric (`float(result.metrics["loss"])`) computes it."""

    def on_status(self, run: Run, what: str, text: str) -> None:
        """When the run is busy with something else than steps, such as compiling, and when that is done."""

    def on_log(self, run: Run, record: Mapping[str, float]) -> None:
        """Every `log_interval`, with what was written."""

    def on_eval(self, run: Run, metrics: Mapping[str, float]) -> None:
        """After every greedy evaluation, with its `eval_*` figures."""

    def on_checkpoint(self, run: Run, path: Path) -> None:
        """After every checkpoint from which the run could be resumed."""

    def on_best(self, run: Run, path: Path) -> None:
        """When the best evaluation so far has been saved, as `checkpoints/best`."""

    def on_end(self, run: Run) -> None:
        """Once, however the run ends."""


StepFunction: TypeAlias = "Callable[[Run, EnvStep], object]"
"""A plain function in a callback's place: called after every vector step; if it returns False, the run ends in good order."""


class FunctionCallback(Callback):
    """A plain function as a callback."""

    def __init__(self, function: StepFunction) -> None:
        self.function = function

    def on_step(self, run: Run, step: EnvStep) -> None:
        if self.function(run, step) is False:
            run.stop(f"{getattr(self.function, '__name__', 'a callback')} returned False")


def as_callbacks(given: Callback | StepFunction | Sequence[Callback | StepFunction]) -> tuple[Callback, ...]:
    """What a user passed as `callbacks`, one or several; UserError where that is anything else."""
    return tuple(_as_callback(each) for each in (given if isinstance(given, Iterable) else (given,)))


def _as_callback(given: object) -> Callback:
    if isinstance(given, Callback):
        return given
    if isinstance(given, type):
        raise UserError(f"callbacks must be Callback objects or functions, got the class {given.__name__}: make one, {given.__name__}(...)")
    if callable(given):
        _require_two_arguments(given)
        return FunctionCallback(given)
    raise UserError(f"callbacks must be Callback objects or functions (run, step), got {given!r:.60}")


def _require_two_arguments(function: Callable[..., object]) -> None:
    """Before the run begins: one that cannot be called would end it at its first step."""
    try:
        signature = inspect.signature(function)
    except (ValueError, TypeError):  # a built-in that does not say what it takes
        return
    try:
        signature.bind(None, None)
    except TypeError:
        name = getattr(function, "__name__", type(function).__name__)
        raise UserError(f"a function in callbacks is called with (run, step), and {name} takes {signature}") from None


def overriding(callbacks: Sequence[Callback], hook: str) -> list[Callback]:
    """Those that really have this hook: the loop calls nobody for nothing."""
    return [callback for callback in callbacks if getattr(type(callback), hook) is not getattr(Callback, hook)]


class StopAtReturn(Callback):
    """Ends the run when the mean return of an evaluation, or of the last 100 training episodes, reaches `threshold`."""

    def __init__(self, threshold: float, *, of: Literal["evaluation", "training"] = "evaluation") -> None:
        if of not in ("evaluation", "training"):
            raise UserError(f"StopAtReturn: of must be evaluation or training, got {of!r}")
        self.threshold, self.of = float(threshold), of

    def on_eval(self, run: Run, metrics: Mapping[str, float]) -> None:
        if self.of == "evaluation":
            self._stop_at(run, metrics["eval_return_mean"])

    def on_step(self, run: Run, step: EnvStep) -> None:
        if self.of == "training" and step.episodes and len(run.recent) == run.recent.maxlen:
            self._stop_at(run, sum(episode.episode_return for episode in run.recent) / len(run.recent))

    def _stop_at(self, run: Run, mean: float) -> None:
        if mean >= self.threshold:
            run.stop(f"the {self.of} return {mean:.6g} reached {self.threshold:.6g}")


class SaveBest(Callback):
    """Keeps a copy of the best checkpoint at `path`, outside the run's directory: `load`, `eval` and `predict` take it."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def on_start(self, run: Run) -> None:
        from rl_training.experiment.checkpoint_copy import require_replaceable  # loads torch, which whoever makes this object may not need

        require_replaceable(self.path)  # now, not after the hours to the first evaluation

    def on_best(self, run: Run, path: Path) -> None:
        from rl_training.experiment.checkpoint_copy import copy_checkpoint

        copy_checkpoint(path, self.path)


class CheckpointEvery(Callback):
    """Checkpoints every so many environment steps or seconds, beside the config's own `checkpoint_interval`."""

    def __init__(self, *, steps: int | None = None, seconds: float | None = None) -> None:
        if (steps is None) == (seconds is None):
            raise UserError("CheckpointEvery: give steps or seconds, one of them")
        if (steps if steps is not None else seconds or 0) <= 0:
            raise UserError(f"CheckpointEvery: steps and seconds must be > 0, got {steps if steps is not None else seconds}")
        self.steps, self.seconds = steps, seconds
        self._seen_steps, self._saved_at = 0, 0.0

    def on_start(self, run: Run) -> None:
        self._seen_steps, self._saved_at = run.clock.env_steps, time.monotonic()

    def on_step(self, run: Run, step: EnvStep) -> None:
        now = run.clock.env_steps
        if self.steps is not None:
            is_due = due(self._seen_steps, now, self.steps)
        else:
            is_due = time.monotonic() - self._saved_at >= (self.seconds or 0.0)
        self._seen_steps = now
        if is_due:
            run.save_soon()

    def on_checkpoint(self, run: Run, path: Path) -> None:
        self._saved_at = time.monotonic()

"""A run around its loop: its life, what the loop tells it, and what comes due.

A loop (off_policy.py, on_policy.py) only collects and updates; after every vector step it tells the run, which does what has come due. What
was measured is reports.py's, what is saved saving.py's, and signals are signals.py's.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import NoReturn

from rl_training.errors import Interrupted, RunError, UserError, one_line, warn
from rl_training.experiment.checkpoint_store import CheckpointStore
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.logging import JsonlSink, Sinks, TensorBoardSink
from rl_training.experiment.manifest import manifest_of
from rl_training.experiment.runs import RunDirectory
from rl_training.experiment.tracking import open_trackers, require_trackers
from rl_training.runtime import saving
from rl_training.runtime.cadence import after, due
from rl_training.runtime.callbacks import overriding
from rl_training.runtime.evaluator import Stopped
from rl_training.runtime.reports import Reports
from rl_training.runtime.run_parts import Clock, Parts, RunOptions, TrainResult
from rl_training.runtime.signals import Asked, Signals, listening
from rl_training.types import EnvStep, State, UpdateResult

__all__ = ["Clock", "Parts", "Run", "RunOptions", "TrainResult"]


class Run:
    """Use as a context manager around the loop; `finish()` saves, evaluates and gives the result."""

    def __init__(self, config: TrainConfig, parts: Parts, options: RunOptions) -> None:
        self.config, self.parts = config, parts
        self.clock = Clock()
        self.total = config.total_timesteps
        self.reports = Reports(config, parts, self.clock)
        self.recent = self.reports.recent
        self.checkpoint_path: Path | None = None
        self.settle: Callable[[], None] = lambda: None  # makes the updates that are still queued: the loop's, before anything is saved
        self._stop_reason: str | None = None
        self._save_asked = False
        self._is_saved = False  # nothing has happened since the newest checkpoint
        self._due_since: int | None = None  # where the clock stood before the last step, while what came due with it is not done
        self._promised = parts.notes.get("resume", "")
        self._callbacks = tuple(options.callbacks)
        self._on_step, self._on_update = overriding(self._callbacks, "on_step"), overriding(self._callbacks, "on_update")
        self._intervals = (config.log_interval, config.eval_interval, config.checkpoint_interval)
        self._next_due = 0  # before this environment step none of them is due
        with contextlib.ExitStack() as held:
            self._open(options, held)
            self._held = held.pop_all()

    # Life

    def _open(self, options: RunOptions, held: contextlib.ExitStack) -> None:
        """Make the run directory, or take up the one that is resumed: everything is read and checked before anything is written. `held`
        is let go of at the end."""
        self.signals: Signals = held.enter_context(listening())
        held.callback(self._close_actor)
        require_trackers(self.config.trackers)
        checkpoint, existing, reports = options.resume_from, options.goes_on_in, self.reports
        if checkpoint is not None:
            state = saving.restore(checkpoint, self.parts)
            self.clock.env_steps, self.clock.updates, self._due_since = state.env_steps, state.updates, state.due_since
            reports.restore(state)
        held.enter_context(self.signals.noting())
        self.directory = RunDirectory.create(self.config, options.run_suffix) if existing is None else existing
        held.callback(self.directory.release)
        self.store = CheckpointStore(self.directory.checkpoints, keep=self.config.keep_checkpoints)
        if existing is None:
            reports.num_records = 0
        else:
            self.store.cut_after(self.clock.env_steps)  # first: it decides where a run that is killed now goes on
            existing.sweep()
            reports.num_records = existing.cut_after(self.clock.env_steps, records=reports.num_records)
            existing.save_config(self.config)
            if reports.best_mean is not None and self.store.has(reports.best_step):
                self.store.mark_best(reports.best_step)  # a process killed between saving and linking left the link behind
        self.directory.update_metadata(**self.parts.notes)
        if checkpoint is not None:
            self.checkpoint_path = checkpoint.path
            self._is_saved = existing is not None and checkpoint.manifest.get("for_resume", True)
        if checkpoint is not None and self.clock.env_steps >= self.total and reports.is_evaluated:
            text = f"the run is at its end already (step {self.clock.env_steps:,} of {self.total:,}): nothing is trained"
            warn(f"{text}; a larger total_timesteps goes on")
        purge = None if existing is None else self.clock.env_steps + 1
        trackers = open_trackers(self.config.trackers, self.directory)
        path = self.directory.path
        sinks = Sinks([JsonlSink(path / "metrics.jsonl"), TensorBoardSink(path, purge_step=purge), *trackers])
        held.callback(sinks.close)
        reports.open(sinks)

    def _close_actor(self) -> None:
        with self.signals.noting():  # processes elsewhere take seconds to end, and are not to be left behind
            self.parts.actor.close()

    def __enter__(self) -> Run:
        for callback in reversed(self._callbacks):
            self._held.callback(callback.on_end, self)
        try:
            for callback in self._callbacks:
                callback.on_start(self)
        except BaseException as error:  # a callback that cannot start: `with` calls __exit__ only after __enter__ has returned
            self.__exit__(type(error), error, error.__traceback__)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Lets go of everything, whatever fails in doing so; an error that was on its way is the one that is told."""
        try:
            self._held.close()
        except Asked as asked:
            error = error or asked
        except Exception as failure:  # a callback's, in `on_end`
            if error is None:
                raise
            warn(f"{one_line(failure)}, while the run was ending", RuntimeWarning)
        kept = f"the last checkpoint is {self.checkpoint_path}" if self.checkpoint_path else "no checkpoint had been saved yet"
        if isinstance(error, KeyboardInterrupt) and self.signals.signum is not None:  # `Asked`, or what a library has made of it
            how = "asked twice, left at once without saving" if self.signals.came_twice else "interrupted while compiling"
            raise Interrupted(f"{how} ({kept})", signum=self.signals.signum, run_dir=self.directory.path) from None
        if error is None and self.signals.signum is not None:  # it came when the loop had ended
            raise Interrupted(f"interrupted at its end ({kept})", signum=self.signals.signum, run_dir=self.directory.path)
        if isinstance(error, (RunError, UserError, OSError)) and not isinstance(error, Interrupted):  # bad input would have shown before
            raise RunError(f"{error} ({kept})") from error

    def stop(self, reason: str) -> None:
        """End the run in good order after this step."""
        self._stop_reason = reason

    def save_soon(self) -> None:
        """Checkpoint when everything due at this step is done, so that a run resumed from there has nothing of this step left to do."""
        self._save_asked = True

    @property
    def running(self) -> bool:
        """Whether the loop should take another step."""
        if self.signals.signum is not None:
            self._leave(self.signals.signum)
        if self.clock.env_steps >= self.total:
            return False
        if self._due_since is not None:  # resumed where an evaluation was interrupted
            self._do_what_is_due(self._due_since)
        return self._stop_reason is None

    def _leave(self, signum: int) -> NoReturn:
        if not self._is_saved:
            self.checkpoint()
        raise Interrupted(
            f"interrupted at step {self.clock.env_steps}; saved {self.checkpoint_path}", signum=signum, run_dir=self.directory.path
        )

    # What the loop tells

    def status(self, what: str, text: str) -> None:
        """What the run is busy with beside its steps, or has learned about itself; the last word stands in metadata.json under `what`."""
        self.directory.update_metadata(**{what: text})
        for callback in self._callbacks:
            callback.on_status(self, what, text)

    def prepare_to_compile(self) -> None:
        """Before a step that is going to end in minutes of work: a signal or a kill then loses nothing."""
        if not self._is_saved:
            self.checkpoint()

    def updated(self, result: UpdateResult) -> None:
        self.clock.updates += result.num_gradient_steps
        self.reports.last_result = result
        for callback in self._on_update:
            callback.on_update(self, result)

    def stepped(self, before: int, step: EnvStep) -> None:
        """After each vector step, which took the clock from `before` to now: do what has come due."""
        now = self.clock.env_steps
        self._is_saved = False
        if step.episodes:
            self.reports.saw(step.episodes)
        for callback in self._on_step:
            callback.on_step(self, step)
        if now < self._next_due and not self._save_asked:
            return
        self._next_due = min((after(now, interval) for interval in self._intervals if interval > 0), default=self.total)
        self._do_what_is_due(before)

    def has_something_due(self, before: int) -> bool:
        """Whether anything that looks at what was learned follows the step from `before` to now, or the end does."""
        now = self.clock.env_steps
        return now >= self.total or any(due(before, now, interval) for interval in self._intervals)

    # What comes due

    def _do_what_is_due(self, before: int) -> None:
        """After the step from `before` to now, or what is left of it where a run is resumed that was interrupted in an evaluation."""
        now, config = self.clock.env_steps, self.config
        self._due_since = before
        if due(before, now, config.log_interval) and not self.reports.is_logged:
            self.log()
        if now >= self.total:  # the end saves before it evaluates
            return
        is_best = due(before, now, config.eval_interval) and self.evaluate()
        self._due_since = None
        asked, self._save_asked = self._save_asked, False
        if asked or due(before, now, config.checkpoint_interval):
            self.checkpoint()
        if is_best:
            if self._is_saved:
                self._save_records()
            else:  # for `best` only: without replay, and resume goes on from `latest`
                self._save(with_replay=False, for_resume=False)
            self._mark_best()

    def log(self) -> None:
        """Read the metrics, which stayed on the device until now, and write them."""
        record = self.reports.log()
        for callback in self._callbacks:
            callback.on_log(self, record)

    def evaluate(self) -> bool:
        """A greedy evaluation; whether it is the best so far (the first one on ties). A signal ends it: resumed, the run begins it anew."""
        saving.require_finite(self.parts, self.clock.env_steps)
        try:
            metrics = self.parts.evaluate(self.config.eval_episodes, lambda: self.signals.signum is not None).metrics()
        except Stopped:
            assert self.signals.signum is not None
            self._leave(self.signals.signum)
        is_best = self.reports.evaluated(metrics)
        for callback in self._callbacks:
            callback.on_eval(self, metrics)
        return is_best

    def checkpoint(self) -> Path:
        """Save everything, as the newest checkpoint."""
        self.settle()
        self.checkpoint_path = self._save(with_replay=self.config.checkpoint_replay, for_resume=True)
        self._is_saved = True
        for callback in self._callbacks:
            callback.on_checkpoint(self, self.checkpoint_path)
        return self.checkpoint_path

    def _save(self, *, with_replay: bool, for_resume: bool) -> Path:
        saving.require_finite(self.parts, self.clock.env_steps)
        path = saving.save(self.store, self.config, self.parts, self.state_dict(), with_replay=with_replay, for_resume=for_resume)
        promise = self.parts.actor.resume_note or self.parts.notes.get("resume", "")
        if promise != self._promised:
            self._promised = promise
            self.directory.update_metadata(resume=promise)
        return path

    def _save_records(self) -> None:
        """Only what the run knows of itself has changed since the newest checkpoint, such as an evaluation: that is written anew."""
        self.store.rewrite(self.clock.env_steps, run=self.state_dict(), manifest=manifest_of(self.config))

    def _mark_best(self) -> None:
        self.store.mark_best(self.reports.best_step)
        for callback in self._callbacks:
            callback.on_best(self, self.store.path(self.reports.best_step))

    def finish(self) -> TrainResult:
        """The last checkpoint, then the final greedy evaluation, which can take long and may be killed. The checkpoint is then told what
        was measured: resumed after that, the run has nothing left to say."""
        told = self.reports.is_logged
        if not told:
            self.log()
        if not self._is_saved:
            self.checkpoint()
            told = True
        if not self.reports.is_evaluated:
            self.evaluate()
            self._due_since, told = None, False
        if not told:
            self._save_records()
        if self.reports.best_step == self.clock.env_steps:
            self._mark_best()
        stopped = self._stop_reason if self.clock.env_steps < self.total else None
        self.directory.update_metadata(stopped=stopped)
        assert self.checkpoint_path is not None  # saved above, or resumed from
        return TrainResult(self.directory.path, self.checkpoint_path, self.reports.final(), stopped)

    def state_dict(self) -> State:
        """What a run remembers of itself: `RunState` is what reads it."""
        clock = {"env_steps": self.clock.env_steps, "updates": self.clock.updates, "due_since": self._due_since}
        return {**clock, **self.reports.state_dict()}

"""A run around its loop: clock, run directory, logging, evaluation, checkpoints, interruption and resume.

A loop (off_policy.py, on_policy.py) only collects and updates; after every vector step it tells the run, which does what has come due.
"""

from __future__ import annotations

import contextlib
import inspect
import time
import warnings
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

import numpy as np
import torch

from rl_training.envs.episodes import one_line
from rl_training.envs.spaces import require_same_spaces
from rl_training.errors import CheckpointError, Interrupted, RunError, UserError
from rl_training.experiment.checkpointing import Checkpoint, CheckpointStore, manifest_of
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.logging import JsonlSink, Sinks, TensorBoardSink
from rl_training.experiment.runs import RunDirectory
from rl_training.experiment.tracking import open_trackers, require_trackers
from rl_training.runtime.cadence import after, due
from rl_training.runtime.callbacks import Callback, overriding
from rl_training.runtime.evaluator import Evaluate, Stopped
from rl_training.runtime.run_state import RunState
from rl_training.runtime.signals import Asked, Signals, listening
from rl_training.types import EnvStep, Episode, State, UpdateResult

RECENT_EPISODES = 100  # as many as Stable-Baselines3 averages rollout/ep_rew_mean over
CLIPPED_SHARE_WARNING = 0.05


@dataclass(frozen=True)
class RunOptions:
    """What a caller may add to a config: none of it changes what is learned."""

    run_suffix: str | None = None
    callbacks: Sequence[Callback] = ()
    env: Callable[..., Any] | None = None
    resume_from: Checkpoint | None = None
    goes_on_in: RunDirectory | None = None  # the run that is resumed, locked; without `resume_from` it has no checkpoint yet: start over


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


@dataclass
class Parts:
    """What a run is made of. Everything here that changes is saved with a checkpoint."""

    learner: Any  # update rule: state_dict() holds the acting network under `model_key`
    actor: Any
    replay: Any | None
    evaluate: Evaluate
    spaces: Mapping[str, Any]  # saved, so that a policy loads without making an environment
    exploration_rate: Callable[[int], float] | None = None
    notes: dict[str, str] = field(default_factory=dict)  # for metadata.json: what `auto` resolved to and why, what resume can promise


class Run:
    """Use as a context manager around the loop; `finish()` saves, evaluates and gives the result."""

    def __init__(self, config: TrainConfig, parts: Parts, options: RunOptions) -> None:
        self.config, self.parts = config, parts
        self.clock = Clock()
        self.total = config.total_timesteps
        self.recent: deque[Episode] = deque(maxlen=RECENT_EPISODES)
        self.num_episodes = 0
        self.best_mean: float | None = None
        self.best_step = 0
        self.last_result: UpdateResult | None = None
        self.checkpoint_path: Path | None = None
        self._last_evaluation: tuple[int, dict[str, float]] | None = None
        self._stop_reason: str | None = None
        self._save_asked = False
        self._is_saved = False  # nothing has happened since the newest checkpoint
        self._num_records = 0  # in metrics.jsonl
        self._due_since: int | None = None  # where the clock stood before the last step, while what came due with it is not done
        self._elapsed_before = 0.0
        self._logged_steps = 0
        self._promised = parts.notes.get("resume", "")
        self._callbacks = tuple(options.callbacks)
        self.settle: Callable[[], None] = lambda: None  # makes the updates that are still queued: the loop's, before anything is saved
        self._on_step, self._on_update = overriding(self._callbacks, "on_step"), overriding(self._callbacks, "on_update")
        self._warned_clipping = self._warned_cut = False
        self._intervals = (config.log_interval, config.eval_interval, config.checkpoint_interval)
        self._next_due = 0  # before this environment step none of them is due
        with contextlib.ExitStack() as held:
            self._open(options, held)
            self._held = held.pop_all()

    # Life

    def _open(self, options: RunOptions, held: contextlib.ExitStack) -> None:
        """Make the run directory, or take up the one that is resumed: everything is read and checked before anything is written. `held`
        is let go of at the end."""
        held.callback(self.parts.actor.envs.close)
        self.signals: Signals = held.enter_context(listening())
        require_trackers(self.config.trackers)
        checkpoint, existing = options.resume_from, options.goes_on_in
        if checkpoint is not None:
            try:
                self._restore(checkpoint)
            except (UserError, RunError):
                raise
            except Exception as error:  # parts may say anything of a state that is not theirs: it is chained, and the reason said
                reason = " ".join(f"{type(error).__name__}: {error}".split())
                raise CheckpointError(f"{checkpoint.path}: does not fit the run of its config ({reason:.300})") from error
        held.enter_context(self.signals.noting())
        if existing is None:
            self._num_records = 0
        self.directory = RunDirectory.create(self.config, options.run_suffix) if existing is None else existing
        held.callback(self.directory.release)
        self.store = CheckpointStore(self.directory.checkpoints, keep=self.config.keep_checkpoints)
        if existing is not None:
            self.store.cut_after(self.clock.env_steps)  # first: it decides where a run that is killed now goes on
            existing.sweep()
            self._num_records = existing.cut_after(self.clock.env_steps, records=self._num_records)
            existing.save_config(self.config)
            if self.best_mean is not None and self.store.has(self.best_step):
                self.store.mark_best(self.best_step)  # a process killed between saving and linking left the link behind
        self.directory.update_metadata(**self.parts.notes)
        if checkpoint is not None:
            self.checkpoint_path = checkpoint.path
            self._is_saved = existing is not None and checkpoint.manifest.get("for_resume", True)
        purge = None if existing is None else self.clock.env_steps + 1
        trackers = open_trackers(self.config.trackers, self.directory)
        path = self.directory.path
        self.sinks = Sinks([JsonlSink(path / "metrics.jsonl"), TensorBoardSink(path, purge_step=purge), *trackers])
        held.callback(self.sinks.close)
        self._began = self._logged_at = time.perf_counter()

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
        except Exception as failure:  # a callback's, in `on_end`
            if error is None:
                raise
            warnings.warn(f"{one_line(failure)}, while the run was ending", RuntimeWarning, stacklevel=2)
        kept = f"the last checkpoint is {self.checkpoint_path}" if self.checkpoint_path else "no checkpoint had been saved yet"
        if isinstance(error, Asked) and self.signals.signum is not None:
            how = "asked twice, left at once without saving" if self.signals.came_twice else "interrupted while compiling"
            raise Interrupted(f"{how} ({kept})", signum=self.signals.signum) from None
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
        raise Interrupted(f"interrupted at step {self.clock.env_steps}; saved {self.checkpoint_path}", signum=signum)

    def prepare_to_compile(self) -> None:
        """Before a step that is going to end in minutes of work: a signal or a kill then loses nothing."""
        if not self._is_saved:
            self.checkpoint()

    def has_something_due(self, before: int) -> bool:
        """Whether anything that looks at what was learned follows the step from `before` to now, or the end does."""
        now = self.clock.env_steps
        return now >= self.total or any(due(before, now, interval) for interval in self._intervals)

    # What the loop tells

    def status(self, what: str, text: str) -> None:
        """What the run is busy with beside its steps, or has learned about itself; the last word stands in metadata.json under `what`."""
        self.directory.update_metadata(**{what: text})
        for callback in self._callbacks:
            callback.on_status(self, what, text)

    def updated(self, result: UpdateResult) -> None:
        self.clock.updates += result.num_gradient_steps
        self.last_result = result
        for callback in self._on_update:
            callback.on_update(self, result)

    def stepped(self, before: int, step: EnvStep) -> None:
        """After each vector step, which took the clock from `before` to now: do what has come due."""
        now = self.clock.env_steps
        self._is_saved = False
        if step.episodes:
            self.recent.extend(step.episodes)
            self.num_episodes += len(step.episodes)
        for callback in self._on_step:
            callback.on_step(self, step)
        if now < self._next_due and not self._save_asked:
            return
        self._next_due = min((after(now, interval) for interval in self._intervals if interval > 0), default=self.total)
        self._do_what_is_due(before)

    def _do_what_is_due(self, before: int) -> None:
        """After the step from `before` to now, or what is left of it where a run is resumed that was interrupted in an evaluation."""
        now, config = self.clock.env_steps, self.config
        self._due_since = before
        if due(before, now, config.log_interval) and self._logged_steps != now:
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
                self._save(with_replay=False, link_latest=False)
            self._mark_best()

    # What comes due

    def evaluate(self) -> bool:
        """A greedy evaluation; whether it is the best so far (the first one on ties). A signal ends it: resumed, the run begins it anew."""
        self._require_finite()
        try:
            metrics = self.parts.evaluate(self.config.eval_episodes, lambda: self.signals.signum is not None).metrics()
        except Stopped:
            assert self.signals.signum is not None
            self._leave(self.signals.signum)
        self._warn_of_cut_episodes(metrics)
        self._last_evaluation = (self.clock.env_steps, metrics)
        is_best = self.best_mean is None or metrics["eval_return_mean"] > self.best_mean
        if is_best:
            self.best_mean, self.best_step = metrics["eval_return_mean"], self.clock.env_steps
        record = {
            "eval/mean_reward": metrics["eval_return_mean"],
            "eval/std_reward": metrics["eval_return_std"],
            "eval/mean_ep_length": metrics["eval_length_mean"],
        }
        self._write(record)
        for callback in self._callbacks:
            callback.on_eval(self, metrics)
        return is_best

    def log(self) -> None:
        """Read the metrics, which stayed on the device until now, and write them."""
        now = time.perf_counter()
        record = {
            "time/fps": (self.clock.env_steps - self._logged_steps) / max(now - self._logged_at, 1e-9),
            "time/time_elapsed": self.elapsed,
            "train/n_updates": float(self.clock.updates),
            "rollout/episodes": float(self.num_episodes),
        }
        self._logged_at, self._logged_steps = now, self.clock.env_steps
        if self.recent:
            record["rollout/ep_rew_mean"] = float(np.mean([episode.episode_return for episode in self.recent]))
            record["rollout/ep_len_mean"] = float(np.mean([episode.length for episode in self.recent]))
        if self.parts.exploration_rate is not None:
            record["rollout/exploration_rate"] = self.parts.exploration_rate(self.clock.env_steps)
        if self.last_result is not None:
            record.update({f"train/{name}": float(value) for name, value in self.last_result.metrics.items()})
            record["train/learning_rate"] = self.parts.learner.current_learning_rate(self.clock.env_steps)
            self._warn_of_clipping(record.get("train/clipped_share", 0.0))
            if not np.isfinite(record.get("train/loss", 0.0)):
                raise RunError(f"the loss is {record['train/loss']} at step {self.clock.env_steps}: learning has diverged")
        self._write(record)
        for callback in self._callbacks:
            callback.on_log(self, record)

    def _write(self, record: dict[str, float]) -> None:
        self.sinks.write(self.clock.env_steps, record)
        self._num_records += 1

    def _warn_of_cut_episodes(self, metrics: Mapping[str, float]) -> None:
        if metrics["eval_cut_episodes"] and not self._warned_cut:
            self._warned_cut = True
            warnings.warn(
                f"evaluation at step {self.clock.env_steps}: {metrics['eval_cut_episodes']} of {metrics['eval_episodes']} episodes went on "
                f"after eval_max_steps = {self.config.eval_max_steps:,} steps; they were cut there and count as they stood",
                RuntimeWarning,
                stacklevel=3,
            )

    def _warn_of_clipping(self, share: float) -> None:
        if share > CLIPPED_SHARE_WARNING and not self._warned_clipping:
            self._warned_clipping = True
            warnings.warn(
                f"{share:.0%} of the target's mass lies outside [v_min, v_max] at step {self.clock.env_steps}: widen the support",
                RuntimeWarning,
                stacklevel=2,
            )

    def checkpoint(self) -> Path:
        """Save everything, as the newest checkpoint."""
        self.settle()
        self.checkpoint_path = self._save(with_replay=self.config.checkpoint_replay, link_latest=True)
        self._is_saved = True
        for callback in self._callbacks:
            callback.on_checkpoint(self, self.checkpoint_path)
        return self.checkpoint_path

    def _mark_best(self) -> None:
        self.store.mark_best(self.best_step)
        for callback in self._callbacks:
            callback.on_best(self, self.store.path(self.best_step))

    def _save(self, *, with_replay: bool, link_latest: bool) -> Path:
        self._require_finite()
        learner = self.parts.learner.state_dict()
        model = learner.pop(self.parts.learner.model_key)
        training = {"learner": learner, "actor": self.parts.actor.state_dict(), "run": self.state_dict()}
        replay = _state_in_place(self.parts.replay) if self.parts.replay is not None and with_replay else None
        manifest = {
            **manifest_of(self.config),
            "spaces": dict(self.parts.spaces),
            "for_resume": link_latest,  # False: kept as `best` only, and a run that has nothing else starts over
        }
        path = self.store.save(
            self.clock.env_steps, model=model, training=training, replay=replay, manifest=manifest, link_latest=link_latest
        )
        self._note_what_resume_promises()
        return path

    def _save_records(self) -> None:
        """Only what the run knows of itself has changed since the newest checkpoint, such as an evaluation: that is written anew."""
        self.store.rewrite(self.clock.env_steps, run=self.state_dict(), manifest=manifest_of(self.config))

    def _note_what_resume_promises(self) -> None:
        note = self.parts.actor.envs.resume_note
        promise = note or self.parts.notes.get("resume", "")
        if promise != self._promised:
            self._promised = promise
            self.directory.update_metadata(resume=promise)

    def _require_finite(self) -> None:
        """A network that has diverged is not worth an evaluation, and never takes the place of a good checkpoint."""
        finite = [torch.isfinite(parameter).all() for parameter in self.parts.actor.network.parameters()]
        if finite and not bool(torch.stack(finite).all()):  # read once, since each reading waits for the device
            raise RunError(f"the network's parameters are not finite at step {self.clock.env_steps}: learning has diverged")

    def finish(self) -> TrainResult:
        """The last checkpoint, then the final greedy evaluation, which can take long and may be killed. The checkpoint is then told what
        was measured: resumed after that, the run has nothing left to say."""
        now = self.clock.env_steps
        told = self._logged_steps == now
        if not told:
            self.log()
        if not self._is_saved:
            self.checkpoint()
            told = True
        if self._last_evaluation is None or self._last_evaluation[0] != now:
            self.evaluate()
            self._due_since, told = None, False
        if not told:
            self._save_records()
        assert self._last_evaluation is not None and self.checkpoint_path is not None
        if self.best_step == now:
            self._mark_best()
        stopped = self._stop_reason if now < self.total else None
        self.directory.update_metadata(stopped=stopped)
        replay = self.parts.replay
        metrics = {
            "global_step": now,
            **self._last_evaluation[1],
            "buffer_size": 0 if replay is None else replay.num_transitions + self.parts.actor.feed.num_open,
            "num_updates": self.clock.updates,
            "num_episodes": self.num_episodes,
            "best_eval_return_mean": self.best_mean if self.best_mean is not None else float("nan"),
            "best_step": self.best_step,
            "wall_time_s": self.elapsed,
        }
        return TrainResult(self.directory.path, self.checkpoint_path, metrics, stopped)

    # State

    @property
    def elapsed(self) -> float:
        """Seconds spent in this run, resumed parts included."""
        return self._elapsed_before + time.perf_counter() - self._began

    def state_dict(self) -> State:
        return {
            "env_steps": self.clock.env_steps,
            "updates": self.clock.updates,
            "recent": [list(episode) for episode in self.recent],
            "num_episodes": self.num_episodes,
            "best_mean": self.best_mean,
            "best_step": self.best_step,
            "last_evaluation": None if self._last_evaluation is None else list(self._last_evaluation),
            "logged_steps": self._logged_steps,
            "due_since": self._due_since,
            "num_records": self._num_records,
            # An on-policy run logs its last update for many steps: a resumed one must go on doing so.
            "last_metrics": None if self.last_result is None else {name: float(x) for name, x in self.last_result.metrics.items()},
            "elapsed": self.elapsed,
        }

    def _restore(self, checkpoint: Checkpoint) -> None:
        require_same_spaces(checkpoint.spaces, self.parts.spaces, source=checkpoint.path)
        training = checkpoint.load_training()
        self.parts.learner.load_state_dict({**training["learner"], self.parts.learner.model_key: checkpoint.load_model()})
        replay = self.parts.replay
        saved = None if replay is None else checkpoint.load_replay()
        if replay is not None and saved is not None:
            replay.load_state_dict(saved)
        self.parts.actor.load_state_dict(training["actor"])  # ends in the replay what cannot go on
        state = RunState.parse(training["run"], source=str(checkpoint.path), step=checkpoint.step)
        self.clock.env_steps, self.clock.updates = state.env_steps, state.updates
        self.recent.extend(Episode(*episode) for episode in state.recent)
        self.num_episodes = state.num_episodes
        self.best_mean, self.best_step = state.best_mean, state.best_step
        self._last_evaluation = state.last_evaluation
        self._logged_steps = state.logged_steps
        self._due_since, self._num_records = state.due_since, state.num_records
        if state.last_metrics is not None:
            self.last_result = UpdateResult({name: torch.tensor(x, dtype=torch.float64) for name, x in state.last_metrics.items()}, 0)
        self._elapsed_before = state.elapsed
        if replay is not None and saved is None:
            # Fill the memory again before learning from it, by the policy as it is.
            self.parts.actor.refill_from(self.clock.env_steps)
            warnings.warn(f"{checkpoint.path} holds no replay: the run goes on with an empty one, not exactly as it was", stacklevel=2)


def _state_in_place(replay: Any) -> State:
    """Its state without a second copy of its memory: nothing is added before it is written. A buffer of a user's own may not offer that."""
    in_place = "copy" in inspect.signature(replay.state_dict).parameters
    state: State = replay.state_dict(copy=False) if in_place else replay.state_dict()
    return state

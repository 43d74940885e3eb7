"""The progress of a run: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import Progress as RichProgress

from rl_training.experiment.files import write_json
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.figures import evaluated, figure, spread
from rl_training.runtime.progress_line import Fitted, can_redraw, duration
from rl_training.types import EnvStep

if TYPE_CHECKING:
    from rl_training.runtime.run import Run

REFRESH_SECONDS = 0.2


def _seen(run: Run) -> dict[str, str]:
    """The mean return of the last 100 episodes and ε, as they are shown."""
    seen = {}
    if run.recent:
        seen["return"] = figure(sum(episode.episode_return for episode in run.recent) / len(run.recent))
    if run.parts.exploration_rate is not None:
        seen["epsilon"] = f"{run.parts.exploration_rate(run.clock.env_steps):.2f}"
    return seen


class Progress(Callback):
    """Steps/s, mean return of the last 100 episodes, ε and time left."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True)
        self._bar: RichProgress | None = None
        self._next = 0.0

    def on_preparing(self, text: str) -> None:
        self._console.print(text, highlight=False)

    def on_start(self, run: Run) -> None:
        config = run.config
        steps = f"{run.total:,} steps" if run.clock.env_steps == 0 else f"steps {run.clock.env_steps:,} to {run.total:,}"
        device = run.parts.notes.get("device", config.device)
        self._console.print(f"{config.algo} on {config.env_id}, seed {config.seed}, {steps} on {device}", highlight=False)
        torso = run.parts.notes.get("torso", "")  # the images' size may decide it, and it decides how fast the run is
        if torso and "as configured" not in torso:
            self._console.print(f"torso: {torso}", highlight=False)
        self._console.print(f"run directory: {run.directory.path}", highlight=False, soft_wrap=True)
        self._since, self._first = time.perf_counter(), run.clock.env_steps
        if can_redraw(self._console):
            self._bar = RichProgress(Fitted(self._console), console=self._console)
            self._task = self._bar.add_task("", total=run.total, completed=run.clock.env_steps)
            self._bar.start()

    def on_status(self, run: Run, what: str, text: str) -> None:
        self._console.print(text, highlight=False)  # above the bar, where there is one

    def on_step(self, run: Run, step: EnvStep) -> None:
        if self._bar is None or (now := time.perf_counter()) < self._next:
            return
        self._next = now + REFRESH_SECONDS
        fields: dict[str, Any] = {"rate": (run.clock.env_steps - self._first) / max(now - self._since, 1e-9), **_seen(run)}
        self._bar.update(self._task, completed=run.clock.env_steps, **fields)

    def on_log(self, run: Run, record: Mapping[str, float]) -> None:
        if self._bar is not None:
            return
        parts = [f"step {run.clock.env_steps:,}/{run.total:,}", f"{record['time/fps']:,.0f} steps/s"]
        if "rollout/ep_rew_mean" in record:
            parts.append(f"return {figure(record['rollout/ep_rew_mean'])}")
        if "rollout/exploration_rate" in record:
            parts.append(f"ε {record['rollout/exploration_rate']:.2f}")
        parts.append(f"{duration(max(0, run.total - run.clock.env_steps) / max(record['time/fps'], 1e-9))} left")
        self._console.print("  ".join(parts), highlight=False)

    def on_eval(self, run: Run, metrics: Mapping[str, float]) -> None:
        if self._bar is not None:
            text = spread(metrics["eval_return_mean"], metrics["eval_return_std"])
            self._bar.update(self._task, completed=run.clock.env_steps, evaluation=text)
        else:
            self._console.print(f"step {run.clock.env_steps:,}: evaluation {evaluated(metrics)}", highlight=False)

    def on_checkpoint(self, run: Run, path: Path) -> None:
        self._next = 0.0  # saving may have taken a while: show the bar again at once

    def on_end(self, run: Run) -> None:
        if self._bar is not None:
            self._bar.update(self._task, completed=run.clock.env_steps)
            self._bar.stop()
            self._bar = None


class ProgressFile(Callback):
    """The same for whoever started this process, in a file that holds one JSON object: `train --jobs` reads it."""

    def __init__(self, path: Path) -> None:
        self._path, self._next = path, 0.0

    def on_step(self, run: Run, step: EnvStep) -> None:
        if (now := time.perf_counter()) < self._next:
            return
        self._next = now + REFRESH_SECONDS
        write_json(self._path, {"completed": run.clock.env_steps, "total": run.total, **_seen(run)})

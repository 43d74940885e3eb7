"""Runs side by side: on a terminal a line for each that is under way, elsewhere a line for each start and end."""

from __future__ import annotations

import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any

import typer
from rich.console import Console
from rich.progress import Progress, TaskID
from typing_extensions import Self

from rl_training.commands.output import say
from rl_training.runtime.figures import figure
from rl_training.runtime.progress_line import Fitted, can_redraw
from rl_training.runtime.seeds import SeedRun, final_return


class SideBySide:
    """Told by `train_side_by_side`. What stays is written to stdout, what changes is shown on stderr."""

    def __init__(self, *, quiet: bool, console: Console | None = None) -> None:
        self._quiet, self._console = quiet, console or Console(stderr=True)
        self._live = can_redraw(self._console) and not quiet
        self._lines = Progress(Fitted(self._console), console=self._console, disable=not self._live, transient=True)
        self._tasks: dict[int, TaskID] = {}
        self._began: dict[int, tuple[float, int]] = {}  # when a run was first seen, and at which step

    def __enter__(self) -> Self:
        self._lines.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._lines.stop()

    def started(self, seed: int) -> None:
        if self._live:
            self._tasks[seed] = self._lines.add_task("", total=1, name=f"seed {seed}")
        elif not self._quiet:
            typer.echo(f"seed {seed}: started")

    def stepped(self, seed: int, progress: Mapping[str, Any]) -> None:
        if not self._live:
            return
        now, done = time.perf_counter(), int(progress["completed"])
        since, first = self._began.setdefault(seed, (now, done))
        fields: dict[str, Any] = {key: progress.get(key) for key in ("return", "epsilon")}
        fields["rate"] = (done - first) / max(now - since, 1e-9)
        self._lines.update(self._tasks[seed], completed=done, total=progress["total"], **fields)

    def ended(self, run: SeedRun) -> None:
        if self._live:
            self._lines.remove_task(self._tasks.pop(run.seed))
        if run.checkpoint is None:
            say(f"seed {run.seed}", run.message or f"ended with exit code {run.exit_code}")
        elif self._quiet:
            typer.echo(run.checkpoint)
        else:
            typer.echo(f"seed {run.seed}: greedy return {figure(final_return(run.checkpoint))}, {run.checkpoint}")

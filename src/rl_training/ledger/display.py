"""How a suite gets on: a bar over all its steps and one line per run that ended; plain lines where there is no terminal."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.progress import Progress
from typing_extensions import Self

from rl_training.ledger.records import Record
from rl_training.ledger.suites import Plan
from rl_training.runtime.figures import figure
from rl_training.runtime.progress_line import Fitted, can_redraw


class Display:
    """Told by the runner; writes to stderr."""

    def __init__(self, total_runs: int, total_steps: int, *, quiet: bool = False, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True, quiet=quiet)
        self._total, self._ended = total_runs, 0
        self._steps: dict[str, int] = {}
        self._bar = Progress(
            Fitted(self._console),
            console=self._console,
            disable=quiet or not can_redraw(self._console),
        )
        self._task = self._bar.add_task("", total=total_steps, name=f"0/{total_runs} runs")
        self._since = time.perf_counter()

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._bar.stop()

    def started(self, plan: Plan) -> None:
        self.stepped(plan, 0)

    def stepped(self, plan: Plan, step: int) -> None:
        self._steps[plan.name] = step
        done = sum(self._steps.values())
        rate = done / max(time.perf_counter() - self._since, 1e-9)
        self._bar.update(self._task, completed=done, rate=rate, name=f"{self._ended}/{self._total} runs")

    def finished(self, plan: Plan, record: Record, *, elsewhere: bool = False) -> None:
        """elsewhere: by another process that works on the same folder."""
        best, final = record.score("best"), record.score("final")
        seconds = record.raw.get("wall_time_s", 0)
        found = f"best {figure(best)} (step {record.raw.get('best_step')}), final {figure(final)}"
        self._line(plan, f"{found}, {seconds:.0f} s{', made elsewhere' * elsewhere}")

    def failed(self, plan: Plan, reason: str) -> None:
        self._line(plan, f"FAILED: {reason}")

    def warned(self, plan: Plan, text: str) -> None:
        self._print(f"{plan.name}: warning: {text}")

    def _print(self, text: str) -> None:
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)

    def _line(self, plan: Plan, text: str) -> None:
        self._ended += 1
        self._print(f"[{self._ended}/{self._total}] {plan.name}: {text}")
        self.stepped(plan, plan.config.total_timesteps)

"""How a suite gets on: a bar over all its steps and one line per run that ended; plain lines where there is no terminal."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from typing_extensions import Self

from rl_training.ledger.records import Record
from rl_training.ledger.suites import Plan


class Display:
    """Told by the runner; writes to stderr."""

    def __init__(self, total_runs: int, total_steps: int, *, quiet: bool = False, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True, quiet=quiet)
        self._total, self._ended = total_runs, 0
        self._steps: dict[str, int] = {}
        self._bar = Progress(
            BarColumn(bar_width=24),
            TextColumn("{task.completed:,.0f}/{task.total:,.0f} steps"),
            TextColumn("{task.fields[runs]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=self._console,
            disable=quiet or not self._console.is_terminal,
        )
        self._task = self._bar.add_task("", total=total_steps, runs="")

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._bar.stop()

    def started(self, plan: Plan) -> None:
        self.stepped(plan, 0)

    def stepped(self, plan: Plan, step: int) -> None:
        self._steps[plan.name] = step
        runs = f"{self._ended}/{self._total} runs"
        self._bar.update(self._task, completed=sum(self._steps.values()), runs=runs)

    def finished(self, plan: Plan, record: Record, *, elsewhere: bool = False) -> None:
        """elsewhere: by another process that works on the same folder."""
        best, final = record.score("best"), record.score("final")
        seconds = record.raw.get("wall_time_s", 0)
        self._line(
            plan,
            f"best {best:.1f} (step {record.raw.get('best_step')}), final {final:.1f}, {seconds:.0f} s{', made elsewhere' * elsewhere}",
        )

    def failed(self, plan: Plan, reason: str) -> None:
        self._line(plan, f"FAILED: {reason}")

    def _line(self, plan: Plan, text: str) -> None:
        self._ended += 1
        self._console.print(f"[{self._ended}/{self._total}] {plan.name}: {text}", highlight=False, markup=False, soft_wrap=True)
        self.stepped(plan, plan.config.total_timesteps)

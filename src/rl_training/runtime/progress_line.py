"""One line about a run under way that fits the terminal: what matters least is left out first, and the time left never."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.progress import ProgressColumn, Task
from rich.text import Text

WIDEST_BAR, NARROWEST_BAR, GAP = 24, 6, "  "
LEFT_OUT_FIRST = ("epsilon", "rate", "evaluation", "return", "name", "steps")


def can_redraw(console: Console) -> bool:
    """Whether a line can be written again in its place: not in a file or pipe, nor on a dumb terminal, such as an editor's shell."""
    return console.is_terminal and not console.is_dumb_terminal


def duration(seconds: float) -> str:
    """`1:02:03`, or `2:03` where there is no hour in it."""
    whole = int(seconds + 0.5)
    hours, minutes = divmod(whole // 60, 60)
    return f"{hours}:{minutes:02}:{whole % 60:02}" if hours else f"{minutes}:{whole % 60:02}"


def pieces(done: float, total: float, fields: Mapping[str, Any]) -> dict[str, str]:
    """What can be said, in the order in which it stands. Fields: name, rate (steps/s), return, epsilon, evaluation; None is left out."""
    rate = fields.get("rate") or 0.0
    left = "done" if done >= total else f"{duration((total - done) / rate)} left" if rate > 0 else "-:-- left"
    words = {"return": "return {}", "epsilon": "ε {}", "evaluation": "eval {}"}
    said = {name: form.format(fields[name]) for name, form in words.items() if fields.get(name) is not None}
    name = {"name": str(fields["name"])} if fields.get("name") else {}
    speed = {"rate": f"{rate:,.0f}/s"} if rate > 0 else {}
    return {**name, "steps": f"{done:,.0f}/{total:,.0f}", **speed, **said, "left": left}


def fitted(done: float, total: float, fields: Mapping[str, Any], width: int) -> Text:
    """The line in at most `width` characters: a bar in what the words leave."""
    said = pieces(done, total, fields)
    for name in LEFT_OUT_FIRST:
        if len(GAP.join(said.values())) + NARROWEST_BAR + len(GAP) <= width:
            break
        said.pop(name, None)
    room = width - len(GAP.join(said.values())) - len(GAP)
    line = Text(no_wrap=True, overflow="crop")
    if "name" in said:
        line.append(said.pop("name") + GAP)
    if room >= NARROWEST_BAR:
        bar = min(room, WIDEST_BAR)
        filled = min(bar, int(bar * done / max(total, 1)))
        line.append("━" * filled, "green").append("━" * (bar - filled), "dim").append(GAP)
    return line.append(GAP.join(said.values()))


class Fitted(ProgressColumn):
    """The only column of a rich progress display: every task's line, as wide as the terminal is now."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console

    def render(self, task: Task) -> Text:
        return fitted(task.completed, task.total or 0, task.fields, self._console.width)

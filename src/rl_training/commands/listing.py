"""`algos` and `doctor`: what there is."""

from __future__ import annotations

import itertools
import shutil
import textwrap
from collections.abc import Sequence

import typer

NARROWEST = 16
"""Characters that a column of a table keeps, however narrow the terminal is: a name or a paper's number whole."""


def algos() -> None:
    """Every algorithm: what it is, its parts, its paper."""
    from rl_training.experiment.registry import algorithm_names, get_algorithm_spec

    rows = [get_algorithm_spec(name) for name in algorithm_names()]
    _table(("algo", "what it is", "parts", "paper"), [(row.name, row.summary, ", ".join(row.parts), row.paper) for row in rows])


def _table(header: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
    """On a terminal that is too narrow for it, the widest columns' cells go on in the next line."""
    widths = [max(len(cell) for cell in column) for column in zip(header, *rows, strict=True)]
    gap = "  "
    whole = sum(widths) + len(gap) * (len(widths) - 1)
    for _ in range(whole - shutil.get_terminal_size((whole, 24)).columns):
        if (widest := max(widths)) > NARROWEST:
            widths[widths.index(widest)] -= 1
    for row in (header, tuple("-" * width for width in widths), *rows):
        cells = [textwrap.wrap(cell, width, break_on_hyphens=False) for cell, width in zip(row, widths, strict=True)]
        for line in itertools.zip_longest(*cells, fillvalue=""):
            typer.echo(gap.join(f"{part:<{width}}" for part, width in zip(line, widths, strict=True)).rstrip())


def doctor(
    seconds: float = typer.Option(10.0, "--seconds", min=0.0, max=600.0, help="For how long to measure speed; 0: not at all."),
) -> None:
    """What is installed, what this machine has, which environments can be made, and how fast it is."""
    from rl_training.runtime.doctor import examine

    section = ""
    for line in examine(seconds):
        if line.section != section:
            section = line.section
            typer.echo(section)
        typer.echo(f"  {line.name:<44} {line.finding}")

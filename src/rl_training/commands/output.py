"""What commands print in one way."""

from __future__ import annotations

import itertools
import shutil
import sys
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

import typer

from rl_training.runtime.figures import evaluated

if TYPE_CHECKING:
    from rl_training.runtime.run import TrainResult


NARROWEST = 16
"""Characters that a column of a table keeps, however narrow the terminal is: a name or a paper's number whole."""


def say(kind: str, message: object) -> None:
    """One line on stderr."""
    print(f"{kind}: {' '.join(str(message).split())}", file=sys.stderr)


def show_result(result: TrainResult, quiet: bool) -> None:
    """What a training run ended with."""
    if quiet:
        typer.echo(result.checkpoint_path)
        return
    metrics = result.metrics
    typer.echo(f"run:        {result.run_dir}")
    typer.echo(f"checkpoint: {result.checkpoint_path}")
    typer.echo(f"greedy return {evaluated(metrics)} at step {metrics['global_step']:,}")


def show_next(lines: Sequence[str]) -> None:
    """What to type next (following.py)."""
    typer.echo("\n  ".join(["next:", *lines]))


def table(header: tuple[str, ...], rows: Sequence[tuple[str, ...]], *, indent: str = "") -> None:
    """On a terminal that is too narrow for it, the widest columns' cells go on in the next line. A row of one cell is a heading."""
    full = [row for row in rows if len(row) == len(header)]
    widths = [max(len(cell) for cell in column) for column in zip(header, *full, strict=True)]
    gap = "  "
    whole = len(indent) + sum(widths) + len(gap) * (len(widths) - 1)
    for _ in range(whole - shutil.get_terminal_size((whole, 24)).columns):
        if (widest := max(widths)) > NARROWEST:
            widths[widths.index(widest)] -= 1
    for row in (header, tuple("-" * width for width in widths), *rows):
        if len(row) != len(header):
            typer.echo(f"\n{row[0]}")
            continue
        cells = [textwrap.wrap(cell, width, break_on_hyphens=False) for cell, width in zip(row, widths, strict=True)]
        for line in itertools.zip_longest(*cells, fillvalue=""):
            typer.echo(indent + gap.join(f"{part:<{width}}" for part, width in zip(line, widths, strict=True)).rstrip())

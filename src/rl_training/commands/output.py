"""What commands print in one way."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from rl_training.runtime.run import TrainResult


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
    typer.echo(
        f"greedy return {metrics['eval_return_mean']:.1f} ± {metrics['eval_return_std']:.1f} over {metrics['eval_episodes']} episodes "
        f"at step {metrics['global_step']}"
    )

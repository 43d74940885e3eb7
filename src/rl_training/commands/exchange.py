"""`export`: a policy that leaves the package."""

from __future__ import annotations

import typer

from rl_training.commands.options import CHECKPOINT


def export(
    checkpoint: str = CHECKPOINT,
    output: str = typer.Option(
        ..., "-o", "--output", metavar="FILE", help="policy.onnx (extra `export`), or policy.pt2 as torch.export writes it."
    ),
) -> None:
    """Write a checkpoint's greedy policy as one file that needs nothing of this package, once it acts as the package does."""
    from rl_training.exchange.export import export_policy

    typer.echo(export_policy(checkpoint, output))

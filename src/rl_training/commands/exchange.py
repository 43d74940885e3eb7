"""`export` and `import-sb3`: policies that leave the package, and weights that come in."""

from __future__ import annotations

import typer

from rl_training.commands.options import CHECKPOINT


def export(
    checkpoint: str = CHECKPOINT,
    output: str = typer.Option(
        ..., "-o", "--output", metavar="FILE", help="policy.onnx (extra `export`), or policy.pt2 as torch.export writes it."
    ),
) -> None:
    """Write a checkpoint's greedy policy as one file. The file runs without this package, and is checked against it first."""
    from rl_training.exchange.export import export_policy

    typer.echo(export_policy(checkpoint, output))


def import_sb3(
    file: str = typer.Argument(..., metavar="MODEL.zip", help="What Stable-Baselines3's DQN or sb3-contrib's QRDQN saved (MlpPolicy)."),
    output: str = typer.Option(..., "-o", "--output", metavar="DIR", help="Where to write the checkpoint."),
    env: str | None = typer.Option(None, "--env", metavar="ID", help="The environment it was trained on: the zip does not say."),
    activation: str | None = typer.Option(None, "--activation", help="Between its layers, where the zip cannot be read for it."),
) -> None:
    """Make a checkpoint of a Stable-Baselines3 model. For eval, predict and export; nothing in the model is unpickled."""
    from rl_training.exchange.sb3 import import_sb3 as make

    typer.echo(make(file, output, env_id=env, activation=activation))

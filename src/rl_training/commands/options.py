"""Options that several commands take."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer


def complete_row(incomplete: str) -> list[str]:
    """For shells: the algorithms that begin so."""
    from rl_training.experiment.registry import algorithm_names

    return [name for name in algorithm_names() if name.startswith(incomplete)]


def complete_config(incomplete: str) -> list[str]:
    """For shells: the shipped configs and the YAML files here that begin so."""
    from rl_training.experiment.shipped import shipped_configs

    here = sorted(str(path) for path in Path().glob("*.yaml"))
    return [name for name in (*here, *(each.removesuffix(".yaml") for each in shipped_configs())) if name.startswith(incomplete)]


_CONFIG: dict[str, Any] = {
    "metavar": "FILE",
    "help": "A config file, or a shipped one by name: dqn/cartpole.",
    "autocompletion": complete_config,
}
CONFIG = typer.Option(..., "--config", **_CONFIG)
OWN_CONFIG = typer.Option(None, "--config", **_CONFIG)
ROW = typer.Argument(None, metavar="ROW", help="An algorithm to train on --env, such as dqn.", autocompletion=complete_row)
CHECKPOINT = typer.Option(..., "--checkpoint", metavar="PATH", help="A checkpoint, a file in it, or a run's directory (its latest).")
TOTAL = typer.Option(None, "--total-timesteps", metavar="N", help="Environment steps at which training ends.")
DEVICE = typer.Option(None, "--device", help="auto, cpu, cuda, cuda:<number> or mps.")
QUIET = typer.Option(False, "--quiet", help="No progress; print only where the checkpoint is.")

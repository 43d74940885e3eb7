"""Options that several commands take."""

from __future__ import annotations

import typer

CONFIG = typer.Option(..., "--config", metavar="FILE", help="A config file, or a shipped one by name: dqn/cartpole.")
CHECKPOINT = typer.Option(..., "--checkpoint", metavar="PATH", help="A checkpoint, a file in it, or a run's directory (its latest).")
TOTAL = typer.Option(None, "--total-timesteps", metavar="N", help="Environment steps at which training ends.")
DEVICE = typer.Option(None, "--device", help="auto, cpu, cuda, cuda:<number> or mps.")
QUIET = typer.Option(False, "--quiet", help="No progress; print only where the checkpoint is.")

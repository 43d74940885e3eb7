"""`algos` and `doctor`: what there is."""

from __future__ import annotations

import typer

from rl_training.commands.output import table


def algos() -> None:
    """Every algorithm: what it is, its parts, its paper."""
    from rl_training.experiment.registry import algorithm_names, get_algorithm_spec

    rows = [get_algorithm_spec(name) for name in algorithm_names()]
    table(("algo", "what it is", "parts", "paper"), [(row.name, row.summary, ", ".join(row.parts), row.paper) for row in rows])


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

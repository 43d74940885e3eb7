"""`algos` and `doctor`: what there is."""

from __future__ import annotations

import shutil
import textwrap

import typer

from rl_training.commands.output import table


def algos() -> None:
    """List the algorithms: what each is, its parts, its paper."""
    from rl_training.experiment.registry import algorithm_names, get_algorithm_spec

    rows = [get_algorithm_spec(name) for name in algorithm_names()]
    table(("algo", "what it is", "parts", "paper"), [(row.name, row.summary, ", ".join(row.parts), row.paper) for row in rows])


def doctor(
    seconds: float = typer.Option(10.0, "--seconds", min=0.0, max=600.0, help="For how long to measure speed; 0: not at all."),
) -> None:
    """Say what is installed here and how fast it is. Also: the devices found, and which environments can be made."""
    from rl_training.runtime.doctor import examine

    section = ""
    for line in examine(seconds):
        if line.section != section:
            section = line.section
            typer.echo(section)
        width = shutil.get_terminal_size((140, 24)).columns
        name = f"  {line.name:<{min(44, max(width - 36, 0))}} "
        rest = textwrap.wrap(line.finding, max(width - len(name), 24), break_on_hyphens=False) or [""]
        typer.echo("\n".join([name + rest[0], *(" " * len(name) + more for more in rest[1:])]).rstrip())

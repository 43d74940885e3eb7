"""`configs`: the shipped configs."""

from __future__ import annotations

from math import inf
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from rl_training.commands.options import complete_config
from rl_training.commands.output import show_next, table
from rl_training.errors import UserError

if TYPE_CHECKING:
    from rl_training.experiment.shipped import Shipped

GAMES = ("ALE/", "MinAtar/")
"""Ids that say more than the name of their task: Breakout is a game of both."""

configs_app = typer.Typer(rich_markup_mode=None, help="List, show or copy the shipped configs.")


@configs_app.callback(invoke_without_command=True)
def configs(
    ctx: typer.Context, schema: bool = typer.Option(False, "--schema", help="Print a JSON Schema of configs, for editors.")
) -> None:
    if schema:
        import json

        from rl_training.experiment.schema import config_schema

        typer.echo(json.dumps(config_schema(), indent=1))
    elif ctx.invoked_subcommand is None:
        list_configs()


@configs_app.command("list")
def list_configs() -> None:
    """List the shipped configs by task, the best first. `train --config` takes their names."""
    from rl_training.experiment.shipped import describe_shipped, reached
    from rl_training.ledger.text import reached_text

    known, configs = reached(), describe_shipped()
    tasks = {(each.env_id, str(each.env_kwargs)): known[each.name]["task"] for each in configs if each.name in known}
    by_task: dict[str, list[Shipped]] = {}
    for each in configs:
        game = each.env_id.startswith(GAMES)
        by_task.setdefault(each.env_id if game else tasks.get((each.env_id, str(each.env_kwargs)), each.env_id), []).append(each)
    rows: list[tuple[str, ...]] = []
    for task, here in sorted(by_task.items()):
        rows.append((task,))
        for each in sorted(here, key=lambda config: -known.get(config.name, {"mean": -inf})["mean"]):
            figures = reached_text(known[each.name]) if each.name in known else "not measured"
            rows.append((each.name, f"{each.total_timesteps:,}", figures))
    table(("config", "steps", "reached"), rows, indent="  ")
    typer.echo("\nReached: the greedy return of the best checkpoint, as the interquartile mean\nover seeds [95% interval].")
    show_next(["rl-training train --config dqn/cartpole", "rl-training configs show dqn/cartpole"])


CONFIG_NAME = typer.Argument(..., metavar="NAME", help="Such as dqn/cartpole.", autocompletion=complete_config)


@configs_app.command("show")
def show_config(name: str = CONFIG_NAME) -> None:
    """Print a config, and where its file is."""
    from rl_training.experiment.config import find_config, load_config

    load_config(name)  # what cannot be trained is not shown as if it could
    found = find_config(name)
    typer.echo(f"# {found}\n{found.read_text(encoding='utf-8')}", nl=False)


@configs_app.command("copy")
def copy_config(
    name: str = CONFIG_NAME,
    to: str | None = typer.Argument(None, metavar="FILE", help="Where to; if not given, <row>_<name>.yaml in this folder."),
    force: bool = typer.Option(False, "--force", help="Write over a file that is there."),
) -> None:
    """Copy a config to a file of your own, to change it."""
    from rl_training.experiment.config import find_config, load_config
    from rl_training.experiment.files import reason, write_text

    load_config(name)
    found = find_config(name)
    file = Path(f"{found.parent.name}_{found.name}" if to is None else to)
    if file.is_dir():
        file /= found.name
    if file.exists() and not force:
        raise UserError(f"{file}: exists already (--force writes over it)")
    try:
        write_text(file, found.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{file}: cannot be written ({reason(error)})") from None
    typer.echo(file)

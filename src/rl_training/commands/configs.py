"""`configs`: the shipped configs."""

from __future__ import annotations

from pathlib import Path

import typer

from rl_training.errors import UserError

configs_app = typer.Typer(rich_markup_mode=None, help="The shipped configs: list them, show one, copy one; a schema for editors.")


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
    """Every shipped config, by the name that `train --config` takes."""
    from rl_training.experiment.config import shipped_configs

    for name in shipped_configs():
        typer.echo(f"configs/{name}")


CONFIG_NAME = typer.Argument(..., metavar="NAME", help="Such as configs/dqn/cartpole.yaml.")


@configs_app.command("show")
def show_config(name: str = CONFIG_NAME) -> None:
    """Print a config, with the place it is in."""
    from rl_training.experiment.config import find_config, load_config

    load_config(name)  # what cannot be trained is not shown as if it could
    found = find_config(name)
    typer.echo(f"# {found}\n{found.read_text(encoding='utf-8')}", nl=False)


@configs_app.command("copy")
def copy_config(
    name: str = CONFIG_NAME,
    to: str | None = typer.Argument(None, metavar="[FILE]", help="Where to: <row>_<name>.yaml here if not said."),
    force: bool = typer.Option(False, "--force", help="Write over a file that is there."),
) -> None:
    """Copy a config to a file of your own, to change it."""
    from rl_training.experiment.config import find_config, load_config

    load_config(name)
    found = find_config(name)
    file = Path(f"{found.parent.name}_{found.name}" if to is None else to)
    if file.is_dir():
        file /= found.name
    if file.exists() and not force:
        raise UserError(f"{file}: exists already (--force writes over it)")
    try:
        file.write_text(found.read_text(encoding="utf-8"), encoding="utf-8")
    except OSError as error:
        raise UserError(f"{file}: cannot be written ({error.strerror or error})") from None
    typer.echo(file)

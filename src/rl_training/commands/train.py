"""`train` and `resume`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import typer

from rl_training.commands.following import after_seeds, after_training
from rl_training.commands.options import CHECKPOINT, DEVICE, OWN_CONFIG, QUIET, ROW, TOTAL
from rl_training.commands.output import say, show_next, show_result
from rl_training.errors import Interrupted, UserError
from rl_training.runtime.figures import spread

if TYPE_CHECKING:
    from rl_training.experiment.config import Override, TrainConfig
    from rl_training.runtime.callbacks import Callback
    from rl_training.runtime.run import TrainResult


def train(
    ctx: typer.Context,
    row: str | None = ROW,
    config: str | None = OWN_CONFIG,
    env: str | None = typer.Option(None, "--env", metavar="ID", help="With ROW: the environment. A config shipped for both is used."),
    seed: int | None = typer.Option(None, "--seed", help="The run's seed."),
    seeds: str | None = typer.Option(None, "--seeds", metavar="LIST", help="One run for each seed: 1,2,3 or 1-5."),
    jobs: int = typer.Option(1, "--jobs", min=1, help="How many of --seeds run side by side."),
    device: str | None = DEVICE,
    total_timesteps: int | None = TOTAL,
    num_envs: int | None = typer.Option(None, "--num-envs", help="Environments stepped side by side."),
    actors: int | None = typer.Option(None, "--actors", metavar="N", help="Act in N Ray processes, each with --num-envs environments."),
    ray_address: str | None = typer.Option(None, "--ray-address", metavar="A", help="The Ray cluster they run on: host:port, or auto."),
    output_dir: str | None = typer.Option(None, "--output-dir", metavar="DIR", help="Where the run's directory is made."),
    settings: list[str] = typer.Option([], "--set", metavar="KEY=VALUE", help="Any key, such as algo_kwargs.batch_size=64. Repeatable."),
    track: list[str] = typer.Option([], "--track", metavar="NAME", help="A tracker beside TensorBoard: wandb or mlflow. Repeatable."),
    run_suffix: str | None = typer.Option(None, "--run-suffix", metavar="TEXT", help="Added to the name of the run's directory."),
    quiet: bool = QUIET,
    progress_to: Path | None = typer.Option(None, "--progress-to", hidden=True),
) -> None:
    """Train an algorithm on an environment. Either `train dqn --env CartPole-v1`, or `train --config FILE`."""
    from rl_training.experiment.config import Override, parse_override

    chosen = _chosen(row, env, config)
    flags = {"device": device, "total_timesteps": total_timesteps, "num_envs": num_envs, "output_dir": output_dir}
    flags |= {"actors": actors, "ray_address": ray_address}
    overrides = [parse_override(text) for text in settings]
    overrides += [Override(key, value, _flag(key, value)) for key, value in flags.items() if value is not None]
    if track:
        overrides.append(Override("trackers", list(track), " ".join(f"--track {name}" for name in track)))
    if seeds is None:
        if jobs > 1:
            raise UserError("--jobs: says how many of --seeds run side by side, and there are none")
        if seed is not None:
            overrides.append(Override("seed", seed, _flag("seed", seed)))
        loaded = chosen.load(overrides)
        if not quiet:
            typer.echo(f"config: {chosen.origin}")
        from rl_training.runtime import workflows

        callbacks: tuple[Callback, ...] = ()
        if progress_to is not None:
            from rl_training.runtime.progress import ProgressFile

            callbacks = (ProgressFile(progress_to),)
        _show(workflows.train(loaded, run_suffix=run_suffix, callbacks=callbacks, quiet=quiet), ctx, quiet)
        return
    if seed is not None:
        raise UserError("--seed and --seeds: give one of them")
    from rl_training.runtime.seeds import parse_seeds

    configs: list[TrainConfig] = []
    for each_seed in parse_seeds(seeds):
        configs.append(chosen.load([*overrides, Override("seed", each_seed, f"--seeds {seeds}")]))
    if not quiet:
        typer.echo(f"config: {chosen.origin}")
    if jobs > 1:
        given = [*chosen.words, *(f"--set={text}" for text in settings), *(f"--track={name}" for name in track)]
        given += [f"--{key.replace('_', '-')}={value}" for key, value in {**flags, "run_suffix": run_suffix}.items() if value is not None]
        before = [f"--import={module}" for module in ctx.obj]
        commands = {each.seed: [*before, "train", *given, f"--seed={each.seed}", "--quiet"] for each in configs}
        _train_side_by_side(commands, configs[0], jobs, quiet)
    else:
        from rl_training.runtime import workflows

        results: list[TrainResult] = []
        for each in configs:
            try:
                results.append(workflows.train(each, run_suffix=run_suffix, quiet=quiet))
            except Interrupted:
                for other in configs[len(results) + 1 :]:
                    say(f"seed {other.seed}", "was not started")
                raise
            show_result(results[-1], quiet)
        if len(results) == 1 and not quiet:
            show_next(after_training(results[0], ctx.obj))
        _summarise([result.metrics["eval_return_mean"] for result in results], configs[0], quiet)


class _Chosen(NamedTuple):
    """The config that `train` was told: by a file, or by a row and an environment."""

    origin: str  # as a line says it
    words: list[str]  # what another process is told
    load: Callable[[Sequence[Override]], TrainConfig]


def _chosen(row: str | None, env: str | None, config: str | None) -> _Chosen:
    from rl_training.experiment.config import build_config, find_config, load_config, row_values
    from rl_training.experiment.registry import get_algorithm_spec
    from rl_training.experiment.shipped import describe_shipped, shipped_for

    if config is not None:
        if row is not None or env is not None:
            raise UserError(f"--config and {row or '--env'}: give a config, or an algorithm and --env")
        return _Chosen(str(find_config(config)), [f"--config={config}"], partial(load_config, config))
    if row is None or env is None:
        missing = "--env is missing: the environment, such as CartPole-v1" if row else "what to train is missing"
        raise UserError(f"{missing} (train dqn --env CartPole-v1, or train --config dqn/cartpole)")
    get_algorithm_spec(row)
    words, shipped = [row, f"--env={env}"], shipped_for(row, env)
    if shipped is not None:
        return _Chosen(f"{find_config(shipped)} (shipped for {row} on {env})", words, partial(load_config, shipped))
    source = f"train {row} --env {env}"
    others = ", ".join(each.name for each in describe_shipped(row) if each.env_id == env)
    none = f"none is shipped for {env}" + (f" without env_kwargs; with them: {others}" if others else "")
    return _Chosen(f"the defaults of {row} ({none})", words, partial(build_config, row_values(row, env), source=source))


def _train_side_by_side(commands: dict[int, list[str]], config: TrainConfig, jobs: int, quiet: bool) -> None:
    from rl_training.commands.side_by_side import SideBySide
    from rl_training.runtime.seeds import final_return, train_side_by_side

    with SideBySide(quiet=quiet) as shown:
        runs = train_side_by_side(commands, jobs=jobs, started=shown.started, stepped=shown.stepped, ended=shown.ended)
    _summarise([final_return(run.checkpoint) for run in runs if run.checkpoint is not None], config, quiet)
    failed = [run for run in runs if run.exit_code]
    if failed:
        for run in (each for each in failed if each.message == "was not started"):
            say(f"seed {run.seed}", run.message)
        raise typer.Exit(failed[0].exit_code)


def _show(result: TrainResult, ctx: typer.Context, quiet: bool) -> None:
    show_result(result, quiet)
    if not quiet:
        show_next(after_training(result, ctx.obj))


def _summarise(returns: list[float], config: TrainConfig, quiet: bool) -> None:
    if len(returns) > 1 and not quiet:
        from statistics import mean, stdev

        typer.echo(f"greedy return {spread(mean(returns), stdev(returns))} (standard deviation) over {len(returns)} seeds")
        show_next(after_seeds(config.output_dir))


def resume(
    ctx: typer.Context,
    checkpoint: str = CHECKPOINT,
    total_timesteps: int | None = TOTAL,
    extend_schedule: bool = typer.Option(False, "--extend-schedule", help="Schedules run over the new total, not the original one."),
    device: str | None = DEVICE,
    ray_address: str | None = typer.Option(None, "--ray-address", metavar="A", help="The Ray cluster to go on with: host:port, or auto."),
    output_dir: str | None = typer.Option(None, "--output-dir", metavar="DIR", help="Where a checkpoint outside of a run goes on."),
    quiet: bool = QUIET,
) -> None:
    """Continue a run, exactly as if it had never stopped."""
    from rl_training.runtime import workflows

    options: dict[str, Any] = {
        "total_timesteps": total_timesteps,
        "extend_schedule": extend_schedule,
        "device": device,
        "ray_address": ray_address,
        "output_dir": output_dir,
    }
    _show(workflows.resume_training(checkpoint, **options, quiet=quiet), ctx, quiet)


def _flag(key: str, value: object) -> str:
    return f"--{key.replace('_', '-')} {value}"

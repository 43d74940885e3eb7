"""The command line: `rl-training train | eval | resume | algos | configs`.

Exit codes: 0 done; 2 bad input (one line on stderr, nothing written); 1 a failure while running; 130 and 143 interrupted or terminated,
after a checkpoint was saved. Heavy modules are imported inside the commands, so that `--help` answers at once.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import typer

from rl_training.errors import Interrupted, RunError, UserError

if TYPE_CHECKING:
    from rl_training.experiment.config import load_config
    from rl_training.runtime.run import TrainResult

__all__ = ["app", "load_config", "main"]

# Plain help: rich would take half of the start-up time. Errors are shown by `main`, in one line.
app = typer.Typer(
    rich_markup_mode=None, pretty_exceptions_enable=False, add_completion=False, help="Deep reinforcement learning in PyTorch."
)
configs_app = typer.Typer(rich_markup_mode=None, help="The shipped configs: list them, show one.")
app.add_typer(configs_app, name="configs")

CONFIG = typer.Option(..., "--config", metavar="FILE", help="A config file, or the name of a shipped one.")
CHECKPOINT = typer.Option(..., "--checkpoint", metavar="PATH", help="A checkpoint, a file in it, or a run's directory (its latest).")
TOTAL = typer.Option(None, "--total-timesteps", metavar="N", help="Environment steps at which training ends.")
DEVICE = typer.Option(None, "--device", help="auto, cpu, cuda, cuda:<number> or mps.")
RESULTS = Path("benchmarks/results/learning")
QUIET = typer.Option(False, "--quiet", help="No progress; print only where the checkpoint is.")


def __getattr__(name: str) -> Any:
    if name == "load_config":
        from rl_training.experiment.config import load_config

        return load_config
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


@app.callback(invoke_without_command=True)
def root(ctx: typer.Context, version: bool = typer.Option(False, "--version", help="Print the version.")) -> None:
    if version:
        import rl_training

        typer.echo(f"rl-training {rl_training.__version__}")
    elif ctx.invoked_subcommand is None:
        typer.echo(ctx.get_help())


@app.command()
def train(
    config: str = CONFIG,
    seed: int | None = typer.Option(None, "--seed", help="The run's seed."),
    device: str | None = DEVICE,
    total_timesteps: int | None = TOTAL,
    num_envs: int | None = typer.Option(None, "--num-envs", help="Environments stepped side by side."),
    output_dir: str | None = typer.Option(None, "--output-dir", metavar="DIR", help="Where the run's directory is made."),
    settings: list[str] = typer.Option([], "--set", metavar="KEY=VALUE", help="Any key, such as algo_kwargs.batch_size=64. Repeatable."),
    run_suffix: str | None = typer.Option(None, "--run-suffix", metavar="TEXT", help="Added to the name of the run's directory."),
    quiet: bool = QUIET,
) -> None:
    """Train what a config says."""
    from rl_training.experiment.config import Override, find_config, load_config, parse_override

    flags = {"seed": seed, "device": device, "total_timesteps": total_timesteps, "num_envs": num_envs, "output_dir": output_dir}
    overrides = [parse_override(text) for text in settings]
    overrides += [Override(key, value, _flag(key, value)) for key, value in flags.items() if value is not None]
    loaded = load_config(config, overrides)
    if not quiet:
        typer.echo(f"config: {find_config(config)}")
    from rl_training.runtime import workflows

    _report(workflows.train(loaded, run_suffix=run_suffix, quiet=quiet), quiet)


@app.command()
def resume(checkpoint: str = CHECKPOINT, total_timesteps: int | None = TOTAL, device: str | None = DEVICE, quiet: bool = QUIET) -> None:
    """Go on with a run, exactly as if it had never stopped."""
    from rl_training.runtime import workflows

    _report(workflows.resume_training(checkpoint, total_timesteps=total_timesteps, device=device, quiet=quiet), quiet)


@app.command("eval")
def evaluate(
    checkpoint: str = CHECKPOINT,
    episodes: int = typer.Option(20, "--episodes", min=1, help="Episodes to play."),
    seed: int | None = typer.Option(None, "--seed", min=0, help="Play other episodes than the run's own evaluations."),
) -> None:
    """Play greedy episodes with a checkpoint's policy."""
    from rl_training.runtime import workflows

    for key, value in workflows.evaluate_checkpoint(checkpoint, num_episodes=episodes, seed=seed).items():
        typer.echo(f"{key}: {value}")


@app.command()
def algos() -> None:
    """List the algorithms."""
    from rl_training.experiment.registry import algorithm_names, get_algorithm_spec

    rows = [get_algorithm_spec(name) for name in algorithm_names()]
    width = max(len(row.name) for row in rows)
    text = max(len(row.summary) for row in rows)
    for row in rows:
        typer.echo(f"{row.name:<{width}}  {row.summary:<{text}}  {row.paper}".rstrip())


@app.command()
def ledger(
    suite: str = typer.Argument(..., metavar="SUITE", help="A suite file, or the name of a shipped one: smoke, classic, memory."),
    results: Path = typer.Option(RESULTS, "--results", metavar="DIR", help="Where the records are, one JSON per run."),
    jobs: int | None = typer.Option(None, "--jobs", min=1, help="Runs side by side (all cores if not given)."),
    seeds: str | None = typer.Option(None, "--seeds", metavar="LIST", help="Other seeds than the suite's, such as 1,2,3 or 1-20."),
    redo: bool = typer.Option(False, "--redo", help="Also run again what was made with another config."),
    dry: bool = typer.Option(False, "--dry-run", help="Only say what is done and what is to do."),
    quiet: bool = typer.Option(False, "--quiet", help="No progress."),
) -> None:
    """Run a suite of configs over seeds; what is done is not repeated."""
    import os

    from rl_training.ledger.commands import run_suite

    for text in run_suite(suite, results=results, jobs=jobs or os.cpu_count() or 1, seeds=seeds, redo=redo, dry=dry, quiet=quiet):
        typer.echo(text)


@app.command()
def report(
    sources: list[Path] = typer.Argument(..., metavar="RESULTS_OR_RUNS...", help="Folders of runs or of the ledger's records."),
    output: Path = typer.Option(Path("report.html"), "-o", "--output", metavar="FILE", help="The page to write."),
    intervals: bool = typer.Option(False, "--intervals", help="Compute bootstrap intervals (extra `plots`; seconds per config)."),
) -> None:
    """Write one HTML page of runs: curves, tables, configs, side by side."""
    from rl_training.ledger.report import write_report

    typer.echo(write_report(sources, output, intervals=intervals))


@configs_app.callback(invoke_without_command=True)
def configs(ctx: typer.Context) -> None:
    if ctx.invoked_subcommand is None:
        list_configs()


@configs_app.command("list")
def list_configs() -> None:
    """Every shipped config, by the name that `train --config` takes."""
    from rl_training.experiment.config import shipped_configs

    for name in shipped_configs():
        typer.echo(f"configs/{name}")


@configs_app.command("show")
def show_config(name: str = typer.Argument(..., metavar="NAME", help="Such as configs/dqn/cartpole.yaml.")) -> None:
    """Print a config, with the place it is in."""
    from rl_training.experiment.config import find_config, load_config

    load_config(name)  # what cannot be trained is not shown as if it could
    found = find_config(name)
    typer.echo(f"# {found}\n{found.read_text(encoding='utf-8')}", nl=False)


def _flag(key: str, value: object) -> str:
    return f"--{key.replace('_', '-')} {value}"


def _report(result: TrainResult, quiet: bool) -> None:
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


def _say(kind: str, message: object) -> None:
    print(f"{kind}: {' '.join(str(message).split())}", file=sys.stderr)


def _show_warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, file: TextIO | None = None, line: str | None = None
) -> None:
    _say("warning", message)


# typer brings its own copy of click or depends on it, by version: this is the base of its errors either way.
_UsageError: type[Exception] = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException")


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the command and leaves with its exit code."""
    command = typer.main.get_command(app)
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            code = command.main(args=None if argv is None else list(argv), prog_name="rl-training", standalone_mode=False)
    except _UsageError as error:
        _say("error", f"{getattr(error, 'format_message', error.__str__)()} (see --help)")
        code = 2
    except UserError as error:
        _say("error", error)
        code = 2
    except Interrupted as error:
        _say("interrupted", error)
        code = 128 + error.signum
    except RunError as error:
        _say("error", error)
        code = 1
    except (typer.Abort, KeyboardInterrupt):
        code = 130
    sys.exit(code if isinstance(code, int) else 0)

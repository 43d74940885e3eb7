"""The command line: `rl-training train | eval | resume | predict | algos | configs | doctor | ledger | report | tune`.

Exit codes: 0 done; 2 bad input (one line on stderr, nothing written); 1 a failure while running; 130 and 143 interrupted or terminated,
after a checkpoint was saved. Heavy modules are imported inside the commands, so that `--help` answers at once.
"""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TextIO

import typer

from rl_training.errors import Interrupted, RunError, UserError
from rl_training.ledger import RESULTS

if TYPE_CHECKING:
    from rl_training.experiment.config import load_config
    from rl_training.runtime.run import TrainResult

__all__ = ["app", "load_config", "main"]

# Plain help: rich would take half of the start-up time. Errors are shown by `main`, in one line.
app = typer.Typer(
    rich_markup_mode=None, pretty_exceptions_enable=False, add_completion=False, help="Deep reinforcement learning in PyTorch."
)
configs_app = typer.Typer(rich_markup_mode=None, help="The shipped configs: list them, show one, copy one; a schema for editors.")
app.add_typer(configs_app, name="configs")

CONFIG = typer.Option(..., "--config", metavar="FILE", help="A config file, or the name of a shipped one.")
CHECKPOINT = typer.Option(..., "--checkpoint", metavar="PATH", help="A checkpoint, a file in it, or a run's directory (its latest).")
TOTAL = typer.Option(None, "--total-timesteps", metavar="N", help="Environment steps at which training ends.")
DEVICE = typer.Option(None, "--device", help="auto, cpu, cuda, cuda:<number> or mps.")
QUIET = typer.Option(False, "--quiet", help="No progress; print only where the checkpoint is.")


def __getattr__(name: str) -> Any:
    if name == "load_config":
        from rl_training.experiment.config import load_config

        return load_config
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


@app.callback(invoke_without_command=True)
def root(
    ctx: typer.Context,
    version: bool = typer.Option(False, "--version", help="Print the version."),
    imports: list[str] = typer.Option([], "--import", metavar="MODULE", help="Import a module of yours first: it may register rows."),
) -> None:
    for module in imports:
        _import(module)
    ctx.obj = imports
    if version:
        import rl_training

        typer.echo(f"rl-training {rl_training.__version__}")
    elif ctx.invoked_subcommand is None:
        typer.echo(ctx.get_help())


@app.command()
def train(
    ctx: typer.Context,
    config: str = CONFIG,
    seed: int | None = typer.Option(None, "--seed", help="The run's seed."),
    seeds: str | None = typer.Option(None, "--seeds", metavar="LIST", help="One run for each seed: 1,2,3 or 1-5."),
    jobs: int = typer.Option(1, "--jobs", min=1, help="How many of --seeds run side by side."),
    device: str | None = DEVICE,
    total_timesteps: int | None = TOTAL,
    num_envs: int | None = typer.Option(None, "--num-envs", help="Environments stepped side by side."),
    output_dir: str | None = typer.Option(None, "--output-dir", metavar="DIR", help="Where the run's directory is made."),
    settings: list[str] = typer.Option([], "--set", metavar="KEY=VALUE", help="Any key, such as algo_kwargs.batch_size=64. Repeatable."),
    track: list[str] = typer.Option([], "--track", metavar="NAME", help="A tracker beside TensorBoard: wandb or mlflow. Repeatable."),
    run_suffix: str | None = typer.Option(None, "--run-suffix", metavar="TEXT", help="Added to the name of the run's directory."),
    quiet: bool = QUIET,
) -> None:
    """Train what a config says."""
    from rl_training.experiment.config import Override, find_config, load_config, parse_override

    flags = {"device": device, "total_timesteps": total_timesteps, "num_envs": num_envs, "output_dir": output_dir}
    overrides = [parse_override(text) for text in settings]
    overrides += [Override(key, value, _flag(key, value)) for key, value in flags.items() if value is not None]
    if track:
        overrides.append(Override("trackers", list(track), " ".join(f"--track {name}" for name in track)))
    if seeds is None:
        if jobs > 1:
            raise UserError("--jobs: says how many of --seeds run side by side, and there are none")
        if seed is not None:
            overrides.append(Override("seed", seed, _flag("seed", seed)))
        loaded = load_config(config, overrides)
        if not quiet:
            typer.echo(f"config: {find_config(config)}")
        from rl_training.runtime import workflows

        _report(workflows.train(loaded, run_suffix=run_suffix, quiet=quiet), quiet)
        return
    if seed is not None:
        raise UserError("--seed and --seeds: give one of them")
    from rl_training.runtime.seeds import parse_seeds

    configs = [load_config(config, [*overrides, Override("seed", each, f"--seeds {seeds}")]) for each in parse_seeds(seeds)]
    if not quiet:
        typer.echo(f"config: {find_config(config)}")
    if jobs > 1:
        given = [f"--config={config}", *(f"--set={text}" for text in settings), *(f"--track={name}" for name in track)]
        given += [f"--{key.replace('_', '-')}={value}" for key, value in {**flags, "run_suffix": run_suffix}.items() if value is not None]
        before = [f"--import={module}" for module in ctx.obj]
        _train_side_by_side({each.seed: [*before, "train", *given, f"--seed={each.seed}", "--quiet"] for each in configs}, jobs, quiet)
    else:
        from rl_training.runtime import workflows

        results = []
        for each in configs:
            results.append(workflows.train(each, run_suffix=run_suffix, quiet=quiet))
            _report(results[-1], quiet)
        _summarise([result.metrics["eval_return_mean"] for result in results], quiet)


def _train_side_by_side(commands: dict[int, list[str]], jobs: int, quiet: bool) -> None:
    from rl_training.runtime.seeds import SeedRun, final_return, train_side_by_side

    def started(seed: int) -> None:
        if not quiet:
            typer.echo(f"seed {seed}: started")

    def ended(run: SeedRun) -> None:
        if run.checkpoint is None:
            _say(f"seed {run.seed}", run.message or f"ended with exit code {run.exit_code}")
        else:
            typer.echo(run.checkpoint if quiet else f"seed {run.seed}: greedy return {final_return(run.checkpoint):.1f}, {run.checkpoint}")

    runs = train_side_by_side(commands, jobs=jobs, started=started, ended=ended)
    _summarise([final_return(run.checkpoint) for run in runs if run.checkpoint is not None], quiet)
    failed = [run for run in runs if run.exit_code]
    if failed:
        for run in (each for each in failed if each.message == "was not started"):
            _say(f"seed {run.seed}", run.message)
        raise typer.Exit(failed[0].exit_code)


def _summarise(returns: list[float], quiet: bool) -> None:
    if len(returns) > 1 and not quiet:
        from statistics import mean, stdev

        typer.echo(f"greedy return {mean(returns):.1f} ± {stdev(returns):.1f} (standard deviation) over {len(returns)} seeds")


@app.command()
def resume(
    checkpoint: str = CHECKPOINT,
    total_timesteps: int | None = TOTAL,
    extend_schedule: bool = typer.Option(False, "--extend-schedule", help="Schedules run over the new total, not the original one."),
    device: str | None = DEVICE,
    output_dir: str | None = typer.Option(None, "--output-dir", metavar="DIR", help="Where a checkpoint outside of a run goes on."),
    quiet: bool = QUIET,
) -> None:
    """Go on with a run, exactly as if it had never stopped."""
    from rl_training.runtime import workflows

    options: dict[str, Any] = {
        "total_timesteps": total_timesteps,
        "extend_schedule": extend_schedule,
        "device": device,
        "output_dir": output_dir,
    }
    _report(workflows.resume_training(checkpoint, **options, quiet=quiet), quiet)


@app.command("eval")
def evaluate(
    checkpoint: str = CHECKPOINT,
    episodes: int | None = typer.Option(
        None, "--episodes", "--num-episodes", min=1, metavar="N", help="Episodes to play: 20, or 1 where they are watched."
    ),
    seed: int | None = typer.Option(None, "--seed", min=0, help="Play other episodes than the run's own evaluations."),
    render: bool = typer.Option(False, "--render", help="Show the episodes in a window."),
    record: str | None = typer.Option(None, "--record", metavar="FILE", help="Record the episodes as an .mp4 file (extra `video`)."),
) -> None:
    """Play greedy episodes with a checkpoint's policy."""
    from rl_training.runtime import workflows

    if episodes is None:
        episodes = 1 if render or record is not None else 20
    figures = workflows.evaluate_checkpoint(checkpoint, num_episodes=episodes, seed=seed, render=render, record=record)
    for key, value in figures.items():
        typer.echo(f"{key}: {value}")
    if record is not None:
        typer.echo(f"recorded: {record}")


@app.command()
def predict(
    checkpoint: str = CHECKPOINT,
    observations: list[str] = typer.Argument(None, metavar="[OBSERVATION]...", help="Observations as JSON, such as '[0, 0.1, 0, 0]'."),
    source: str | None = typer.Option(None, "--input", metavar="FILE", help="Read them from a file, one per line (- or none: stdin)."),
) -> None:
    """Actions and Q-values for observations, as JSON lines.

    An observation is a list of numbers, or {"obs": [...], "episode_start": true}. Recurrent policies keep their state from one to the next.
    """
    import json

    if observations and source is not None:
        raise UserError("--input and observations as arguments: give one of them")
    read = _parsed(((f"observation {i}", text) for i, text in enumerate(observations, 1)) if observations else _lines(source))
    from rl_training.runtime import workflows

    for answer in workflows.predict(checkpoint, read):
        print(json.dumps(answer), flush=True)  # whoever feeds observations one by one waits for each answer


def _lines(source: str | None) -> Iterator[tuple[str, str]]:
    """The lines that hold something, each with what an error calls it."""
    name = "standard input" if source in (None, "-") else str(source)
    try:
        with contextlib.nullcontext(sys.stdin) if source in (None, "-") else open(str(source), encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield f"{name}, line {number}", line
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{name}: cannot be read ({error})") from None


def _parsed(texts: Iterator[tuple[str, str]]) -> Iterator[Any]:
    import json

    for name, text in texts:
        try:
            yield json.loads(text)
        except (ValueError, RecursionError) as error:
            raise UserError(f"{name}: not JSON ({error})") from None


@app.command()
def algos() -> None:
    """Every algorithm: what it is, its parts, its paper."""
    from rl_training.experiment.registry import algorithm_names, get_algorithm_spec

    rows = [get_algorithm_spec(name) for name in algorithm_names()]
    _table(("algo", "what it is", "parts", "paper"), [(row.name, row.summary, ", ".join(row.parts), row.paper) for row in rows])


def _table(header: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
    widths = [max(len(cell) for cell in column) for column in zip(header, *rows, strict=True)]
    for row in (header, tuple("-" * width for width in widths), *rows):
        typer.echo("  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip())


@app.command()
def ledger(
    suite: str = typer.Argument(..., metavar="SUITE", help="A suite file, or a shipped one: smoke, classic, on_policy, memory, ablation."),
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


@app.command()
def tune(
    config: str = CONFIG,
    space: Path | None = typer.Option(None, "--space", metavar="FILE", help="What to search (a shipped space of the row if not given)."),
    trials: int = typer.Option(50, "--trials", min=1, help="Trials the study shall hold in the end."),
    seeds: str = typer.Option("1001-1003", "--seeds", metavar="LIST", help="Seeds of every trial; not those of the tables."),
    total_timesteps: int | None = TOTAL,
    episodes: int = typer.Option(50, "--episodes", min=1, help="Fresh episodes that judge a policy."),
    best: bool = typer.Option(False, "--best", help="Judge a run's best checkpoint, not its final policy."),
    jobs: int | None = typer.Option(None, "--jobs", min=1, help="Runs side by side (all cores if not given)."),
    study: Path = typer.Option(Path("tune.jsonl"), "--study", metavar="FILE", help="The study: the same command goes on with it."),
    output: Path = typer.Option(Path("tuned.yaml"), "-o", "--output", metavar="FILE", help="Where the best config is written."),
    quiet: bool = typer.Option(False, "--quiet", help="No progress."),
) -> None:
    """Search settings for a config (extra `tune`)."""
    import os

    from rl_training.ledger.tune import make_search
    from rl_training.ledger.tune import tune as run_study
    from rl_training.runtime.seeds import parse_seeds

    policy: Literal["best", "final"] = "best" if best else "final"
    search = make_search(config, space, seeds=parse_seeds(seeds), total_timesteps=total_timesteps, episodes=episodes, policy=policy)
    for text in run_study(search, study, output, trials=trials, jobs=jobs or os.cpu_count() or 1, quiet=quiet):
        typer.echo(text)


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


@app.command()
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


def _import(module: str) -> None:
    import importlib

    try:
        importlib.import_module(module)
    except ImportError as error:
        raise UserError(f"--import {module}: {error}") from None


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


@contextlib.contextmanager
def _modules_here() -> Iterator[None]:
    """Modules of the current folder can be named (`--import`, `env_id: module:Id`), after all that is installed: they shadow nothing."""
    here = str(Path.cwd())
    sys.path.append(here)
    try:
        yield
    finally:
        sys.path.remove(here)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; its exit code."""
    command = typer.main.get_command(app)
    try:
        with warnings.catch_warnings(), _modules_here():
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
    return code if isinstance(code, int) else 0

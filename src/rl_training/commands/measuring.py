"""`ledger`, `report` and `tune`: many runs, measured and searched."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import typer

from rl_training.commands.following import after_tuning
from rl_training.commands.options import CONFIG, TOTAL
from rl_training.commands.output import show_next
from rl_training.ledger import RESULTS
from rl_training.resources import usable_cores


def ledger(
    ctx: typer.Context,
    suite: str = typer.Argument(..., metavar="SUITE", help="A suite file, or a shipped one, such as smoke, classic or minatar."),
    results: Path = typer.Option(RESULTS, "--results", metavar="DIR", help="Where the records are, one JSON per run."),
    jobs: int | None = typer.Option(None, "--jobs", min=1, help="Runs side by side (all cores if not given)."),
    seeds: str | None = typer.Option(None, "--seeds", metavar="LIST", help="Other seeds than the suite's, such as 1,2,3 or 1-20."),
    device: str = typer.Option("cpu", "--device", help="What runs compute on; side by side they share it."),
    only: str | None = typer.Option(None, "--only", metavar="PATTERN", help="Only configs of such names (--dry-run lists them)."),
    redo: bool = typer.Option(False, "--redo", help="Also run again what was made with another config."),
    dry: bool = typer.Option(False, "--dry-run", help="Only say what is done and what is to do."),
    quiet: bool = typer.Option(False, "--quiet", help="No progress."),
) -> None:
    """Run a suite of configs over seeds. Runs that have a record are not repeated."""
    from rl_training.ledger.commands import run_suite
    from rl_training.ledger.runner import AfterImports

    many, work = jobs or usable_cores(), AfterImports(tuple(ctx.obj))
    for text in run_suite(
        suite, results=results, jobs=many, seeds=seeds, device=device, only=only, redo=redo, dry=dry, quiet=quiet, work=work
    ):
        typer.echo(text)


def report(
    sources: list[Path] = typer.Argument(..., metavar="FOLDER", help="Folders of runs or of the ledger's records."),
    output: Path = typer.Option(Path("report.html"), "-o", "--output", metavar="FILE", help="The page to write."),
    intervals: bool = typer.Option(False, "--intervals", help="Compute bootstrap intervals (extra `plots`; seconds per config)."),
) -> None:
    """Write one HTML page of runs. It has curves, tables, configs, and runs side by side."""
    from rl_training.ledger.report import write_report

    typer.echo(write_report(sources, output, intervals=intervals))


def tune(
    ctx: typer.Context,
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
    """Search better settings for a config (extra `tune`)."""
    from rl_training.ledger.runner import AfterImports
    from rl_training.ledger.tune import make_search
    from rl_training.ledger.tune import tune as run_study
    from rl_training.runtime.seeds import parse_seeds

    policy: Literal["best", "final"] = "best" if best else "final"
    search = make_search(config, space, seeds=parse_seeds(seeds), total_timesteps=total_timesteps, episodes=episodes, policy=policy)
    many, work = jobs or usable_cores(), AfterImports(tuple(ctx.obj))
    for text in run_study(search, study, output, trials=trials, jobs=many, quiet=quiet, work=work):
        typer.echo(text)
    if not quiet:
        show_next(after_tuning(output, ctx.obj))

"""What `rl-training ledger` does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from rl_training.errors import RunError
from rl_training.ledger.display import Display
from rl_training.ledger.judging import fallen_short
from rl_training.ledger.runner import look, run_plans
from rl_training.ledger.suites import load_suite, plan_groups
from rl_training.ledger.text import plain_table
from rl_training.runtime.seeds import parse_seeds


def run_suite(
    name: str,
    *,
    results: Path,
    jobs: int,
    seeds: str | None = None,
    device: str = "cpu",
    redo: bool = False,
    dry: bool = False,
    quiet: bool = False,
) -> Iterator[str]:
    """Runs what is missing of a suite; yields what to print."""
    suite = load_suite(name)
    groups = plan_groups(suite, None if seeds is None else tuple(parse_seeds(seeds)), device=device)
    plans = [plan for group in groups for plan in group.plans]
    state = look(plans, results)
    stale = [plan for plan in plans if plan.name in state.stale]
    to_do = [*state.missing, *(stale if redo else ())]
    steps = sum(plan.config.total_timesteps for plan in to_do)
    yield f"suite {suite.name}: {len(plans)} runs, {len(plans) - len(to_do)} done, {len(to_do)} to do ({steps:,} environment steps)"
    if stale and not redo:
        for plan in stale:
            yield f"  {plan.name} was made with another {', '.join(state.stale[plan.name])}"
        yield "  (kept; --redo runs these again)"
    if dry:
        yield from (f"  to do: {plan.name} ({plan.config.total_timesteps:,} steps)" for plan in to_do)
        return
    outcome = run_plans(to_do, results, jobs=jobs, display=Display(len(to_do), steps, quiet=quiet))
    again = {record.name for record in outcome.records}
    records = [*(record for record in state.done if record.name not in again), *outcome.records]
    yield plain_table(groups, records)
    if outcome.failures:
        names = ", ".join(outcome.failures)
        raise RunError(f"{len(outcome.failures)} runs failed ({names}); the same command runs them again")
    short = [] if seeds else list(fallen_short(groups, records))  # judgements are calibrated for the suite's own number of seeds
    if short:
        raise RunError(f"suite {suite.name}: {'; '.join(short)}")

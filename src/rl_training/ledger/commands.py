"""What `rl-training ledger` does."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from rl_training.errors import RunError, UserError
from rl_training.experiment.explain import did_you_mean, nearest
from rl_training.ledger.display import Display
from rl_training.ledger.judging import fallen_short
from rl_training.ledger.runner import Work, look, run_plan, run_plans
from rl_training.ledger.suites import Group, Plan, load_suite, plan_groups
from rl_training.ledger.text import plain_table
from rl_training.runtime.seeds import parse_seeds


def run_suite(
    name: str,
    *,
    results: Path,
    jobs: int,
    seeds: str | None = None,
    device: str = "cpu",
    only: str | None = None,
    redo: bool = False,
    dry: bool = False,
    quiet: bool = False,
    work: Work = run_plan,
) -> Iterator[str]:
    """Runs what is missing of a suite; yields what to print. only: a pattern of the configs' names, such as `*__atari_pong`."""
    suite = load_suite(name)
    planned = plan_groups(suite, None if seeds is None else tuple(parse_seeds(seeds)), device=device)
    asked = planned if only is None else matching(planned, only, suite.name)
    groups = [group for group in asked if group.runs_on(device)]
    elsewhere = [group for group in asked if not group.runs_on(device)]
    if not groups:
        raise UserError(f"--device {device}: what was asked of suite {suite.name} is for --device {elsewhere[0].device}")
    plans = [plan for group in groups for plan in group.plans]
    state = look(plans, results)
    stale = [plan for plan in plans if plan.name in state.stale]
    to_do = [*state.missing, *(stale if redo else ())]
    steps = sum(plan.config.total_timesteps for plan in to_do)
    yield f"suite {suite.name}: {len(plans)} runs, {len(plans) - len(to_do)} done, {len(to_do)} to do ({steps:,} environment steps)"
    for group in elsewhere:
        yield f"  {group.name}: left out, it is for --device {group.device}"
    if stale and not redo:
        for plan in stale:
            yield f"  {plan.name} was made with another {', '.join(state.stale[plan.name])}"
        yield "  (kept; --redo runs these again)"
    if dry:
        yield from (f"  {line}" for line in what_is_there(groups, to_do))
    missing = missing_environments(to_do)
    playable = [plan for plan in to_do if plan.config.env_id not in missing]
    if missing and not playable and not dry:
        raise UserError("; ".join(dict.fromkeys(missing.values())))
    for reason in dict.fromkeys(missing.values()):
        many = sum(missing.get(plan.config.env_id) == reason for plan in to_do)
        yield f"  {many} of them cannot be run here: {reason}"
    if dry:
        return
    steps = sum(plan.config.total_timesteps for plan in playable)
    outcome = run_plans(playable, results, jobs=jobs, display=Display(len(playable), steps, quiet=quiet), work=work)
    again = {record.name for record in outcome.records}
    records = [*(record for record in state.done if record.name not in again), *outcome.records]
    yield plain_table(groups, records)
    if outcome.failures:
        raise RunError(f"failed: {', '.join(outcome.failures)}; the same command runs what failed again")
    if missing:
        raise RunError(f"of {len(to_do)} runs {len(to_do) - len(playable)} could not be made: {'; '.join(dict.fromkeys(missing.values()))}")
    short = [] if seeds else list(fallen_short(groups, records))  # judgements are calibrated for the suite's own number of seeds
    if short:
        raise RunError(f"suite {suite.name}: {'; '.join(short)}")


def matching(groups: Sequence[Group], pattern: str, suite: str) -> Sequence[Group]:
    """Those whose names match a shell pattern; UserError where none does."""
    found = [group for group in groups if fnmatchcase(group.name, pattern)]
    if not found:
        names = [group.name for group in groups]
        part = pattern and any(pattern in name for name in names)  # of a name, where a whole one is asked for
        near = f"; did you mean '*{pattern}*'?" if part and not nearest(pattern, names) else did_you_mean(pattern, names)
        raise UserError(f"--only {pattern!r}: no config of suite {suite} has such a name{near}; --dry-run lists them")
    return found


def what_is_there(groups: Iterable[Group], to_do: Sequence[Plan]) -> Iterator[str]:
    """A line for each config: the seeds that have records, and those to run."""
    waiting = {plan.name for plan in to_do}
    for group in groups:
        left = [plan.config.seed for plan in group.plans if plan.name in waiting]
        done = [plan.config.seed for plan in group.plans if plan.name not in waiting]
        parts = [f"there: {_seeds(done)}"] if done else []
        steps = f"{group.plans[0].config.total_timesteps:,} steps{' each' if len(left) > 1 else ''}"
        parts += [f"to do: {_seeds(left)} ({steps})"] if left else []
        yield f"{group.name}: {'; '.join(parts)}"


def _seeds(seeds: Sequence[int]) -> str:
    return f"seed{'s'[: len(seeds) != 1]} {', '.join(map(str, seeds))}"


def missing_environments(plans: Iterable[Plan]) -> dict[str, str]:
    """Of the environments that `plans` play, those that cannot be made here and why: mostly an extra that is missing."""
    from rl_training.envs.factory import make_bare

    missing = {}
    for plan in {plan.config.env_id: plan for plan in plans}.values():
        try:
            make_bare(plan.config.env_id, plan.config.env_kwargs).close()
        except UserError as error:
            missing[plan.config.env_id] = str(error)
    return missing

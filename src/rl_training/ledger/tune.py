"""Searches settings for a config (Optuna, extra `tune`): trials over seeds that no table uses, in a study that can be gone on with.

A trial is one choice of settings, trained with every seed; its value is the mean over seeds of what the greedy policy reaches on fresh
episodes. The study is a file of JSON lines: the same command goes on with it until it holds as many trials as were asked for.
"""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Annotated, Any

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from typing_extensions import Self

from rl_training.errors import ConfigError, RunError, UserError
from rl_training.experiment.config import Override, build_config, find_config
from rl_training.experiment.explain import one_line, whole_number
from rl_training.experiment.files import failing_as_run_error, write_text
from rl_training.experiment.settings import ValueSettings
from rl_training.experiment.yaml_text import read_mapping, read_yaml
from rl_training.ledger.display import Display
from rl_training.ledger.records import Policy
from rl_training.ledger.runner import Work, run_plan, run_plans
from rl_training.ledger.suites import Plan, load_suite, shipped_suites

if TYPE_CHECKING:
    import optuna

SHIPPED_SPACES = Path(__file__).resolve().parent.parent / "assets" / "spaces"
RATIO = "updates_per_step"
"""A key of a space that is none of a config: updates per environment step. It decides `gradient_steps` and `train_frequency` together."""


class Range(BaseModel):
    """What one setting may be: numbers from `low` to `high` (whole ones where both are), or one of `choices`."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    low: int | float | None = None
    high: int | float | None = None
    log: bool = False
    choices: Annotated[tuple[Any, ...], BeforeValidator(lambda value: tuple(value) if isinstance(value, list) else value)] = ()

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        if self.choices:
            if self.low is not None or self.high is not None or self.log:
                raise ValueError("takes either choices or low and high")
        elif self.low is None or self.high is None or not self.low < self.high:
            raise ValueError("needs choices, or a low that is below high")
        elif self.log and self.low <= 0:
            raise ValueError("can be searched on a log scale only above 0")
        return self

    @property
    def ends(self) -> tuple[Any, ...]:
        """What has to be a valid setting for the range to be one."""
        return self.choices or (self.low, self.high)

    def suggest(self, trial: optuna.Trial, name: str) -> Any:
        if self.choices:  # as JSON: Optuna keeps nothing but scalars, and hidden sizes are lists
            return json.loads(trial.suggest_categorical(name, [json.dumps(choice) for choice in self.choices]))
        assert self.low is not None and self.high is not None
        if isinstance(self.low, int) and isinstance(self.high, int):
            return trial.suggest_int(name, self.low, self.high, log=self.log)
        return trial.suggest_float(name, self.low, self.high, log=self.log)


class Space(BaseModel):
    """A space file: dotted keys of a config, or `updates_per_step`, each with its range. `rows` are those a shipped one is for."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    rows: Annotated[tuple[str, ...], BeforeValidator(lambda value: tuple(value) if isinstance(value, list) else value)] = ()
    space: Annotated[dict[str, Range], Field(min_length=1)]


FREQUENCY, UPDATES = "algo_kwargs.train_frequency", "algo_kwargs.gradient_steps"


def rounds(ratio: Any, frequency: int) -> tuple[int, int]:
    """`train_frequency` and `gradient_steps` of so many updates per step: rounds stay as long as they are, unless they would be empty.

    0.5 with rounds of 256 steps is 128 updates in each; 0.125 with rounds of 2 steps is one update every 8.
    """
    if isinstance(ratio, bool) or not isinstance(ratio, (int, float)) or not 0 < ratio < math.inf:
        raise ConfigError(f"{RATIO} must be a number above 0, got {ratio!r}")
    updates = round(ratio * frequency)
    return (frequency, updates) if updates >= 1 else (round(1 / ratio), 1)


@dataclass(frozen=True)
class Search:
    """What is searched, and how one choice is judged."""

    config_file: str
    base: dict[str, Any]  # the config file's values, with the budget of a trial
    space: Mapping[str, Range]
    seeds: tuple[int, ...]
    episodes: int = 50
    policy: Policy = "final"

    def plans(self, number: int, choice: Mapping[str, Any]) -> tuple[Plan, ...]:
        """The runs of trial `number`."""
        source = f"trial {number}"
        changes = {"device": "cpu", "threads": 1, **self.changes(choice)}
        plans = []
        for seed in self.seeds:
            overrides = [Override(key, value, source) for key, value in {**changes, "seed": seed}.items()]
            config = build_config(self.base, overrides, source=source)
            plans.append(Plan(f"trial{number}__{config.algo}__seed{seed}", "tune", "", "", self.config_file, config, self.episodes))
        return tuple(plans)

    def changes(self, choice: Mapping[str, Any]) -> dict[str, Any]:
        """A choice as keys of a config."""
        changes = {key: value for key, value in choice.items() if key != RATIO}
        if RATIO in choice:
            settings = build_config(self.base, source=self.config_file).settings
            if not isinstance(settings, ValueSettings):
                raise ConfigError(f"{RATIO} is of rows that learn from replay")
            frequency = changes.get(FREQUENCY, settings.train_frequency)
            changes |= dict(zip((FREQUENCY, UPDATES), rounds(choice[RATIO], frequency), strict=True))
        return changes

    def check(self) -> None:
        """Every end of every range makes a config: a key that does not exist is found before the first trial."""
        settings = build_config(self.base, source=self.config_file).settings
        updates = settings.gradient_steps if isinstance(settings, ValueSettings) else 1
        if updates > 1 and FREQUENCY in self.space and not {RATIO, UPDATES} & self.space.keys():
            raise ConfigError(f"space: {FREQUENCY}: the config makes {updates} updates a round, however short a round is; search {RATIO}")
        if RATIO in self.space and UPDATES in self.space:
            raise ConfigError(f"space: {RATIO} decides {UPDATES}: search one of them")
        for key, values in self.space.items():
            for value in values.ends:
                try:
                    self.plans(0, {key: value})
                except ConfigError as error:
                    raise ConfigError(f"space: {key}: {value!r} cannot be tried ({error})") from None

    @property
    def identity(self) -> dict[str, Any]:
        """Two searches with the same can share a study."""
        ranges = {key: values.model_dump(mode="json") for key, values in self.space.items()}
        judged = {"seeds": list(self.seeds), "episodes": self.episodes, "policy": self.policy}
        loaded: dict[str, Any] = json.loads(json.dumps({"base": self.base, "space": ranges, **judged}))
        return loaded


def make_search(
    config_file: str, space_file: Path | None, *, seeds: Sequence[int], total_timesteps: int | None, episodes: int, policy: Policy
) -> Search:
    """The search for a config file, all of it checked."""
    path = find_config(config_file)
    base = read_yaml(path, source=config_file)
    changes = [] if total_timesteps is None else [Override("total_timesteps", total_timesteps, f"--total-timesteps {total_timesteps}")]
    config = build_config(base, changes, source=config_file)
    if total_timesteps is not None:
        base = {**base, "total_timesteps": total_timesteps}
    _require_fresh(seeds)
    episodes = whole_number(episodes, "the number of episodes", least=1)
    space = load_space(space_file) if space_file is not None else space_of(config.algo)
    search = Search(config_file, base, space.space, tuple(seeds), episodes, policy)
    search.check()
    return search


def _require_fresh(seeds: Sequence[int]) -> None:
    """A config chosen by the seeds of a table would be judged by the runs it was chosen by."""
    for name in shipped_suites():
        taken = sorted(set(seeds) & set(load_suite(name).seeds))
        if taken:
            raise ConfigError(
                f"--seeds: {', '.join(map(str, taken))} belong to the suite {name}, by which the config is judged: take others"
            )


def load_space(path: Path) -> Space:
    values = read_mapping(path, such_as="space:")
    try:
        return Space(**values)
    except ValidationError as error:
        unknown = " is not a key of a space file (what is searched stands under `space:`)"
        raise ConfigError(f"{path}: {one_line(error, unknown=lambda key: unknown)}") from None


def space_of(row: str) -> Space:
    """The shipped space that names the row."""
    for path in sorted(SHIPPED_SPACES.glob("*.yaml")):
        space = load_space(path)
        if row in space.rows:
            return space
    raise ConfigError(f"no search space is shipped for {row}: give one with --space FILE")


def tune(
    search: Search, study_file: Path, output: Path, *, trials: int, jobs: int, quiet: bool = False, work: Work = run_plan
) -> Iterator[str]:
    """Goes on until the study holds `trials` trials, and writes the best config. Yields what to print."""
    optuna = _optuna()
    for path in (study_file, output):
        if not path.parent.is_dir():
            raise UserError(f"{path}: there is no folder {path.parent}")
        if path.is_dir():
            raise UserError(f"{path}: is a folder, not a file to write")
    study = _open(study_file, search)
    together = max(1, jobs // len(search.seeds))
    while (done := _count(study)) < trials:
        # The sampler's seed is the place in the study: a search that was interrupted goes on as it would have.
        study.sampler = optuna.samplers.TPESampler(seed=len(study.trials))
        batch = [_ask(study, search) for _ in range(min(together, trials - done))]
        yield from _run_batch(study, search, batch, jobs=jobs, quiet=quiet, work=work)
    complete = study.get_trials(deepcopy=False, states=(optuna.trial.TrialState.COMPLETE,))
    if not complete:
        again = "it keeps them, so name another with --study when the cause is mended"
        raise RunError(f"{study_file}: none of {trials} trials could be run to its end; {again}")
    best = study.best_trial
    with failing_as_run_error(output):
        write_text(output, _best_yaml(search, best, len(complete)))
    yield f"best of {len(complete)}: trial {best.number}, {best.value:.4g}; written to {output}"


class _Asked:
    """A trial, the settings it was given, and its runs (none where they contradict each other)."""

    def __init__(self, trial: optuna.Trial, choice: dict[str, Any], plans: tuple[Plan, ...], refused: str) -> None:
        self.trial, self.choice, self.plans, self.refused = trial, choice, plans, refused


def _ask(study: optuna.Study, search: Search) -> _Asked:
    trial = study.ask()
    choice = {key: values.suggest(trial, key) for key, values in search.space.items()}
    try:
        return _Asked(trial, choice, search.plans(trial.number, choice), "")
    except ConfigError as error:  # each setting is valid, but not together
        return _Asked(trial, choice, (), str(error))


def _run_batch(study: optuna.Study, search: Search, batch: Sequence[_Asked], *, jobs: int, quiet: bool, work: Work) -> Iterator[str]:
    optuna = _optuna()
    plans = [plan for asked in batch for plan in asked.plans]
    with tempfile.TemporaryDirectory(prefix="tune-") as folder:
        steps = sum(plan.config.total_timesteps for plan in plans)
        outcome = run_plans(plans, Path(folder), jobs=jobs, display=Display(len(plans), steps, quiet=quiet), work=work)
    scores = {record.name: record.score(search.policy) for record in outcome.records}
    for asked in batch:
        reason = asked.refused or next((outcome.failures[plan.name] for plan in asked.plans if plan.name in outcome.failures), "")
        shown = ", ".join(f"{key.rpartition('.')[2]}={_short(value)}" for key, value in asked.choice.items())
        if reason:
            asked.trial.set_user_attr("reason", reason)
            study.tell(asked.trial, state=optuna.trial.TrialState.FAIL)
            yield f"trial {asked.trial.number}: failed ({reason}); {shown}"
        else:
            value = mean(scores[plan.name] for plan in asked.plans)
            study.tell(asked.trial, value)
            yield f"trial {asked.trial.number}: {value:.4g}; {shown}"


def _open(path: Path, search: Search) -> optuna.Study:
    """The study in the file, or a new one. A study of another search is refused before anything is written to it."""
    library = _optuna()
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    exists = path.exists()
    try:
        storage = JournalStorage(JournalFileBackend(str(path)))
        options = {"study_name": "tune", "storage": storage}
        study: optuna.Study = library.load_study(**options) if exists else library.create_study(**options, direction="maximize")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path}: cannot be used as a study ({type(error).__name__}: {' '.join(str(error).split())})") from None
    known = study.user_attrs.get("search")
    if known is None:
        study.set_user_attr("search", search.identity)
    elif known != search.identity:
        changed = ", ".join(key for key in search.identity if known.get(key) != search.identity[key])
        raise UserError(f"{path}: holds a study with another {changed}: name another file with --study")
    for trial in study.get_trials(deepcopy=False, states=(library.trial.TrialState.RUNNING,)):
        study.tell(trial.number, state=library.trial.TrialState.FAIL)  # was interrupted
    return study


def _count(study: optuna.Study) -> int:
    """Trials that came to an end: with a value, or with a reason why not. One that was interrupted has neither."""
    return sum(trial.value is not None or "reason" in trial.user_attrs for trial in study.get_trials(deepcopy=False))


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _best_yaml(search: Search, best: Any, complete: int) -> str:
    values = json.loads(json.dumps(search.base))
    choice = {key: json.loads(best.params[key]) if of.choices else best.params[key] for key, of in search.space.items()}
    for key, value in search.changes(choice).items():
        *path, last = key.split(".")
        place = values
        for part in path:
            place = place.setdefault(part, {})
        place[last] = value
    seeds = ", ".join(map(str, search.seeds))
    head = (
        f"# Found by `rl-training tune` from {search.config_file}: trial {best.number}, the best of {complete} by the mean return\n"
        f"# of the {search.policy} policy over {search.episodes} fresh episodes with each of the seeds {seeds}: {best.value:.4g}.\n"
    )
    return head + yaml.safe_dump(values, sort_keys=False, allow_unicode=True)


def _optuna() -> Any:
    try:
        import optuna
    except ImportError as error:
        raise UserError(f'tuning needs the extra `tune`: pip install "rl-training[tune]" ({error})') from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna

"""A suite: tasks, on each the configs to run, and for each the seeds and the budget, in the order of their worth.

A suite is a YAML file (`assets/suites/` holds the shipped ones). Everything it names is loaded before the first run starts, so that a row,
a config or a key that does not exist is found at once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from typing_extensions import Self

from rl_training.errors import ConfigError
from rl_training.experiment.config import Override, TrainConfig, build_config, load_config
from rl_training.experiment.explain import did_you_mean, one_line
from rl_training.experiment.settings import Count
from rl_training.experiment.yaml_text import read_mapping
from rl_training.ledger.references import Published, load_reference

SHIPPED_SUITES = Path(__file__).resolve().parent.parent / "assets" / "suites"

_as_tuple = BeforeValidator(lambda value: tuple(value) if isinstance(value, list) else value)
Seeds = Annotated[tuple[Annotated[int, Field(ge=0)], ...], Field(min_length=1), _as_tuple]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class Judgement(_Part):
    """Passed by a config whose policies reach `threshold` for `needed` of the seeds it is run with."""

    threshold: float
    needed: Count
    policy: Literal["best", "final"] = "final"


class SuiteRun(_Part):
    """One config over its seeds: a file with changes (`set`, dotted keys), or a row trained by the task's `base`.

    device: the kind it is about, where the question is what happens on that kind; it is run with no other `--device`.
    """

    config: str | None = None
    algo: str | None = None
    label: str = Field("", pattern=r"^[A-Za-z0-9_.-]*$")  # in the records' names
    note: str = ""  # in tables
    set: dict[str, Any] = Field(default_factory=dict)
    seeds: Seeds | None = None
    total_timesteps: Count | None = None
    device: Literal["cpu", "cuda"] | None = None
    judgement: Judgement | None = None
    published: Published | None = None  # the runs of others it stands beside

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.config is None) == (self.algo is None):
            raise ValueError("a run names either a config or an algo (trained by the task's base)")
        return self


def _run(value: Any) -> Any:
    return {"config": value} if isinstance(value, str) else value


class Task(_Part):
    """What is to be learned in how many steps, and what is known about it.

    about: a few sentences for the results page: what the task asks for, and what simple policies get.
    anchors: published results by algorithm (`anchor_source` says whose). reference: the algorithm the others are compared with.
    peers: other packages whose runs on this task are recorded too, as `<peer>__<the configs' name>`.
    scale: the returns that count as 0 and 1 where tasks are averaged. solved: the return at which the task counts as solved.
    """

    name: str = Field(min_length=1)
    about: str = ""
    total_timesteps: Count
    runs: Annotated[tuple[Annotated[SuiteRun, BeforeValidator(_run)], ...], Field(min_length=1), _as_tuple]
    base: dict[str, Any] | None = None
    episodes: Count | None = None  # of the evaluation at the end, where it is not the suite's number
    solved: float | None = None
    scale: Annotated[tuple[float, float], _as_tuple] | None = None
    anchors: dict[str, float] = Field(default_factory=dict)
    anchor_source: str = ""
    reference: str = ""
    peers: Annotated[tuple[str, ...], _as_tuple] = ()
    judgement: Judgement | None = None


class Suite(_Part):
    """A whole suite file. `references`: figures of others at protocols of their own, shown below its tasks and compared with nothing."""

    name: str
    description: str = ""
    seeds: Seeds
    episodes: Count = 100
    references: Annotated[tuple[str, ...], _as_tuple] = ()
    tasks: Annotated[tuple[Task, ...], Field(min_length=1), _as_tuple]


@dataclass(frozen=True)
class Plan:
    """One run to make: its name (which is its file's), and everything that decides it."""

    name: str
    suite: str
    task: str
    label: str
    config_file: str
    config: TrainConfig
    episodes: int

    @property
    def group(self) -> str:
        """What the runs of one config have in common: the name without the seed."""
        return group_of(self.name)


@dataclass(frozen=True)
class Group:
    """The plans of one config, one per seed, with the task they belong to."""

    name: str
    task: Task
    note: str
    judgement: Judgement | None
    plans: tuple[Plan, ...]
    published: Published | None = None
    device: str | None = None  # the only kind it is run on; None: any

    @property
    def algorithm(self) -> str:
        return self.plans[0].config.algo

    def runs_on(self, device: str) -> bool:
        return self.device in (None, device.partition(":")[0])


def run_name(config: str, label: str, seed: int) -> str:
    """`<row>__<config>[__label]__seed<seed>`: of a config file, named after its folder (where it is given with one) and itself."""
    path = Path(config)
    return "__".join(part for part in (path.parent.name, path.stem, label, f"seed{seed}") if part)


def group_of(name: str) -> str:
    return name.rsplit("__seed", 1)[0]


def _run_name(task: Task, run: SuiteRun) -> str:
    config = f"{run.algo}/{task.name.lower().replace(' ', '_')}" if run.config is None else run.config
    return group_of(run_name(config, run.label, 0))


def shipped_suites() -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in SHIPPED_SUITES.glob("*.yaml")))


def load_suite(name: str | Path) -> Suite:
    """The suite file `name`, or the shipped suite of that name."""
    path = Path(name)
    if not path.is_file():
        path = SHIPPED_SUITES / f"{name}.yaml"
        if str(name) not in shipped_suites():
            raise ConfigError(f"{name}: no such suite, neither a file nor a shipped one{did_you_mean(name, shipped_suites())}")
    values = read_mapping(path, such_as="tasks:")
    try:
        return Suite(**{"name": path.stem, **values})
    except ValidationError as error:
        raise ConfigError(f"{name}: {one_line(error, unknown=lambda key: ' is not a key of a suite')}") from None


@lru_cache
def _shipped_suite(name: str) -> Suite:
    return load_suite(name)


def published_beside(suite: object, group: str, env_id: str, env_kwargs: object) -> Published | None:
    """The runs of others that a shipped suite puts beside the runs `group`, where these were played as the suite says."""
    if not isinstance(suite, str) or suite not in shipped_suites():
        return None
    for task in _shipped_suite(suite).tasks:
        for run in task.runs:
            if run.published is not None and _run_name(task, run) == group:
                with suppress(ConfigError):
                    run.published.check(env_id, env_kwargs if isinstance(env_kwargs, Mapping) else {})
                    return run.published
    return None


def plan_groups(suite: Suite, seeds: tuple[int, ...] | None = None, *, device: str = "cpu") -> tuple[Group, ...]:
    """Every config of the suite with its runs, all loaded and checked. `seeds` replaces the suite's own. Runs side by side share the
    machine: one thread each, and no GPU unless `device` says so. A config that is about one kind of device keeps it."""
    groups: dict[str, Group] = {}
    for name in suite.references:
        load_reference(name)
    for task in suite.tasks:
        for run in task.runs:
            name = _run_name(task, run)
            if name in groups:
                raise ConfigError(f"suite {suite.name}: {name} is named twice: give one of them a label")
            on = run.device or device
            plans = tuple(
                dataclasses.replace(plan, config=plan.config.replace(device=on)) if on != "cpu" else plan
                for plan in _plans(suite, task, run, seeds or run.seeds or suite.seeds)
            )
            if run.published is not None:
                try:
                    run.published.check(plans[0].config.env_id, plans[0].config.env_kwargs)
                except ConfigError as error:
                    raise ConfigError(f"suite {suite.name}: {name}: {error}") from None
            groups[name] = Group(name, task, run.note or run.label, run.judgement or task.judgement, plans, run.published, run.device)
    return tuple(groups.values())


def _plans(suite: Suite, task: Task, run: SuiteRun, seeds: tuple[int, ...]) -> Iterator[Plan]:
    name = _run_name(task, run)
    source = f"suite {suite.name}: {name}"
    changes = {"total_timesteps": run.total_timesteps or task.total_timesteps, **run.set}
    overrides = [Override(key, value, source) for key, value in changes.items()]
    if run.config is not None:
        yield from plan_config(
            run.config, overrides, seeds, label=run.label, episodes=task.episodes or suite.episodes, suite=suite.name, task=task.name
        )
        return
    if task.base is None:
        raise ConfigError(f"{source}: its task has no base to train {run.algo} by")
    base = {"output_dir": "runs", "seed": 0, **task.base, "algo": run.algo}
    for seed in seeds:
        config = build_config(base, [*_here(source), *overrides, Override("seed", seed, source)], source=source)
        yield Plan(
            f"{name}__seed{seed}", suite.name, task.name, run.label, f"suites/{suite.name}.yaml", config, task.episodes or suite.episodes
        )


def plan_config(
    config_file: str,
    overrides: Sequence[Override | str],
    seeds: Iterable[int],
    *,
    label: str = "",
    episodes: int = 100,
    suite: str = "",
    task: str = "",
) -> Iterator[Plan]:
    """The plans of one config file, changed by `overrides`, one for each seed."""
    for seed in seeds:
        config = load_config(config_file, [*_here(config_file), *overrides, Override("seed", seed, config_file)])
        yield Plan(run_name(config_file, label, seed), suite, task, label, config_file, config, episodes)


def _here(source: str) -> list[Override]:
    """Runs side by side share the machine: one thread each, and no GPU."""
    return [Override("device", "cpu", source), Override("threads", 1, source)]

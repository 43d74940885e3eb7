"""Trackers beside metrics.jsonl and TensorBoard, by config: `trackers: [wandb, {mlflow: {experiment: cartpole}}]` (extra `track`).

A tracker cannot unlearn: a resumed run goes on in the tracker's own run, where records past the checkpoint then stand twice. One that
cannot start is an error; one that fails later is said once, and the run goes on without it, because a network must not cost a training run.
"""

from __future__ import annotations

import importlib.util
import inspect
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from rl_training.errors import ConfigError, RunError, warn
from rl_training.experiment.credentials import MASK, masked
from rl_training.experiment.explain import did_you_mean, shown

if TYPE_CHECKING:
    from rl_training.experiment.logging import Sink
    from rl_training.experiment.runs import RunDirectory


class TrackerCall(NamedTuple):
    """One entry of the list, checked: a known name with arguments its tracker takes."""

    name: str
    arguments: dict[str, Any]


def parse_trackers(entries: Sequence[Any]) -> tuple[TrackerCall, ...]:
    """Names and `{name: {argument: value}}`; a ValueError says what is wrong, in words that follow the key `trackers`."""
    calls = []
    for entry in entries:
        if isinstance(entry, str):
            call = TrackerCall(entry, {})
        elif isinstance(entry, Mapping) and len(entry) == 1 and isinstance(next(iter(entry.values())), (Mapping, type(None))):
            ((name, arguments),) = entry.items()
            call = TrackerCall(str(name), dict(arguments or {}))
        else:
            raise ValueError(f"must be a list of names or {{name: {{arguments}}}}, got {shown(entry)}")
        if call.name not in _TABLE:
            raise ValueError(f"has no {call.name!r}{did_you_mean(call.name, _TABLE)}")
        known = list(inspect.signature(_TABLE[call.name]).parameters)[2:]  # the first two are the run's directory and the tracker's id
        for argument in call.arguments:
            if argument not in known:
                raise ValueError(f".{call.name}.{argument} is not an argument of {call.name}{did_you_mean(argument, known)}")
        calls.append(call)
    names = [call.name for call in calls]
    if len(set(names)) < len(names):
        raise ValueError(f"names each tracker once, got {', '.join(names)}")
    return tuple(calls)


def require_trackers(entries: Sequence[Any]) -> None:
    """Raises ConfigError, before anything is written, where a tracker's package is not installed or its address lacks its credentials."""
    for call in parse_trackers(entries):
        if MASK in str(call.arguments.get("tracking_uri")) and not os.environ.get(_ADDRESS):
            raise ConfigError(
                f"trackers.{call.name}.tracking_uri: its credentials are not saved with a run: set {_ADDRESS} to the whole address"
            )
        for module in _NEEDS[call.name]:
            if importlib.util.find_spec(module) is None:
                raise ConfigError(f"trackers: {call.name} needs the package {module}: pip install 'rl-training[track]'")


def open_trackers(entries: Sequence[Any], directory: RunDirectory) -> list[Sink]:
    """A sink for each tracker, which goes on in its own earlier run where the run is resumed (its id stands in metadata.json)."""
    calls = parse_trackers(entries)
    if not calls:
        return []
    ids: dict[str, str] = dict(directory.metadata.get("trackers", {}))
    sinks: list[Sink] = []
    for name, arguments in calls:
        try:
            tracker = _TABLE[name](directory, ids.get(name), **arguments)
        except Exception as error:  # a tracker's client may raise anything: it is chained, and the reason said
            raise RunError(f"{name} could not start: {masked(' '.join(str(error).split()))}") from error
        ids[name] = tracker.id
        sinks.append(_Forgiving(name, tracker))
    directory.update_metadata(trackers=ids)
    return sinks


class _Forgiving:
    """A tracker that fails is said once and then left out."""

    def __init__(self, name: str, sink: Sink) -> None:
        self._name, self._sink = name, sink
        self._failed = False

    def write(self, step: int, values: Mapping[str, float]) -> None:
        self._attempt(lambda: self._sink.write(step, values), f"at step {step}")

    def close(self) -> None:
        self._attempt(self._sink.close, "when the run ended")

    def _attempt(self, action: Callable[[], None], when: str) -> None:
        if self._failed:
            return
        try:
            action()
        except Exception as error:  # as above; metrics.jsonl has every record
            self._failed = True
            reason = masked(" ".join(f"{type(error).__name__}: {error}".split()))
            warn(f"{self._name} failed {when} and is left out from here on ({reason})", RuntimeWarning)


class WandbSink:
    """Weights & Biases. Its files lie in the run's directory; `mode: offline` sends nothing until `wandb sync`."""

    def __init__(
        self,
        directory: RunDirectory,
        tracker_id: str | None,
        *,
        project: str = "rl-training",
        entity: str | None = None,
        group: str | None = None,
        mode: Literal["online", "offline", "disabled"] | None = None,
    ) -> None:
        import wandb

        config = directory.config
        self._run = wandb.init(
            project=project,
            entity=entity,
            group=group,
            mode=mode,
            id=tracker_id,
            resume="allow",
            name=directory.path.name,
            dir=directory.path,
            config=config.to_dict(),
            tags=[*config.tags, config.algo, config.env_id],
            settings=wandb.Settings(silent=True, console="off"),  # the terminal is the progress bar's
        )
        self.id = str(self._run.id)
        # Not wandb's own step, which must never go back: a resumed run does.
        self._run.define_metric("global_step")
        self._run.define_metric("*", step_metric="global_step")

    def write(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log({"global_step": step, **values})

    def close(self) -> None:
        self._run.finish()


class MlflowSink:
    """MLflow. Without a `tracking_uri` (or MLFLOW_TRACKING_URI) everything goes to `mlflow.db` beside the runs, an SQLite file.

    A user and password in `tracking_uri` are masked in all that is saved: a resumed run takes the whole address from MLFLOW_TRACKING_URI.
    """

    def __init__(
        self, directory: RunDirectory, tracker_id: str | None, *, tracking_uri: str | None = None, experiment: str = "rl-training"
    ) -> None:
        from mlflow.entities import Param, RunTag
        from mlflow.tracking import MlflowClient

        logging.getLogger("mlflow").setLevel(logging.WARNING)  # it tells of every table it makes
        beside = f"sqlite:///{directory.path.resolve().parent / 'mlflow.db'}"
        whole = None if MASK in (tracking_uri or "") else tracking_uri
        self._client = MlflowClient(tracking_uri=whole or os.environ.get(_ADDRESS) or beside)
        if tracker_id is None:
            found = self._client.get_experiment_by_name(experiment)
            experiment_id = self._client.create_experiment(experiment) if found is None else found.experiment_id
            run = self._client.create_run(experiment_id, run_name=directory.path.name)
            params = [Param(key, str(value)) for key, value in _flat(directory.config.to_dict())]
            self._client.log_batch(run.info.run_id, params=params, tags=[RunTag("tags", ", ".join(directory.config.tags))])
            self.id = str(run.info.run_id)
        else:
            self._client.update_run(tracker_id, status="RUNNING")
            self.id = tracker_id

    def write(self, step: int, values: Mapping[str, float]) -> None:
        from mlflow.entities import Metric

        now = time.time_ns() // 10**6
        self._client.log_batch(self.id, metrics=[Metric(name, value, now, step) for name, value in values.items()])

    def close(self) -> None:
        self._client.set_terminated(self.id)


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(`algo_kwargs.gamma`, 0.99), ...: MLflow's parameters have no depth."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


_TABLE: dict[str, Callable[..., Any]] = {"wandb": WandbSink, "mlflow": MlflowSink}
_ADDRESS = "MLFLOW_TRACKING_URI"
_NEEDS = {"wandb": ("wandb",), "mlflow": ("mlflow", "sqlalchemy")}

"""Weights & Biases and MLflow, offline, with the real packages: what they hold after a run, and what a failure costs."""

from __future__ import annotations

import importlib.util
import json
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from command_line import Cli
from rl_training import DQN
from rl_training.errors import ConfigError, RunError
from rl_training.experiment import tracking
from rl_training.experiment.config import TrainConfig

SMALL: dict[str, Any] = {
    "hidden_sizes": [8],
    "batch_size": 8,
    "buffer_capacity": 300,
    "learning_starts": 20,
    "eval_episodes": 1,
    "eval_interval": 0,
    "log_interval": 50,
    "total_timesteps": 100,
}


def needs(*modules: str) -> Any:
    missing = [module for module in modules if importlib.util.find_spec(module) is None]
    return pytest.mark.skipif(bool(missing), reason=f"the extra `track` is not installed: no {', '.join(missing)}")


def records(run_dir: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]


def wandb_records(file: Path) -> Iterator[Any]:
    """The records of an offline run: a LevelDB log (checksum, length, kind, data) after seven bytes of its own."""
    from wandb.proto import wandb_internal_pb2

    data, at, whole = file.read_bytes(), 7, b""
    while at + 7 <= len(data):
        if 2**15 - at % 2**15 < 7:  # a block's last bytes, too few for a header
            at += 2**15 - at % 2**15
        length, kind = struct.unpack_from("<HB", data, at + 4)
        whole += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # all of a record, or its last part
            record = wandb_internal_pb2.Record()
            record.ParseFromString(whole)
            whole = b""
            yield record


@needs("wandb")
def test_wandb_offline_holds_the_records_and_goes_on_when_resumed(tmp_path: Path) -> None:
    import wandb

    tracker = {"wandb": {"mode": "offline", "project": "mine", "group": "ours"}}
    agent = DQN("CartPole-v1", output_dir=tmp_path, trackers=[tracker], tags=["quick"], **SMALL)
    agent.learn(50)
    time.sleep(1)  # wandb names its folders by the second
    run = agent.learn().run_dir
    wandb.teardown()  # its own process writes the files, and has written them when it has ended
    files = sorted(run.glob("wandb/offline-run-*/*.wandb"))
    assert len(files) == 2  # one for each process that wrote, of one and the same run
    found = [list(wandb_records(file)) for file in files]
    heads = [record.run for each in found for record in each if record.HasField("run")]
    assert {(head.run_id, head.project, head.run_group) for head in heads} == {(heads[0].run_id, "mine", "ours")}
    assert set(heads[0].tags) == {"quick", "dqn", "CartPole-v1"} and heads[0].display_name == run.name
    config = {item.key: json.loads(item.value_json) for item in heads[0].config.update}
    assert config["algo"] == "dqn" and config["algo_kwargs"]["batch_size"] == 8
    logged = [
        {(item.key or item.nested_key[0]): json.loads(item.value_json) for item in record.history.item}
        for each in found
        for record in each
        if record.HasField("history")
    ]
    assert [row["global_step"] for row in logged] == [record["step"] for record in records(run)]
    for row, record in zip(logged, records(run), strict=True):
        assert {key: row[key] for key in record if key != "step"} == pytest.approx({k: v for k, v in record.items() if k != "step"})


@needs("mlflow", "sqlalchemy", "alembic")
def test_mlflow_holds_the_records_and_goes_on_when_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mlflow.tracking import MlflowClient

    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.chdir(tmp_path)
    agent = DQN("CartPole-v1", output_dir="runs", trackers=[{"mlflow": {"experiment": "mine"}}], **SMALL)
    agent.learn(50)
    run = agent.learn().run_dir
    assert {entry.name for entry in tmp_path.iterdir()} == {"runs"}  # its files lie beside the runs, nowhere else
    client = MlflowClient(tracking_uri=f"sqlite:///{tmp_path / 'runs' / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("mine")
    assert experiment is not None
    (tracked,) = client.search_runs([experiment.experiment_id])  # resumed into the same one
    assert tracked.info.run_name == run.name and tracked.info.status == "FINISHED"
    assert tracked.data.params["algo"] == "dqn" and tracked.data.params["algo_kwargs.batch_size"] == "8"
    for tag in ("train/loss", "rollout/ep_rew_mean", "eval/mean_reward"):
        history = [(metric.step, metric.value) for metric in client.get_metric_history(tracked.info.run_id, tag)]
        assert history == [(record["step"], pytest.approx(record[tag])) for record in records(run) if tag in record]
        assert history


def test_the_config_holds_them() -> None:
    values = {"algo": "dqn", "env_id": "CartPole-v1", "seed": 1, "total_timesteps": 10, "output_dir": "runs"}
    config = TrainConfig(**values, trackers=["wandb", {"mlflow": {"experiment": "x"}}])
    assert TrainConfig(**config.to_dict()).to_dict() == config.to_dict()
    assert config.to_dict()["trackers"] == ["wandb", {"mlflow": {"experiment": "x"}}]


def test_one_that_is_not_installed_is_refused_before_anything_is_written(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "wandb" else real(name, *rest))
    said = cli.refused("train", "--config", "small.yaml", "--track", "wandb")
    assert said == "error: trackers: wandb needs the package wandb: pip install 'rl-training[track]'"


class Failing:
    """A tracker whose network goes away."""

    id = "1"
    started = True
    written = 0

    def __init__(self, directory: Any, tracker_id: str | None) -> None:
        if not self.started:
            raise OSError("no network")

    def write(self, step: int, values: Any) -> None:
        type(self).written += 1
        raise OSError("the network is gone")

    def close(self) -> None:
        raise OSError("still gone")


def test_a_tracker_that_fails_does_not_cost_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(tracking._TABLE, "wandb", Failing)
    monkeypatch.setitem(tracking._NEEDS, "wandb", ())
    monkeypatch.setattr(Failing, "written", 0)
    with pytest.warns(
        RuntimeWarning, match=r"wandb failed at step 50 and is left out from here on \(OSError: the network is gone\)"
    ) as said:
        result = DQN("CartPole-v1", output_dir=tmp_path, trackers=["wandb"], **SMALL).learn()
    assert result.metrics["global_step"] == 100 and len(records(result.run_dir)) == 3
    assert Failing.written == 1 and len(said) == 1


def test_a_tracker_that_cannot_start_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(tracking._TABLE, "wandb", Failing)
    monkeypatch.setitem(tracking._NEEDS, "wandb", ())
    monkeypatch.setattr(Failing, "started", False)
    with pytest.raises(RunError, match="wandb could not start: no network"):
        DQN("CartPole-v1", output_dir=tmp_path, trackers=["wandb"], **SMALL).learn()


def test_bad_entries() -> None:
    for entries, message in (("wandb", "trackers must be a list"), ([["wandb"]], "must be a list of names"), ([{"mlflow": 3}], "must be")):
        with pytest.raises(ConfigError, match=message):
            DQN("CartPole-v1", trackers=entries)


SECRET = "http://me:hunter2@127.0.0.1:1/x?api_token=sesame"


def saved_text(folder: Path) -> str:
    return "".join(path.read_text(errors="replace") for path in sorted(folder.rglob("*")) if path.is_file())


def test_credentials_are_used_and_not_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[str | None] = []

    class Sink:
        id = "7"

        def __init__(self, directory: Any, tracker_id: str | None, *, tracking_uri: str | None = None, experiment: str = "x") -> None:
            used.append(tracking_uri)

        def write(self, step: int, values: Any) -> None:
            raise RuntimeError(f"no connection to {SECRET}")

        def close(self) -> None: ...

    monkeypatch.setitem(tracking._TABLE, "mlflow", Sink)
    monkeypatch.setitem(tracking._NEEDS, "mlflow", ())
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setattr("sys.argv", ["train", "--set", f"trackers=[{{mlflow: {{tracking_uri: {SECRET}}}}}]"])
    agent = DQN("CartPole-v1", **SMALL, output_dir=tmp_path, trackers=[{"mlflow": {"tracking_uri": SECRET}}])
    with pytest.warns(RuntimeWarning, match="mlflow failed") as warned:
        run_dir = agent.learn(50).run_dir
        agent.learn(50)  # goes on with what this process was told
    assert used == [SECRET, SECRET]
    for text in (saved_text(run_dir), *(str(each.message) for each in warned)):
        assert "hunter2" not in text and "sesame" not in text and "***@127.0.0.1:1/x?api_token=***" in text
    resumed = DQN.resume(run_dir)
    with pytest.raises(ConfigError, match=r"its credentials are not saved with a run: set MLFLOW_TRACKING_URI to the whole address"):
        resumed.learn(10)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", SECRET)
    with pytest.warns(RuntimeWarning, match="mlflow failed"):
        resumed.learn(10)
    assert "hunter2" not in saved_text(run_dir)


@needs("mlflow", "sqlalchemy")
def test_mlflow_takes_the_whole_address_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def client(tracking_uri: str) -> Any:
        asked.append(tracking_uri)
        raise RuntimeError(f"no connection to {tracking_uri}")

    monkeypatch.setattr("mlflow.tracking.MlflowClient", client)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", SECRET)
    masked = {"mlflow": {"tracking_uri": "http://***@127.0.0.1:1/x"}}
    with pytest.raises(RunError, match="mlflow could not start") as caught:
        DQN("CartPole-v1", **SMALL, output_dir=tmp_path, trackers=[masked]).learn(50)
    assert asked == [SECRET] and "hunter2" not in str(caught.value)

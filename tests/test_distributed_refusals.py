"""What cannot be distributed is refused in one line, before anything is written."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from command_line import Cli
from distributed_runs import config, fake
from fake_ray import FakeCluster
from resume_harness import run_config
from rl_training.errors import ConfigError, UserError
from rl_training.experiment.config import TrainConfig
from rl_training.runtime.distributed import cluster as cluster_module
from rl_training.runtime.distributed.cluster import require_answer
from rl_training.runtime.workflows import resume_training, train

__all__ = ["fake"]  # the fixture


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lockstep": True}, "lockstep needs actors > 0"),
        ({"ray_address": "auto"}, "ray_address needs actors > 0"),
        ({"replay_shards": 2}, "replay_shards needs actors > 0"),
        ({"actors": 2, "lockstep": True}, "lockstep needs actors: 1"),
        ({"actors": 1, "algo": "ppo", "algo_kwargs": {}}, "actors needs a row with a replay"),
        ({"actors": 1_000, "replay_shards": 25}, "must be <= 1,024 processes on one machine, got 1,025"),
        ({"actors": 1, "replay_shards": 401}, "buffer_capacity must be >= 1 for each of replay_shards: 401"),
        ({"algo": "r2d2", "algo_kwargs": {"initial_priority": "actor"}}, "initial_priority must be auto or max without actors"),
    ],
)
def test_what_does_not_go_together_is_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        TrainConfig(**{**run_config("dqn", num_envs=1), "output_dir": tmp_path, **changes})


def test_an_environment_that_cannot_be_sent_is_refused(tmp_path: Path) -> None:
    import threading

    import gymnasium as gym

    lock = threading.Lock()

    def make() -> gym.Env[Any, Any]:
        with lock:
            return gym.make("CartPole-v1")

    with pytest.raises(UserError, match="cannot be sent to actors: TypeError: cannot pickle"):
        train(config(tmp_path, actors=1).replace(env_id="callable:make"), env=make)
    assert not list(tmp_path.iterdir())


def test_normalisers_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="keep statistics of their own"):
        train(config(tmp_path, actors=1, env_kwargs={"wrappers": ["normalize_observation"]}))


@pytest.mark.parametrize("address", ["127.0.0.1:1", "nowhere", "ray://127.0.0.1:1", "127.0.0.1:99999"])
def test_an_address_nobody_answers_at_is_refused_in_one_line(address: str, here: Path, cli: Cli) -> None:
    run = cli("train", "--config", "small.yaml", "--actors", "1", "--ray-address", address)
    assert run.code == 2
    assert address in run.err and len(run.err.splitlines()) == 1
    with pytest.raises(UserError):
        require_answer(address)


@pytest.mark.parametrize(
    ("written", "said"),
    [("InvalidAuthToken: missing or incorrect", "asks for a token; set RAY_AUTH_MODE=token"), ("404", "Failed to connect, it seems$")],
)
def test_a_cluster_that_does_not_let_us_in_is_refused_in_one_line(
    written: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Ray's own lines, which come from below Python, say why; they are not ours to show."""

    def init(**how: Any) -> None:
        assert os.environ["RAY_IGNORE_UNHANDLED_ERRORS"] == "1"  # or it prints tracebacks of what actors raise
        os.write(2, f"gcs_client.cc: {written}\n".encode() * 20)
        raise ConnectionError("Failed to connect,\n it seems")

    monkeypatch.setenv("RAY_IGNORE_UNHANDLED_ERRORS", "")  # put back afterwards
    monkeypatch.delenv("RAY_IGNORE_UNHANDLED_ERRORS")
    ray = SimpleNamespace(is_initialized=lambda: False, init=init)
    monkeypatch.setattr(cluster_module, "import_ray", lambda: ray)
    monkeypatch.setattr(cluster_module, "require_answer", lambda address: None)
    with pytest.raises(UserError, match=f"Ray does not answer at somewhere:1: .*{said}"):
        cluster_module.Cluster(config(tmp_path, actors=1, ray_address="somewhere:1"), in_flight_bytes=0)
    os.write(2, b"mine")
    assert capfd.readouterr().err == "mine"


def test_a_ray_that_was_ended_is_asked_for_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupted start closes twice, and Ray starts a new one of its own for whoever calls it after its end."""
    asked: list[str] = []
    util = SimpleNamespace(remove_placement_group=lambda places: asked.append("remove"))
    ray = SimpleNamespace(
        is_initialized=lambda: False,
        init=lambda **how: asked.append("init"),
        shutdown=lambda: asked.append("shutdown"),
        util=util,
        _private=SimpleNamespace(worker=SimpleNamespace()),
    )
    monkeypatch.setattr(cluster_module, "import_ray", lambda: ray)
    monkeypatch.setattr(cluster_module.Cluster, "_take_places", lambda self, config: "places")
    for name in ("RAY_IGNORE_UNHANDLED_ERRORS", "RAY_USAGE_STATS_ENABLED", "RAY_worker_niceness"):
        monkeypatch.setenv(name, "1")  # put back afterwards
    cluster = cluster_module.Cluster(config(tmp_path, actors=1), in_flight_bytes=0)
    cluster.close()
    cluster.close()
    assert asked == ["init", "shutdown"]


def test_without_ray_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UserError, match=r"pip install 'rl-training\[distributed\]'"):
        train(config(tmp_path, actors=1))


def test_a_checkpoint_does_not_choose_the_cluster(tmp_path: Path, fake: FakeCluster) -> None:
    part = train(config(tmp_path, steps=200, actors=1, ray_address="127.0.0.1:1"))
    with pytest.raises(ConfigError, match="say which one it goes on with"):
        resume_training(part.run_dir, total_timesteps=400)
    assert resume_training(part.run_dir, total_timesteps=400, ray_address="127.0.0.1:2").metrics["global_step"] >= 400

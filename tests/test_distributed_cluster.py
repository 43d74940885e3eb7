"""Real Ray, minutes: two nodes on this machine, a process that is killed, what the object store holds, a cluster without room."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from resume_harness import run_config
from rl_training.errors import UserError
from rl_training.experiment.config import TrainConfig
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.distributed import cluster as cluster_module
from rl_training.runtime.distributed.remote_actors import IN_FLIGHT, RemoteActors
from rl_training.runtime.run import Run
from rl_training.runtime.workflows import resume_training, train
from rl_training.types import EnvStep

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def two_nodes() -> Iterator[Any]:
    """A head with room for the shards, and a second node for the actors; each has its own raylet and object store."""
    os.environ.setdefault("RAY_worker_niceness", "0")
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "num_gpus": 0, "object_store_memory": 80 << 20})
    cluster.add_node(num_cpus=2, num_gpus=0, object_store_memory=80 << 20)
    cluster.wait_for_nodes()
    yield cluster
    cluster.shutdown()


class Watch(Callback):
    """How many blocks there are at a time, and the death of an actor."""

    def __init__(self, *, kill_after: int = 0) -> None:
        self.blocks, self.kill_after = 0, kill_after
        self.most_blocks = 0
        self.records: list[dict[str, float]] = []

    def on_step(self, run: Run, step: EnvStep) -> None:
        import ray

        actors = run.parts.actor
        assert isinstance(actors, RemoteActors)
        self.blocks += 1
        self.most_blocks = max(self.most_blocks, len(actors._flights) + len(actors._arrived))
        if self.blocks == 1:
            # a function of a function's own is sent as it is: the nodes cannot import this module
            where = [ray.get(seat.process.__ray_call__.remote(lambda process: os.getpid())) for seat in actors._seats]
            self._pid = where[0]
        if self.blocks == self.kill_after:
            os.kill(self._pid, signal.SIGKILL)

    def on_log(self, run: Run, record: Any) -> None:
        self.records.append(dict(record))


def config(folder: Path, algo: str, address: str, **changes: Any) -> TrainConfig:
    base = run_config(algo, num_envs=2, total_timesteps=3_000)
    return TrainConfig(**{**base, "output_dir": folder, "log_interval": 500, "actors": 2, "ray_address": address, **changes})


@pytest.mark.parametrize("algo", ["dqn", "prioritized_dqn", "r2d2"])
def test_a_run_on_two_nodes_survives_the_death_of_an_actor_and_is_resumed(algo: str, tmp_path: Path, two_nodes: Any) -> None:
    watch = Watch(kill_after=5)
    with pytest.warns(RuntimeWarning, match="actor 0 is started again"):
        result = train(config(tmp_path, algo, two_nodes.address, replay_shards=1 if algo == "r2d2" else 0), callbacks=[watch])
    assert result.metrics["global_step"] >= 3_000
    assert watch.records[-1]["distributed/restarts"] == 1
    assert watch.records[-1]["distributed/lost_episodes"] == 2
    assert watch.most_blocks <= IN_FLIGHT * 2
    again = resume_training(result.run_dir, total_timesteps=4_000, ray_address=two_nodes.address)
    assert again.metrics["global_step"] >= 4_000


def test_actors_that_a_cluster_has_no_room_for_are_refused(tmp_path: Path, two_nodes: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_module, "PLACES_SECONDS", 3.0)
    with pytest.raises(UserError, match="no room for actors: 9 CPUs are needed"):
        train(config(tmp_path, "dqn", two_nodes.address, actors=9))
    assert not list(tmp_path.iterdir())

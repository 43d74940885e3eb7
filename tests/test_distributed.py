"""Actors elsewhere: in lockstep they are the local run, byte for byte; else they are kept busy, started again and saved."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from distributed_runs import LOCKSTEP, Killer, Steps, config, fake
from fake_ray import ActorDiedError, FakeCluster
from resume_harness import FILES, run_config
from rl_training.errors import RunError
from rl_training.experiment.checkpointing import open_checkpoint
from rl_training.experiment.config import TrainConfig
from rl_training.runtime.distributed import weights
from rl_training.runtime.distributed.blocks import BLOCK_STEPS, Facts, facts_of, facts_state, joined_steps
from rl_training.runtime.distributed.cluster import Cluster, reason
from rl_training.runtime.distributed.first_priorities import FirstPriorities
from rl_training.runtime.distributed.start import actors_rank
from rl_training.runtime.run import TrainResult
from rl_training.runtime.workflows import resume_training, train
from rl_training.types import EnvStep, Episode
from value_rows import parts_of

__all__ = ["fake"]  # the fixture


def lively(folder: Path, algo: str, **changes: Any) -> TrainConfig:
    """A run whose network soon acts, and acts otherwise after every few updates: with other weights it would be another run."""
    made = config(folder, algo, **changes)
    quick = {"learning_rate": 0.05, "epsilon_end": 0.01, "exploration_fraction": 0.3}
    return made.replace(algo_kwargs={**made.algo_kwargs, **quick})


def files(result: TrainResult) -> dict[str, bytes]:
    return {name: (result.checkpoint_path / name).read_bytes() for name in FILES}


@pytest.fixture(scope="module")
def local_ray() -> Iterator[None]:
    """One Ray for the tests of this file, started as a run starts it; a run uses the one that is there."""
    cluster = Cluster(TrainConfig(**{**run_config("dqn", num_envs=1), "output_dir": ".", "actors": 2}), in_flight_bytes=0)
    cluster.release()
    yield
    cluster.close()


PIXELS: dict[str, Any] = {"env_id": "MinAtar/Breakout-v1", "env_kwargs": {"frame_stack": 2}, "eval_max_steps": 60}


@pytest.mark.parametrize(
    ("algo", "task"),
    [("dqn", {}), ("prioritized_dqn", {}), ("r2d2", {}), ("r2d2", PIXELS)],
    ids=["dqn", "prioritized_dqn", "r2d2", "pixels"],
)
def test_in_lockstep_a_run_with_an_actor_elsewhere_is_the_local_one(
    algo: str, task: dict[str, Any], tmp_path: Path, local_ray: None
) -> None:
    local = train(lively(tmp_path, algo, **task))
    assert files(train(lively(tmp_path, algo, **task, **LOCKSTEP))) == files(local)


@pytest.mark.parametrize("algo", ["n_step_dqn", "noisy_dqn", "iqn", "drqn"])
def test_lockstep_holds_for_the_other_kinds_of_rows(algo: str, tmp_path: Path, fake: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "PUBLISH_SECONDS", 1e9)  # in lockstep weights do not wait
    local = train(lively(tmp_path, algo))
    assert files(train(lively(tmp_path, algo, **LOCKSTEP))) == files(local)


@pytest.mark.parametrize("algo", ["munchausen_dqn", "r2d2"])  # masks of both observations, and chunks with the actors' own priorities
def test_masks_go_with_what_actors_send(algo: str, tmp_path: Path, fake: FakeCluster) -> None:
    taxi = {"env_id": "Taxi-v4", "env_kwargs": {"wrappers": ["flatten", {"time_limit": {"max_steps": 20}}]}}
    local = train(config(tmp_path, algo, num_envs=2, **taxi))
    assert files(train(config(tmp_path, algo, num_envs=2, **taxi, **LOCKSTEP))) == files(local)
    assert train(config(tmp_path, algo, num_envs=2, **taxi, actors=2)).metrics["num_updates"] > 0


def test_a_lockstep_run_is_resumed_exactly(tmp_path: Path, fake: FakeCluster) -> None:
    whole = train(config(tmp_path, "r2d2", **LOCKSTEP))
    part = train(config(tmp_path, "r2d2", **LOCKSTEP, steps=160, schedule_timesteps=240))
    assert files(resume_training(part.run_dir, total_timesteps=240)) == files(whole)


def test_several_actors_share_the_work_and_the_numbers_of_environments(tmp_path: Path, fake: FakeCluster) -> None:
    seen = Steps()
    result = train(config(tmp_path, steps=2_000, num_envs=2, actors=3), callbacks=[seen])
    assert result.metrics["global_step"] >= 2_000
    assert {episode.env_index for step in seen.steps for episode in step.episodes} == set(range(6))
    assert [place for place, _ in fake.started] == [0, 1, 2]
    assert fake.closed
    # never more than two blocks of an actor under way
    assert max(process.most_queued for _, process in fake.started) == 2
    # as many updates as a local run makes at the same step: one for every 4 steps after the first 64
    for env_steps, updates in seen.updates:
        assert updates == max(0, env_steps // 4 - 15)
    assert all("distributed/staleness_updates" in record for record in seen.records)
    assert seen.records[-1]["distributed/staleness_updates"] > 0


@pytest.mark.parametrize(
    ("changes", "text"),
    [({"actors": 1}, "starting Ray with 1 actor…"), ({"actors": 2, "replay_shards": 2}, "starting Ray with 2 actors and 2 shards…")],
)
def test_the_start_of_ray_is_told_unless_it_is_quiet(
    changes: dict[str, int], text: str, tmp_path: Path, fake: FakeCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    made = config(tmp_path, steps=64, **changes)
    train(made, quiet=False)
    assert capsys.readouterr().err.splitlines()[0] == text
    train(made, quiet=True)
    assert "Ray" not in capsys.readouterr().err


def test_a_block_tells_of_all_its_steps(tmp_path: Path, fake: FakeCluster) -> None:
    seen = Steps()
    train(config(tmp_path, steps=600, num_envs=4, actors=1), callbacks=[seen])
    step = seen.steps[0]
    assert len(step.rewards) == len(step.valid) == BLOCK_STEPS
    assert len(step.obs) == 4


def test_the_ladder_runs_over_all_environments_of_all_actors(tmp_path: Path, fake: FakeCluster) -> None:
    ladder = config(tmp_path, steps=300, num_envs=2, actors=2).replace(algo_kwargs={"learning_starts": 64, "epsilon_ladder": True})
    train(ladder)
    rates = [fake.process(place).object().open().behaviour.epsilon(100) for place in (0, 1)]
    np.testing.assert_allclose(np.concatenate(rates), [0.4 ** (1 + 7 * i / 3) for i in range(4)])  # arXiv:1803.00933, §4.1 with N = 4


def test_weights_go_out_once_for_each_version(tmp_path: Path, fake: FakeCluster) -> None:
    seen = Steps()
    train(config(tmp_path, steps=1_000, num_envs=2, actors=3), callbacks=[seen])
    assert 1 < fake.ray.num_puts <= 1 + len(seen.steps)  # the network once, and at most one version for each block


def test_an_actor_that_dies_is_started_again_where_no_episode_was(tmp_path: Path, fake: FakeCluster) -> None:
    seen = Steps()
    with pytest.warns(RuntimeWarning, match="actor 1 is started again, 2 open episodes and what it had in flight are lost"):
        result = train(config(tmp_path, steps=2_000, num_envs=2, actors=2), callbacks=[Killer(fake, 1, after=4), seen])
    assert result.metrics["global_step"] >= 2_000
    assert [place for place, _ in fake.started] == [0, 1, 1]
    first, second = (process.object() for place, process in fake.started if place == 1)
    began = first._actor.envs.state_dict()["episodes"], second._plan.first_episode
    assert second._plan.seed != first._plan.seed
    finished = [episode for step in seen.steps for episode in step.episodes if episode.env_index >= 2]
    # the episodes after those it had open, whose first steps are in the replay
    assert began[1] == max(began[0]) + 1 and finished
    assert seen.records[-1]["distributed/restarts"] == 1
    assert seen.records[-1]["distributed/lost_episodes"] == 2


DEATH = """The actor died unexpectedly before finishing this task.
\tclass_name: ActorProcess
\tactor_id: 52c99875ace1ef9ae49336ce01000000
\tpid: 30206
\tnamespace: 4b5eece6-fbde-42d2-8903-c249729e294c
\tip: 192.0.2.2
The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR Worker exit detail: ..."""


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ActorDiedError(DEATH), "its worker process has died (pid 30206 on 192.0.2.2)"),
        (ActorDiedError("The actor died because its node has died. Node Id: 5"), "its node has died"),
        (RunError("an environment of ours"), "an environment of ours"),
        (ValueError("two\nlines"), "ValueError: two lines"),
    ],
)
def test_why_a_process_failed_is_said_in_a_line(error: Exception, text: str) -> None:
    assert reason(error) == text


def test_an_actor_that_dies_while_it_starts_is_started_again(tmp_path: Path, fake: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    start, deaths = fake.start, [2]

    def start_dead(kind: Any, place: int, *arguments: Any) -> Any:
        process = start(kind, place, *arguments)
        if place == 1 and deaths[0]:
            deaths[0] -= 1
            process.alive = False
        return process

    monkeypatch.setattr(fake, "start", start_dead)
    with pytest.warns(RuntimeWarning, match="actor 1 is started again: ActorDiedError"):
        result = train(config(tmp_path, steps=600, num_envs=2, actors=2))
    assert result.metrics["global_step"] >= 600
    deaths[0] = 10
    with pytest.warns(RuntimeWarning, match="started again"), pytest.raises(RunError, match="actor 1 failed 10 times, one after the other"):
        train(config(tmp_path, steps=600, num_envs=2, actors=2))


def test_an_environment_that_keeps_failing_ends_the_run_and_is_named(tmp_path: Path, fake: FakeCluster) -> None:
    import gymnasium as gym

    class Failing(gym.Wrapper[Any, Any, Any, Any]):
        def step(self, action: Any) -> Any:
            raise OSError("the motor is off")

    made = config(tmp_path, actors=2).replace(env_id="callable:Failing")
    with pytest.warns(RuntimeWarning, match="started again"), pytest.raises(RunError) as caught:
        train(made, env=lambda: Failing(gym.make("CartPole-v1")))
    text = str(caught.value)
    assert "3 times, one after the other" in text and "environment 0 raised OSError: the motor is off" in text
    assert "no checkpoint had been saved yet" in text


def test_a_checkpoint_of_many_actors_holds_what_was_under_way(tmp_path: Path, fake: FakeCluster) -> None:
    part = train(config(tmp_path, steps=1_000, num_envs=2, actors=2))
    saved = np.concatenate([process.object()._actor.envs.state_dict()["episodes"] for _, process in fake.started])
    seen = Steps()
    resumed = resume_training(part.run_dir, total_timesteps=2_000, callbacks=[seen])
    assert resumed.metrics["global_step"] >= 2_000
    # the blocks that had come, and were in nobody's replay yet, are the first ones: two of each actor at most
    assert len(seen.steps[0].valid) == BLOCK_STEPS
    again = [process.object()._actor.envs.state_dict()["episodes"] for _, process in fake.started[-2:]]
    assert (np.concatenate(again) >= saved).all()


def test_facts_survive_a_checkpoint() -> None:
    flags = np.zeros(2, bool)
    step = EnvStep(np.ones((2, 3)), np.ones((2, 3)), np.ones(2, np.float32), flags, flags, flags, ~flags, (Episode(1, 2.5, 7),))
    facts = Facts(joined_steps([step, step]), version=3, num_items=4, num_open=1)
    back = facts_of(facts_state(facts))
    assert back.step.episodes == (Episode(1, 2.5, 7),) * 2
    assert back[1:] == (3, 4, 1)
    for name in ("obs", "rewards", "valid", "terminated"):
        np.testing.assert_array_equal(getattr(back.step, name), getattr(facts.step, name))


@pytest.mark.parametrize("algo", ["prioritized_dqn", "rainbow_dqn", "r2d2", "munchausen_iqn"])
def test_actors_rank_new_items_as_the_learner_would(algo: str) -> None:
    """Raw priorities of finished items equal the learner's of the same batch, where its target network is the acting one."""
    _, learner, replay, feed, _ = parts_of(algo, algo_kwargs={"prioritized": True})
    storage = replay._ring.storage
    items = {name: storage.values(name).numpy() for name in storage.fields}
    batch = storage.unpack({})
    storage.gather(np.arange(len(replay)), batch)
    learner.sync_target()
    given = FirstPriorities(learner, seed=7)(items, learner.q_network, feed.maker)
    learner.generator.manual_seed(7)
    learner.q_network.eval()
    with torch.no_grad():
        expected = learner.priorities(*learner.td_loss(replay._time_first(batch) if algo == "r2d2" else batch))
    # the learner's rule may be numba's, which adds up in another order
    np.testing.assert_allclose(given, expected.numpy(), rtol=1e-4, atol=1e-5)
    assert given.shape == (len(replay),) and len(set(given)) > 5


def test_items_of_many_actors_come_with_their_priorities(tmp_path: Path, fake: FakeCluster) -> None:
    """Of blocks that nothing was learned from, the replay holds what the actors say: (p + eps)^alpha, not the largest one so far."""
    changes = {"learning_starts": 10_000, "prioritized_alpha": 1.0}
    run = config(tmp_path, "prioritized_dqn", num_envs=2, actors=2)
    result = train(run.replace(algo_kwargs={**run.algo_kwargs, **changes}))
    leaves = open_checkpoint(result.checkpoint_path).load_replay()["sampler"]["priorities"].numpy()
    assert len(leaves) > 100 and (leaves != 1.0).all()


@pytest.mark.parametrize(
    ("algo", "changes", "rank"),
    [
        ("prioritized_dqn", {"actors": 2}, True),
        ("prioritized_dqn", LOCKSTEP, False),
        ("prioritized_dqn", {"actors": 2, "initial_priority": "max"}, False),
        ("dqn", {"actors": 2}, False),
    ],
)
def test_who_ranks_new_items(algo: str, changes: dict[str, Any], rank: bool, tmp_path: Path) -> None:
    changes = dict(changes)
    settings = {key: changes.pop(key) for key in ("initial_priority",) if key in changes}
    assert actors_rank(config(tmp_path, algo, **changes).replace(algo_kwargs=settings)) is rank

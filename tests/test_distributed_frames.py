"""Frames of actors elsewhere are sent and stored once: in lockstep as in the local run, else every stack is of one episode."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from distributed_runs import LOCKSTEP, Killer, Steps, fake
from fake_ray import FakeCluster
from resume_harness import FILES, run_config
from rl_training.data.frame_streams import FrameStreams
from rl_training.data.frames import FRAMES, GONE, STACKS
from rl_training.errors import UserError
from rl_training.experiment.config import TrainConfig
from rl_training.runtime import value_based
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.distributed import remote_actors, start
from rl_training.runtime.distributed.blocks import Outbox
from rl_training.runtime.distributed.remote_actors import RemoteActors
from rl_training.runtime.run import Run, TrainResult
from rl_training.runtime.workflows import resume_training, train

__all__ = ["fake"]  # the fixture

STACK = 3
ROWS = ["dqn", "prioritized_dqn", "r2d2"]  # transitions, windows of three steps with priorities, chunks with priorities


class Tape(gym.Env[Any, int]):
    """Every image says which one it is: its episode's seed and its step, from 1. The reward is the step that it leads to."""

    observation_space = gym.spaces.Box(0, 255, (12, 12, 1), np.uint8)
    action_space = gym.spaces.Discrete(3)  # type: ignore[assignment]

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        assert seed is not None
        self.seed, self.time = seed, 0
        return self._look(), {}

    def _look(self) -> Any:
        image = np.zeros(144, np.uint8)
        image[:4] = np.frombuffer(np.uint32(self.seed).tobytes(), np.uint8)
        image[4] = self.time + 1
        return image.reshape(12, 12, 1)

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.time += 1
        over = self.time > self.seed % 19
        return self._look(), float(self.time), over and self.seed % 2 == 0, over and self.seed % 2 == 1, {}


def config(folder: Path, algo: str, *, steps: int = 1_200, num_envs: int = 2, **changes: Any) -> TrainConfig:
    values = run_config(algo, num_envs=num_envs, total_timesteps=steps) | {"output_dir": folder, "eval_interval": 0, "log_interval": 100}
    values["algo_kwargs"] |= {"hidden_sizes": [8], "train_frequency": 16, "n_step": 3 if algo == "prioritized_dqn" else 1}
    return TrainConfig(**{**values, "env_id": "callable:Tape", "env_kwargs": {"frame_stack": STACK}, **changes})


def files(result: TrainResult) -> dict[str, bytes]:
    return {name: (result.checkpoint_path / name).read_bytes() for name in FILES}


@pytest.mark.parametrize("algo", ROWS)
def test_in_lockstep_a_pixel_run_is_the_local_one(algo: str, tmp_path: Path, fake: FakeCluster) -> None:
    local = train(config(tmp_path, algo, steps=500), env=Tape)
    part = train(config(tmp_path, algo, steps=260, schedule_timesteps=500, **LOCKSTEP), env=Tape)
    assert files(resume_training(part.run_dir, total_timesteps=500, env=Tape)) == files(local)


class Held(Callback):
    """What the buffers of a run's replay hold at its end; it is closed then."""

    def __init__(self, fake: FakeCluster, first_place: int | None = None) -> None:
        self.fake, self.first_place = fake, first_place

    def on_end(self, run: Run) -> None:
        replay: Any = run.parts.replay
        places = {place for place, _ in self.fake.started if self.first_place is not None and place >= self.first_place}
        self.buffers = [self.fake.process(place).object()._buffer for place in places] or [replay]


def check(buffers: list[Any], n_step: int) -> int:
    """Raises unless every item's stacks are the last frames of one episode, its own. Returns how many episodes there are."""
    seen = set()
    for buffer in buffers:
        assert len(buffer) > 15
        batch = {name: value.numpy() for name, value in buffer.sample(2_000).items()}
        obs, next_obs, rewards, dones = (batch[name] for name in ("obs", "next_obs", "rewards", "dones"))
        if "mask" in batch:
            there = batch["mask"] > 0
            obs, next_obs, rewards, dones = obs[there], next_obs[there], rewards[there], dones[there]
        flat = np.stack([obs, next_obs]).reshape(2, len(obs), STACK, 144)
        seeds, steps = np.ascontiguousarray(flat[..., :4]).view(np.uint32)[..., 0], flat[..., 4].astype(int)
        newest = steps[..., -1]
        expected = np.maximum(newest[..., None] - np.arange(STACK)[::-1], 0)  # zeros before an episode's start
        np.testing.assert_array_equal(steps, expected)
        of_episode = np.where(expected > 0, seeds[0, :, None, -1], 0)
        np.testing.assert_array_equal(seeds, of_episode)
        if n_step == 1:  # the reward is that of the step which led to next_obs, the second image of an episode at the earliest
            np.testing.assert_array_equal(newest[1], newest[0] + 1)
            np.testing.assert_array_equal(rewards, newest[1] - 1)
        else:
            assert ((newest[1] > newest[0]) & (newest[1] <= newest[0] + n_step)).all()
        seen |= set(seeds[0, :, -1].tolist())
    return len(seen)


@pytest.mark.parametrize("shards", [0, 2])
@pytest.mark.parametrize("algo", ROWS)
def test_items_of_many_actors_show_their_own_frames(algo: str, shards: int, tmp_path: Path, fake: FakeCluster) -> None:
    """An actor dies on the way, and the run is interrupted and resumed."""
    held = Held(fake, 2 if shards else None)
    made = config(tmp_path, algo, actors=2, replay_shards=shards, schedule_timesteps=1_200)
    with pytest.warns(RuntimeWarning, match="actor 1 is started again"):
        part = train(made.replace(total_timesteps=800), env=Tape, callbacks=[Killer(fake, 1, after=6), held])
    assert check(held.buffers, n_step=made.settings.n_step) > 15
    before = sum(len(buffer) for buffer in held.buffers)
    fake.started.clear()
    resume_training(part.run_dir, total_timesteps=1_200, env=Tape, callbacks=[held])
    assert check(held.buffers, n_step=made.settings.n_step) > 15
    assert sum(len(buffer) for buffer in held.buffers) >= before


def test_a_shard_that_dies_takes_frames_along_that_nobody_names_again(tmp_path: Path, fake: FakeCluster) -> None:
    held = Held(fake, 2)
    with pytest.warns(RuntimeWarning, match="replay shard 1 died"):
        train(config(tmp_path, "r2d2", actors=2, replay_shards=2), env=Tape, callbacks=[Killer(fake, 3, after=9), held])
    assert check(held.buffers, n_step=1) > 15


def test_a_checkpoint_without_replay_names_no_frame_from_before(tmp_path: Path, fake: FakeCluster) -> None:
    held = Held(fake)
    part = train(config(tmp_path, "prioritized_dqn", steps=600, actors=2, checkpoint_replay=False), env=Tape)
    with pytest.warns(UserWarning, match="holds no replay"):
        resume_training(part.run_dir, total_timesteps=1_000, env=Tape, callbacks=[held])
    assert check(held.buffers, n_step=3) > 10


class Sent(Callback):
    """The items of the first blocks, as they came."""

    def __init__(self) -> None:
        self.items: list[dict[str, Any]] = []

    def on_start(self, run: Run) -> None:
        actors = run.parts.actor
        assert isinstance(actors, RemoteActors)
        take_in = actors._take_in

        def listening(reference: Any) -> None:
            take_in(reference)
            self.items.append(actors._arrived[-1].items)

        actors._take_in = listening  # type: ignore[method-assign]


@pytest.mark.parametrize("algo", ["prioritized_dqn", "r2d2"])
def test_actors_rank_items_by_the_whole_stacks(algo: str, tmp_path: Path, fake: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same blocks, of stacks sent whole: their first priorities are the same."""
    monkeypatch.setattr(remote_actors, "BLOCK_SECONDS", 1e9)  # a busy machine would cut them elsewhere
    once, whole = Sent(), Sent()
    run = config(tmp_path, algo, steps=400, actors=1)
    run = run.replace(algo_kwargs={**run.algo_kwargs, "learning_starts": 10_000})
    train(run, env=Tape, callbacks=[once])
    for module in (start, value_based):
        monkeypatch.setattr(module, "stores_frames", lambda setup: False)
    train(run, env=Tape, callbacks=[whole])
    assert len(once.items) == len(whole.items) > 4
    for mine, theirs in zip(once.items, whole.items, strict=True):
        assert FRAMES in mine and FRAMES not in theirs and mine["obs"].dtype == np.int64
        np.testing.assert_array_equal(mine["priorities"], theirs["priorities"])
        assert len(set(theirs["priorities"])) > 5


def test_a_frame_is_sent_once(tmp_path: Path, fake: FakeCluster) -> None:
    sent, seen = Sent(), Steps()
    train(config(tmp_path, "dqn", steps=600, num_envs=4, actors=2), env=Tape, callbacks=[sent, seen])
    frames = np.concatenate([items[FRAMES] for items in sent.items])
    assert len({frame.tobytes() for frame in frames}) == len(frames)
    steps = sum(int(step.valid.sum()) for step in seen.steps)
    episodes = sum(len(step.episodes) for step in seen.steps)
    assert len(frames) <= 1.5 * (steps + episodes)  # the blocks that were under way at the end are among them


def test_more_shards_than_actors_are_refused(tmp_path: Path, fake: FakeCluster) -> None:
    with pytest.raises(UserError, match=r"an actor's images go to one shard: replay_shards must be <= actors: 2, got 3"):
        train(config(tmp_path, "dqn", actors=2, replay_shards=3), env=Tape)
    assert not fake.started and not list(tmp_path.iterdir())


def block(ids: list[int]) -> dict[str, Any]:
    """Frames with these ids, each named with the one before it."""
    own = np.array(ids)
    return {FRAMES: np.zeros((len(ids), 1)), STACKS: np.stack([own - 1, own], 1), "obs": own - 1, "next_obs": own}


def test_streams_share_one_store() -> None:
    streams = FrameStreams(2, reach=4)
    assert streams.renumber(0, block([1, 2, 3]))[STACKS].tolist() == [[0, 1], [1, 2], [2, 3]]
    assert streams.renumber(1, block([1, 2]))["next_obs"].tolist() == [4, 5]
    assert streams.renumber(0, block([4, 5]))["obs"].tolist() == [3, 6]  # over the other's
    assert streams.renumber(1, {"obs": np.array([1, 2, 0, 3])})["obs"].tolist() == [4, 5, 0, GONE]
    state = streams.state_dict()
    assert streams.renumber(1, block([1, 2]))["obs"].tolist() == [0, 8]  # started again
    again = FrameStreams(2, reach=4)
    again.load_state_dict(state)
    assert again.renumber(1, block([3]))["obs"].tolist() == [5]  # not started again
    fresh = FrameStreams(2, reach=4)
    assert fresh.renumber(0, block([7, 8]))["obs"].tolist() == [GONE, 1]  # the frames before were another's


def test_a_stream_forgets_what_nothing_reaches_back_to() -> None:
    streams = FrameStreams(1, reach=4)
    for begin in range(1, 100, 3):
        streams.renumber(0, block([begin, begin + 1, begin + 2]))
    assert len(streams.state_dict()["given"][0]) == 7
    assert streams.is_one


@pytest.mark.parametrize(
    "changes",
    [{"given": [[1, 2]]}, {"given": [[1, 2], [4, 3]]}, {"given": [[1, 2], [3, 9]]}, {"upcoming": [2, 9]}, {"next": 4}],
    ids=["streams", "order", "future", "own ids", "next"],
)
def test_saved_streams_that_cannot_be_are_refused(changes: dict[str, Any]) -> None:
    good = {"next": 9, "upcoming": [3, 9], "given": [np.array([1, 2]), np.array([3, 8])]}
    streams = FrameStreams(2, reach=4)
    streams.load_state_dict(good)
    with pytest.raises(ValueError, match="saved frame streams"):
        streams.load_state_dict(good | changes)


def test_frames_leave_an_outbox_with_and_without_items() -> None:
    outbox = Outbox()
    outbox.add_items({FRAMES: np.zeros((2, 1)), STACKS: np.zeros((2, 1))})
    outbox.add_items({"rewards": np.ones(3)})
    outbox.add_items({"rewards": np.ones(1), FRAMES: np.zeros((1, 1)), STACKS: np.zeros((1, 1))})
    taken = outbox.take()
    assert {name: len(value) for name, value in taken.items()} == {"rewards": 4, FRAMES: 3, STACKS: 3}
    assert outbox.take() == {}

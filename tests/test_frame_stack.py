"""`env_kwargs.frame_stack`: stacks from the adapter, frames stored once behind them, and nothing else than whole stacks would give."""

from __future__ import annotations

import json
import zlib
from collections import deque
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from resume_harness import killed_and_resumed, run_config
from rl_training.data.frames import FrameNumbers
from rl_training.envs.factory import make_envs
from rl_training.envs.vector import VectorEnvs
from rl_training.errors import UserError
from rl_training.exchange.export import export_policy
from rl_training.experiment.checkpointing import open_checkpoint
from rl_training.experiment.config import TrainConfig
from rl_training.runtime import value_based
from rl_training.runtime.actor import FramedFeed
from rl_training.runtime.workflows import evaluate_checkpoint, load_policy, predict, train


class Clock(gym.Env[Any, int]):
    """Images [12, 12, 2] of an episode's number and time; it ends after as many steps as its seed says."""

    observation_space = gym.spaces.Box(0, 255, (12, 12, 2), np.uint8)
    action_space = gym.spaces.Discrete(3)  # type: ignore[assignment]

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.number, self.length, self.time = int(self.np_random.integers(1, 200)), int(self.np_random.integers(1, 9)), 0
        return self._look(), {}

    def _look(self) -> Any:
        image = np.full((12, 12, 2), self.number, np.uint8)
        image[..., 1] = self.time + 1
        image[self.time % 12, :, 0] = 0
        return image

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.time += 1
        over = self.time >= self.length
        return self._look(), float(action == self.time % 3), over and self.number % 2 == 0, over and self.number % 2 == 1, {}


class Naive:
    """What an environment's stacks should be, by a deque."""

    def __init__(self, stack: int) -> None:
        self.frames: deque[Any] = deque(maxlen=stack)

    def first(self, frame: Any) -> Any:
        self.frames.extend([np.zeros_like(frame)] * (self.frames.maxlen or 1))
        return self.then(frame)

    def then(self, frame: Any) -> Any:
        self.frames.append(frame)
        return np.concatenate([frame.transpose(2, 0, 1) for frame in self.frames])


def clocks(mode: AutoresetMode, num_envs: int, stack: int) -> VectorEnvs:
    return VectorEnvs(SyncVectorEnv([Clock] * num_envs, autoreset_mode=mode), replayable=False, seed=3, frame_stack=stack)


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_stacks_are_those_of_a_deque(mode: AutoresetMode) -> None:
    stacked, single = clocks(mode, 3, 4), clocks(mode, 3, 1)
    naive = [Naive(4) for _ in range(3)]

    def frame(obs: Any, env: int) -> Any:
        return obs[env].transpose(1, 2, 0)

    obs, frames = stacked.reset(), single.reset()
    assert stacked.single_observation_space.shape == (8, 12, 12)
    for env in range(3):
        np.testing.assert_array_equal(obs[env], naive[env].first(frame(frames, env)))
    seen = [(obs, obs.copy())]
    for _ in range(40):
        actions = np.zeros(3, np.int64)
        mine, plain = stacked.step(actions), single.step(actions)
        for env in range(3):
            if plain.valid[env]:
                np.testing.assert_array_equal(mine.final_obs[env], naive[env].then(frame(plain.final_obs, env)))
            if plain.is_first[env]:
                np.testing.assert_array_equal(mine.obs[env], naive[env].first(frame(plain.obs, env)))
            elif plain.valid[env]:
                np.testing.assert_array_equal(mine.obs[env], mine.final_obs[env])
        seen += [(mine.obs, mine.obs.copy()), (mine.final_obs, mine.final_obs.copy())]
    for given, then in seen:  # nobody has written to what was handed out
        np.testing.assert_array_equal(given, then)


def test_a_restored_adapter_goes_on_with_its_stacks() -> None:
    how: dict[str, Any] = {"num_envs": 2, "seed": 5, "env_kwargs": {"frame_stack": 3}}
    one = make_envs(Clock, **how)
    one.reset()
    for _ in range(11):
        one.step(np.zeros(2, np.int64))
    other = make_envs(Clock, **how)
    restored = other.load_state_dict(one.state_dict())
    assert restored.restored.all()
    np.testing.assert_array_equal(restored.obs, one.obs)
    for _ in range(9):
        np.testing.assert_array_equal(other.step(np.zeros(2, np.int64)).obs, one.step(np.zeros(2, np.int64)).obs)


@pytest.mark.parametrize("stack", [0, -1, 2.0, True, "4", 65])
def test_what_is_no_number_of_frames(stack: Any) -> None:
    with pytest.raises(UserError, match=r"env_kwargs\.frame_stack must be a whole number from 1 to 64"):
        make_envs(Clock, num_envs=1, seed=0, env_kwargs={"frame_stack": stack})


def test_vectors_have_the_wrapper() -> None:
    with pytest.raises(UserError, match="use the wrapper `frame_stack` for vectors"):
        make_envs("CartPole-v1", num_envs=1, seed=0, env_kwargs={"frame_stack": 2})


SMALL: dict[str, Any] = {"batch_size": 8, "learning_starts": 32, "buffer_capacity": 400, "train_frequency": 4}
RECURRENT = {"sequence_length": 6, "sequence_overlap": 3, "burn_in": 2, "recurrent_hidden_size": 8, "features_dim": 8}


def config_of(algo: str, output: Path, **changes: Any) -> TrainConfig:
    given = {**SMALL, **(RECURRENT if algo == "r2d2" else {}), **changes.pop("algo_kwargs", {})}
    fields: dict[str, Any] = {"seed": 1, "total_timesteps": 200, "num_envs": 2, "eval_episodes": 2, "eval_interval": 0, "threads": 1}
    fields |= {"device": "cpu", "env_kwargs": {"frame_stack": 3}, "output_dir": str(output)}
    return TrainConfig(algo=algo, env_id="callable:Clock", algo_kwargs=given, **{**fields, **changes})


@pytest.mark.parametrize("algo", ["dqn", "rainbow_dqn", "r2d2"])
def test_a_run_learns_what_it_would_from_whole_stacks(algo: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To the byte, while the ring is not full: from then on a uniform draw counts its slots from the oldest item."""
    once = train(config_of(algo, tmp_path / "once"), env=Clock)
    replay = open_checkpoint(once.run_dir).load_replay()
    assert replay is not None and replay["frames"]["rows"].shape[1] == 12 * 12 * 2 // 8
    monkeypatch.setattr(value_based, "stores_frames", lambda setup: False)
    whole = train(config_of(algo, tmp_path / "whole"), env=Clock)
    stored = open_checkpoint(whole.run_dir).load_replay()
    assert stored is not None and "frames" not in stored
    mine, theirs = (open_checkpoint(run.run_dir).load_model() for run in (once, whole))
    torch.testing.assert_close(mine, theirs, rtol=0, atol=0)
    assert once.metrics["buffer_size"] == whole.metrics["buffer_size"]
    assert once.metrics["eval_return_mean"] == whole.metrics["eval_return_mean"]


def test_one_image_is_stored_once_too(tmp_path: Path) -> None:
    result = train(config_of("dqn", tmp_path, env_kwargs={}), env=Clock)
    replay = open_checkpoint(result.run_dir).load_replay()
    assert replay is not None and replay["frames"]["stack"] == 1
    assert len(replay["frames"]["rows"]) < 1.5 * replay["live"]  # and not two for each


def test_a_run_without_its_replay_goes_on(tmp_path: Path) -> None:
    """The windows that were open name frames that nobody has: they are left out, and the run fills its replay anew."""
    config = config_of("dqn", tmp_path, checkpoint_replay=False, algo_kwargs={"n_step": 3})
    result = train(config, env=Clock)
    from rl_training.runtime.workflows import resume_training

    with pytest.warns(UserWarning, match="holds no replay"):
        again = resume_training(result.run_dir, env=Clock, total_timesteps=300)
    assert 90 <= again.metrics["buffer_size"] <= 100


def test_the_checkpoints_policy_reads_stacks_and_single_images(tmp_path: Path) -> None:
    result = train(config_of("dqn", tmp_path), env=Clock)
    assert evaluate_checkpoint(result.run_dir, num_episodes=2, env=Clock)["eval_episodes"] == 2
    policy = load_policy(result.run_dir)
    frames = np.random.default_rng(0).integers(0, 255, (4, 12, 12, 2)).astype(np.uint8)
    zeros = np.zeros_like(frames[0])
    given = [[zeros, zeros, frames[0]], [zeros, frames[0], frames[1]], list(frames[0:3]), list(frames[1:4])]
    wholes = [policy.q_values(np.stack(stack))[0] for stack in given]
    read = torch.from_numpy(np.concatenate([frame.transpose(2, 0, 1) for frame in given[3]])[None])
    np.testing.assert_allclose(policy.network.step(read, (), torch.zeros(1, dtype=torch.bool))[0][0].detach().numpy(), wholes[3], rtol=1e-6)
    lines = [json.loads(json.dumps(frame.tolist())) for frame in frames]
    answers = list(predict(result.run_dir, lines, env=Clock))
    np.testing.assert_allclose([answer["q_values"] for answer in answers], wholes, rtol=1e-6)
    start = [{"obs": lines[0]}, {"obs": lines[1], "episode_start": True}]
    fresh = policy.q_values(np.stack([zeros, zeros, frames[1]]))[0]
    np.testing.assert_allclose(list(predict(result.run_dir, start, env=Clock))[1]["q_values"], fresh, rtol=1e-6)
    with pytest.raises(UserError, match=r"must have shape \(3, 12, 12, 2\)"):
        policy.predict(frames[0])
    export_policy(result.run_dir, tmp_path / "policy.pt2")  # held against the package before it is written


def test_frames_are_not_kept_back_for_long() -> None:
    """Chunks close seldom, and what is kept back is memory."""

    class Never:
        def push(self, step: Any) -> dict[str, Any]:
            return {}

    added: list[int] = []
    replay: Any = type("Replay", (), {"add_items": lambda self, items: added.append(len(items["frames"]))})()
    feed = FramedFeed(Never(), replay, FrameNumbers(1, 64))  # type: ignore[arg-type]
    envs = make_envs(Clock, num_envs=64, seed=0)
    obs, starts = envs.reset(), np.ones(64, bool)
    from rl_training.types import Step

    for _ in range(20):
        step = envs.step(np.zeros(64, np.int64))
        feed.push(Step(obs, np.zeros(64), step.rewards, step.final_obs, step.terminated, step.truncated, starts, step.valid))
        obs, starts = step.obs, step.is_first
    assert added and max(added) < feed.MOST_FRAMES + 128


@pytest.mark.parametrize("algo", ["dqn", "rainbow_dqn", "r2d2"])
def test_a_killed_pixel_run_resumes_to_identical_files(algo: str, tmp_path: Path) -> None:
    config = run_config(algo, num_envs=2, total_timesteps=450)
    config |= {
        "env_id": "MinAtar/Breakout-v1",
        "env_kwargs": {"frame_stack": 2},
        "eval_interval": 0,
        "eval_episodes": 1,
        "eval_max_steps": 60,
    }
    config["algo_kwargs"] |= {"buffer_capacity": 150, "hidden_sizes": [16]}  # the ring and the frames' go around
    outcome = killed_and_resumed(config, tmp_path, kills=1, seed=zlib.crc32(algo.encode()))
    assert outcome.differences == (), f"killed at {outcome.kills}"
    assert outcome.kills, "the run was over before the first kill: the test showed nothing"

"""Tasks without a time limit: evaluation has a cap, records of actions have a bound, and what resume then promises is said."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from rl_training.envs.factory import make_envs
from rl_training.errors import Interrupted
from rl_training.experiment.checkpointing import open_checkpoint
from rl_training.experiment.config import TrainConfig
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.run import Run
from rl_training.runtime.workflows import evaluate_checkpoint, resume_training, train
from rl_training.types import EnvStep

SETTINGS = {"hidden_sizes": [8], "batch_size": 8, "buffer_capacity": 200, "learning_starts": 20}
CUT = "ignore:evaluation at step .* went on after eval_max_steps:RuntimeWarning"


def cliff(output: Path, **changes: Any) -> TrainConfig:
    values = {"algo": "dqn", "env_id": "CliffWalking-v1", "seed": 0, "total_timesteps": 200, "output_dir": str(output)}
    intervals = {"log_interval": 50, "eval_interval": 60, "eval_episodes": 2, "eval_max_steps": 30, "checkpoint_interval": 80}
    return TrainConfig(**{**values, **intervals, "env_kwargs": {"wrappers": ["flatten"]}, "algo_kwargs": SETTINGS, **changes})


class Interrupt(Callback):
    def __init__(self, step: int) -> None:
        self.at = step

    def on_step(self, run: Run, step: EnvStep) -> None:
        if run.clock.env_steps == self.at:
            signal.raise_signal(signal.SIGTERM)


def test_stock_cliff_walking_trains_is_interrupted_and_resumed_exactly(tmp_path: Path) -> None:
    with pytest.warns(RuntimeWarning, match=r"evaluation at step 60: 2 of 2 episodes went on after eval_max_steps = 30 steps") as said:
        reference = train(cliff(tmp_path / "a"))
    assert len([warning for warning in said if "eval_max_steps" in str(warning.message)]) == 1  # once a run
    # every episode was cut at 30 steps of −1, or −100 where it fell
    assert reference.metrics["eval_cut_episodes"] == 2 and reference.metrics["eval_length_mean"] == 30
    assert reference.metrics["eval_return_max"] <= -30
    with pytest.warns(RuntimeWarning, match="eval_max_steps"), pytest.raises(Interrupted):
        train(cliff(tmp_path / "b"), callbacks=[Interrupt(133)])
    (run,) = (tmp_path / "b").iterdir()
    with pytest.warns(RuntimeWarning, match="eval_max_steps"):
        resumed = resume_training(run)
    for name in ("model", "training", "replay"):
        a, b = (result.checkpoint_path / f"{name}.safetensors" for result in (reference, resumed))
        assert a.read_bytes() == b.read_bytes(), name
    figures = evaluate_checkpoint(run, num_episodes=3)
    assert figures["eval_episodes"] == figures["eval_cut_episodes"] == 3


class Ends(gym.Env[Any, Any]):
    """Episode k ends by itself after the k-th of `lengths`."""

    observation_space = gym.spaces.Box(-1, 1, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)
    lengths = (3, 5, 4)
    episode = -1

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.episode, self.t = self.episode + 1, 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        return np.zeros(1, np.float32), 1.0, self.t == self.lengths[self.episode % 3], False, {}


def test_only_an_episode_that_goes_on_counts_as_cut(tmp_path: Path) -> None:
    # 3 of one environment each: lengths 3, then the cap of 4 cuts what would be 5, then 4, which ends by itself at the cap
    make = {"env_id": "callable:Ends", "env_kwargs": {}, "eval_interval": 0, "total_timesteps": 30, "eval_max_steps": 4}
    with pytest.warns(RuntimeWarning, match="eval_max_steps"):
        result = train(cliff(tmp_path, **make, eval_episodes=18), env=Ends)  # 16 environments, of which two play a second episode
    assert result.metrics["eval_cut_episodes"] == 2 and result.metrics["eval_length_mean"] == (16 * 3 + 2 * 4) / 18


@pytest.mark.filterwarnings(CUT)
def test_an_episode_beyond_the_bound_restarts_on_resume_which_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rl_training.envs.episodes.MAX_RECORDED", 100)
    lengths: list[int] = []

    class Records(Callback):
        def on_step(self, run: Run, step: EnvStep) -> None:
            lengths.append(len(run.parts.actor.envs._env.envs[0]._actions))

    with pytest.warns(RuntimeWarning, match="environment 0 is in an episode of more than .* steps, whose actions are not kept"):
        first = train(cliff(tmp_path), callbacks=[Records()])
    assert max(lengths) == 100
    metadata = json.loads((first.run_dir / "metadata.json").read_text())
    assert metadata["resume"].startswith("environment 0 is in an episode of more than")
    state = open_checkpoint(first.run_dir).load_training()["actor"]["envs"]
    assert state["action_counts"].tolist() == [-1] and len(state["actions"]) == 0
    with pytest.warns(RuntimeWarning, match=r"environment 0 is in an episode .* on resume a fresh episode begins there") as said:
        again = resume_training(first.run_dir, total_timesteps=260)
    assert not any("not deterministic" in str(warning.message) for warning in said)
    after = open_checkpoint(again.run_dir).load_training()["actor"]["envs"]
    assert after["episodes"].tolist() == [int(state["episodes"][0]) + 1] and after["action_counts"].tolist() == [60]
    # The promise is whole again, since this episode is short enough.
    assert json.loads((first.run_dir / "metadata.json").read_text())["resume"] == "exact on the CPU"


def test_evaluation_keeps_no_actions() -> None:
    envs = make_envs("CartPole-v1", num_envs=2, seed=0, record=False, max_steps=5)
    envs.reset()
    for _ in range(12):
        envs.step(np.array([0, 1]))
    assert [env._actions for env in envs._env.envs] == [[], []]  # type: ignore[attr-defined]
    assert envs.cut_episodes() == ([0, 1], [0, 1])

"""The off-policy loop's counting: what a step is, when rounds fire, what is stored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from rl_training.algorithms.q_learner import QLearner
from rl_training.algorithms.schedules import LinearSchedule, epsilon_ladder
from rl_training.experiment.config import TrainConfig
from rl_training.runtime.cadence import crossings, due
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.evaluator import quotas
from rl_training.runtime.run import Run
from rl_training.runtime.workflows import train
from rl_training.types import EnvStep


def small_config(tmp_path: Path, **changes: Any) -> TrainConfig:
    settings = {"hidden_sizes": [8], "batch_size": 8, "buffer_capacity": 500, "learning_starts": 32, **changes.pop("algo_kwargs", {})}
    values = {"algo": "dqn", "env_id": "CartPole-v1", "seed": 0, "total_timesteps": 200, "output_dir": str(tmp_path), "eval_episodes": 1}
    return TrainConfig(**{**values, "eval_interval": 0, "checkpoint_interval": 0, **changes, "algo_kwargs": settings})


def test_crossings_counts_every_multiple_in_a_vector_step() -> None:
    # (before, now] = (60, 124], interval 4: 64, 68, ..., 124 are 16 multiples; `step % interval` would have seen one.
    assert len(crossings(60, 124, 4)) == 16
    assert list(crossings(7, 24, 8)) == [8, 16, 24]
    assert list(crossings(8, 15, 8)) == []  # 8 itself was counted before
    assert list(crossings(0, 100, 0)) == []  # 0: only at the end
    assert due(499, 503, 500) and not due(500, 999, 500)


@pytest.mark.parametrize(
    ("num_envs", "frequency", "gradient_steps", "expected"),
    [
        (1, 4, 1, 43),  # multiples of 4 in [32, 200]: 32, 36, ..., 200
        (1, 4, -1, 43 * 4),  # as many updates as environment steps in the round
        (8, 4, 1, 43),  # two rounds per vector step: the same count as with one environment
        (8, 32, 3, 6 * 3),  # 32, 64, ..., 192
        (3, 5, 1, 34),  # 3 environments stop at the first step >= 200, which is 201: multiples of 5 in [32, 201] are 35, ..., 200
    ],
)
def test_number_of_updates(tmp_path: Path, num_envs: int, frequency: int, gradient_steps: int, expected: int) -> None:
    config = small_config(tmp_path, num_envs=num_envs, algo_kwargs={"train_frequency": frequency, "gradient_steps": gradient_steps})
    result = train(config)
    assert result.metrics["num_updates"] == expected
    assert result.metrics["global_step"] == -(-200 // num_envs) * num_envs


def test_rounds_tell_the_learner_their_own_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # With 64 environments and frequency 32 each vector step crosses two multiples: the target must be able to follow at either.
    seen: list[int] = []
    original = QLearner.update

    def update(self: QLearner, batch: Any, *, global_step: int) -> Any:
        seen.append(global_step)
        return original(self, batch, global_step=global_step)

    monkeypatch.setattr(QLearner, "update", update)
    train(small_config(tmp_path, num_envs=64, total_timesteps=192, algo_kwargs={"train_frequency": 32, "learning_starts": 64}))
    assert seen == [64, 96, 128, 160, 192]


class Corridor(gym.Env[Any, Any]):
    """obs = (episode, t); ends by termination after 3 steps in even episodes, by truncation after 4 in odd ones; reward t + 1."""

    observation_space = gym.spaces.Box(-1e6, 1e6, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)
    episode = -1

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.episode, self.t = self.episode + 1, 0
        return np.array([self.episode, 0], np.float32), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        even = self.episode % 2 == 0
        obs = np.array([self.episode, self.t], np.float32)
        return obs, float(self.t), even and self.t == 3, not even and self.t == 4, {}


def test_what_is_stored_ends_as_it_ended(tmp_path: Path) -> None:
    """Termination stops the bootstrap, truncation does not and keeps the true final observation; no transition joins two episodes."""
    replays: list[Any] = []

    class Keep(Callback):
        def on_end(self, run: Run) -> None:
            replays.append(run.parts.replay.sample(400))

    train(small_config(tmp_path, env_id="callable:Corridor", total_timesteps=70), env=Corridor, callbacks=[Keep()])
    batch = {key: value.numpy() for key, value in replays[0].items()}
    episode, t = batch["obs"].T
    np.testing.assert_array_equal(batch["next_obs"], np.stack([episode, t + 1], 1))
    np.testing.assert_array_equal(batch["rewards"], t + 1)
    np.testing.assert_array_equal(batch["dones"], ((episode % 2 == 0) & (t == 2)).astype(np.float32))
    np.testing.assert_allclose(batch["discounts"], 0.99 * (1 - batch["dones"]))
    assert ((episode % 2 == 1) & (t == 3)).any(), "no truncated step was sampled: the test showed nothing"


def test_exploration_is_uniform_before_learning_starts(tmp_path: Path) -> None:
    actions: list[int] = []

    class Watch(Callback):
        def on_end(self, run: Run) -> None:
            actions.extend(run.parts.replay.sample(4000)["actions"].tolist())

    # ε is 0 throughout, so that without the rule every action would be the untrained network's greedy one.
    settings = {"epsilon_start": 0.0, "epsilon_end": 0.0, "learning_starts": 400, "buffer_capacity": 400}
    train(small_config(tmp_path, total_timesteps=400, algo_kwargs=settings), callbacks=[Watch()])
    assert 0.4 < np.mean(actions) < 0.6


def test_schedules() -> None:
    epsilon = LinearSchedule(1.0, 0.1, 100)
    assert epsilon(0) == 1.0 and epsilon(50) == pytest.approx(0.55) and epsilon(100) == 0.1 and epsilon(10**9) == 0.1
    assert LinearSchedule(1.0, 0.1, 0)(0) == 0.1
    # ε_i = 0.4^(1 + 7·i/7), environment 0 exploring most (arXiv:1803.00933): 0.4¹, 0.4², ..., 0.4⁸
    assert epsilon_ladder(8) == pytest.approx([0.4**k for k in range(1, 9)])
    assert epsilon_ladder(1) == [0.4]


def test_evaluation_quotas_are_fixed_beforehand() -> None:
    assert quotas(5, 3) == [2, 2, 1] and sum(quotas(100, 16)) == 100


def test_evaluation_does_not_favour_short_episodes(tmp_path: Path) -> None:
    # Callables are not told an index, so count: every second environment made has episodes of 1 step, the others of 9.
    # 4 episodes over 4 environments, one each: the mean length is (1 + 9 + 1 + 9)/4 = 5. Taking the first 4 to finish would give 1.
    made = iter(range(10**6))

    class Uneven(gym.Env[Any, Any]):
        observation_space = gym.spaces.Box(-1, 1, (1,), np.float32)
        action_space = gym.spaces.Discrete(2)

        def __init__(self) -> None:
            self.length = 1 if next(made) % 2 == 0 else 9

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            self.t = 0
            return np.zeros(1, np.float32), {}

        def step(self, action: Any) -> Any:
            self.t += 1
            return np.zeros(1, np.float32), 1.0, self.t == self.length, False, {}

    result = train(small_config(tmp_path, env_id="callable:Uneven", total_timesteps=40, eval_episodes=4, num_envs=2), env=Uneven)
    assert result.metrics["eval_return_mean"] == 5.0


def test_callbacks_see_every_step_and_can_stop_the_run(tmp_path: Path) -> None:
    class Stop(Callback):
        steps = 0

        def on_step(self, run: Run, step: EnvStep) -> None:
            self.steps += 1
            if self.steps == 57:
                run.stop("enough")

    callback = Stop()
    result = train(small_config(tmp_path), callbacks=[callback])
    assert callback.steps == 57 and result.metrics["global_step"] == 57
    assert result.checkpoint_path.name == "step_57"


def test_intervals_fire_once_per_multiple(tmp_path: Path) -> None:
    events: list[tuple[str, int]] = []

    class Record(Callback):
        def on_eval(self, run: Run, metrics: Any) -> None:
            events.append(("eval", run.clock.env_steps))

        def on_checkpoint(self, run: Run, path: Path) -> None:
            events.append(("checkpoint", run.clock.env_steps))

    train(small_config(tmp_path, num_envs=3, total_timesteps=200, eval_interval=50, checkpoint_interval=100), callbacks=[Record()])
    # 3 environments: the multiples 50, 100, 150, 200 are first reached at 51, 102, 150, 201; the end saves once.
    assert [step for kind, step in events if kind == "eval"] == [51, 102, 150, 201]
    assert [step for kind, step in events if kind == "checkpoint"] == [102, 201]

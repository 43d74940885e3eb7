"""`train_r2d2` end to end, small: priorities reach the replay, the paper's parts work together, and the row is what it is."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from recurrent_runs import Keep, small_config
from rl_training import R2D2, algorithms
from rl_training.errors import ConfigError
from rl_training.experiment.config import load_config, shipped_configs
from rl_training.runtime.r2d2_trainer import train_r2d2


def test_it_trains_and_gives_its_chunks_their_priorities(tmp_path: Path) -> None:
    keep = Keep()
    result = train_r2d2(small_config(tmp_path, "r2d2", num_envs=2), callbacks=[keep])
    assert result.run_dir.name.startswith("r2d2__CartPole-v1__seed5__")
    assert result.metrics["num_updates"] == 51 and result.metrics["buffer_size"] == 300
    learner, replay = keep.parts.learner, keep.parts.replay
    assert isinstance(learner, algorithms.R2D2) and isinstance(learner.backup, algorithms.DoubleBackup)
    stored = np.asarray(replay.state_dict()["sampler"]["priorities"])[: len(replay)]
    # After 51 updates of 8 chunks each, few still have the priority they came with.
    assert len(np.unique(stored)) > len(replay) // 2
    batch = replay.sample(8, beta=0.6)
    learner.update(batch, global_step=301)
    replay.update_priorities(batch["indices"], learner.last_priorities)
    assert learner.last_sequence_priorities.shape == (8,)


def test_the_papers_parts_train_together(tmp_path: Path) -> None:
    paper = load_config("configs/r2d2/cartpole_velocity_free_paper.yaml")
    kwargs = paper.algo_kwargs
    length, burn_in, overlap = (kwargs[key] for key in ("sequence_length", "burn_in", "sequence_overlap"))
    assert length == 3 * burn_in and length - overlap == burn_in  # 120, 40 and a chunk every 40 there
    assert kwargs["value_rescaling"] and kwargs["epsilon_ladder"] and kwargs["n_step"] == 5 and kwargs["gamma"] == 0.997
    assert "append_action_reward" in paper.env_kwargs["wrappers"]
    smaller = {**kwargs, "learning_starts": 200, "batch_size": 8}
    keep = Keep()
    config = paper.replace(total_timesteps=320, output_dir=str(tmp_path), eval_interval=0, eval_episodes=1, threads=1, algo_kwargs=smaller)
    result = train_r2d2(config, callbacks=[keep])
    assert result.metrics["num_updates"] == 31
    # ε_i = 0.4^(1 + 7·i/7) over 8 environments, environment 0 exploring most
    np.testing.assert_allclose(keep.parts.actor.behaviour.epsilon(300), [0.4 ** (1 + i) for i in range(8)])
    assert keep.parts.replay.sample(4, beta=0.6)["obs"].shape == (30, 4, 2 + 2 + 1)  # position and angle, action one-hot, reward


def test_defaults_are_narrow_and_the_row_is_prioritized(tmp_path: Path) -> None:
    settings = small_config(tmp_path, "r2d2").settings.to_dict()
    assert (settings["burn_in"], settings["sequence_overlap"], settings["value_rescaling"], settings["n_step"]) == (0, 0, False, 1)
    assert settings["prioritized"] is True and settings["double_q"] is True and settings["priority_eta"] == 0.9
    with pytest.raises(ConfigError, match="prioritized is true in every r2d2"):
        small_config(tmp_path, "r2d2", algo_kwargs={"prioritized": False})


def test_the_agent_goes_on_and_loads(tmp_path: Path) -> None:
    agent = R2D2(small_config(tmp_path / "runs", "r2d2", total_timesteps=160))
    agent.learn()
    loaded = R2D2.load(agent.save(tmp_path / "saved"))
    obs = np.zeros((2, 2), np.float32)
    ours, theirs = agent.predict(obs), loaded.predict(obs)
    np.testing.assert_array_equal(ours[0], theirs[0])
    np.testing.assert_array_equal(ours[1][0], theirs[1][0])
    assert loaded.evaluate(2) == agent.evaluate(2)


def test_both_rows_ship_the_memory_tasks() -> None:
    assert {f"{row}/{task}.yaml" for row in ("drqn", "r2d2") for task in ("cartpole", "cartpole_velocity_free", "tmaze")} <= set(
        shipped_configs()
    )

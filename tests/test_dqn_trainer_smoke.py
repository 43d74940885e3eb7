"""`train_dqn` end to end, small: what a run leaves behind and what it says of itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from rl_training.experiment.config import TrainConfig
from rl_training.experiment.registry import algorithm_names, get_algorithm_spec
from rl_training.runtime.dqn_trainer import train_dqn

FEED_FORWARD = [name for name in algorithm_names() if str(get_algorithm_spec(name).trainer).endswith(":train_dqn")]


def smoke_config(tmp_path: Path, algo: str = "dqn", **changes: Any) -> TrainConfig:
    settings = {"hidden_sizes": [16], "batch_size": 16, "buffer_capacity": 1_000, "learning_starts": 50, "train_frequency": 4}
    if get_algorithm_spec(algo).fixed.get("head") == "categorical":
        settings |= {"v_min": -100.0, "v_max": 100.0}
    settings |= changes.pop("algo_kwargs", {})
    values = {"env_id": "CartPole-v1", "seed": 5, "total_timesteps": 300, "output_dir": str(tmp_path), "eval_episodes": 2}
    intervals = {"eval_interval": 100, "log_interval": 50, "checkpoint_interval": 150}
    return TrainConfig(**{"algo": algo, **values, **intervals, **changes, "algo_kwargs": settings})


@pytest.mark.parametrize("algo", FEED_FORWARD)
def test_every_row_trains_and_leaves_a_whole_run(algo: str, tmp_path: Path) -> None:
    result = train_dqn(smoke_config(tmp_path, algo), run_suffix="smoke")
    assert result.run_dir.parent == tmp_path and result.run_dir.name.startswith(f"{algo}__CartPole-v1__seed5__")
    assert result.run_dir.name.endswith("__smoke")
    metrics = result.metrics
    assert metrics["global_step"] == 300 and metrics["eval_episodes"] == 2
    # every step gives one transition, less the open windows (n − 1 steps) of the running episode
    n_step = get_algorithm_spec(algo).parse({}).n_step  # type: ignore[attr-defined]  # these rows' settings
    assert 300 - (n_step - 1) <= metrics["buffer_size"] <= 300
    assert metrics["num_updates"] == 63  # multiples of 4 in [50, 300]: 52, 56, ..., 300
    assert 1 <= metrics["eval_return_mean"] <= 500

    assert yaml.safe_load((result.run_dir / "config.yaml").read_text())["device"] == "cpu"  # `auto` resolved
    metadata = json.loads((result.run_dir / "metadata.json").read_text())
    assert metadata["device"].startswith("cpu (") and metadata["resume"] == "exact on the CPU"
    checkpoints = result.run_dir / "checkpoints"
    assert result.checkpoint_path == checkpoints / "step_300" == (checkpoints / "latest").resolve()
    assert (checkpoints / "best").is_symlink() and not (checkpoints / "best").readlink().is_absolute()


def test_records_and_tensorboard_have_the_tags_users_know(tmp_path: Path) -> None:
    result = train_dqn(smoke_config(tmp_path))
    records = [json.loads(line) for line in (result.run_dir / "metrics.jsonl").read_text().splitlines()]
    logged = [record for record in records if "time/fps" in record]
    assert [record["step"] for record in logged] == [50, 100, 150, 200, 250, 300]
    assert [record["step"] for record in records if "eval/mean_reward" in record] == [100, 200, 300]
    assert {"rollout/ep_rew_mean", "rollout/ep_len_mean", "rollout/exploration_rate", "train/loss", "train/q_value_mean"} <= set(logged[-1])
    events = EventAccumulator(str(result.run_dir))
    events.Reload()
    tags = set(events.Tags()["scalars"])
    assert {"rollout/ep_rew_mean", "rollout/exploration_rate", "time/fps", "train/loss", "eval/mean_reward"} <= tags
    # ε falls linearly from 1 to 0.05 over 20% of 300 steps: at step 250 it has been 0.05 for long
    epsilon = {event.step: event.value for event in events.Scalars("rollout/exploration_rate")}
    assert epsilon[250] == pytest.approx(0.05)


def test_the_same_seed_gives_the_same_run_and_another_does_not(tmp_path: Path) -> None:
    def model(seed: int, place: str) -> bytes:
        return (train_dqn(smoke_config(tmp_path / place, seed=seed)).checkpoint_path / "model.safetensors").read_bytes()

    assert model(1, "a") == model(1, "b")
    assert model(1, "a2") != model(2, "c")


def test_several_environments_train_through_the_same_loop(tmp_path: Path) -> None:
    result = train_dqn(smoke_config(tmp_path, num_envs=7))
    assert result.metrics["global_step"] == 301  # the first multiple of 7 at or past 300
    assert result.metrics["buffer_size"] == 301


def test_best_is_the_highest_evaluation_and_first_on_ties(tmp_path: Path) -> None:
    result = train_dqn(smoke_config(tmp_path, total_timesteps=600))
    records = [json.loads(line) for line in (result.run_dir / "metrics.jsonl").read_text().splitlines()]
    evaluations = [(record["step"], record["eval/mean_reward"]) for record in records if "eval/mean_reward" in record]
    best_step = max(evaluations, key=lambda pair: (pair[1], -pair[0]))[0]
    assert (result.run_dir / "checkpoints" / "best").readlink() == Path(f"step_{best_step}")
    assert result.metrics["best_step"] == best_step


def test_a_support_that_returns_leave_is_said_once(tmp_path: Path) -> None:
    config = smoke_config(tmp_path, "c51_dqn", algo_kwargs={"v_min": 0.0, "v_max": 1.5})  # CartPole's returns are 10 and more
    with pytest.warns(RuntimeWarning, match=r"% of the target's mass lies outside \[v_min, v_max\]") as caught:
        train_dqn(config)
    assert len([warning for warning in caught if "v_min" in str(warning.message)]) == 1

"""Schedules from their beginning to past their end, and what a config asks for that nobody means."""

from __future__ import annotations

import json
import signal
import warnings
from pathlib import Path
from typing import Any

import pytest

from command_line import Cli
from rl_training import DQN, PPO, algorithms
from rl_training.errors import ConfigError, Interrupted
from rl_training.experiment.checkpointing import open_checkpoint
from rl_training.experiment.config import TrainConfig, load_config
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.sanity import check_sanity
from rl_training.runtime.trainer_setup import prepare
from rl_training.runtime.workflows import resume_training, train
from test_dqn_trainer_smoke import smoke_config
from test_ppo_trainer_smoke import small_config

LINEAR = {"lr_schedule": "linear", "learning_rate": 1e-3}


def rates(run_dir: Path) -> dict[int, float]:
    records = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    return {record["step"]: record["train/learning_rate"] for record in records if "train/learning_rate" in record}


def model_bytes(run_dir: Path) -> bytes:
    return (open_checkpoint(run_dir).path / "model.safetensors").read_bytes()


@pytest.mark.parametrize("algo", ["ppo", "recurrent_ppo"])
@pytest.mark.parametrize("pieces", [(256,), (100, 256)])
def test_a_rollout_learns_at_the_rates_of_its_beginning(
    algo: str, pieces: tuple[int, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """4 rollouts of 4 × 16 steps in 256: read at 0, 64, 128 and 192, a linear schedule is 1, 3/4, 1/2 and 1/4 of its start."""
    used: list[tuple[float, float]] = []
    original = algorithms.PPO._gradient_step

    def watch(learner: Any, batch: Any, global_step: int) -> Any:
        pair = (learner.current_learning_rate(global_step), learner.current_clip(global_step))
        if not used or used[-1] != pair:
            used.append(pair)
        return original(learner, batch, global_step)

    monkeypatch.setattr(algorithms.PPO, "_gradient_step", watch)
    settings = {**LINEAR, "clip_coef": 0.2, "clip_schedule": "linear"}
    config = small_config(tmp_path, algo, total_timesteps=pieces[0], schedule_timesteps=256, algo_kwargs=settings)
    result = train(config)
    for end in pieces[1:]:  # also where a rollout was saved half-way
        result = resume_training(result.run_dir, total_timesteps=end)
    assert [rate for rate, _ in used] == pytest.approx([1e-3, 0.75e-3, 0.5e-3, 0.25e-3])
    assert [clip for _, clip in used] == pytest.approx([0.2, 0.15, 0.1, 0.05])


def test_less_than_one_rollout_is_refused_before_anything_is_written(cli: Cli) -> None:
    options = ["--config", "configs/ppo/pendulum.yaml", "--num-envs", "4", "--output-dir", "out"]
    said = cli.refused("train", *options, "--total-timesteps", "4095")
    assert said == (
        "error: total_timesteps: 4095 environment steps are less than one rollout (1024 num_steps × 4 num_envs = 4096), so nothing would "
        "be learned: take 4096 or more, or a smaller algo_kwargs.num_steps"
    )
    check_sanity(load_config("configs/ppo/pendulum.yaml", ["num_envs=4", "total_timesteps=4096"]))


def test_a_run_in_pieces_may_stop_inside_its_first_rollout(tmp_path: Path) -> None:
    agent = PPO("CartPole-v1", output_dir=tmp_path, total_timesteps=128, num_steps=64, hidden_sizes=(8,), eval_episodes=1)
    assert agent.learn(30).metrics["num_updates"] == 0
    assert agent.learn().metrics["num_updates"] > 0
    with pytest.raises(ConfigError, match="less than one rollout"):
        PPO("CartPole-v1", output_dir=tmp_path / "other", num_steps=64).learn(30)


def test_past_its_end_a_schedule_at_zero_is_said_and_nothing_moves(cli: Cli, tmp_path: Path) -> None:
    result = train(smoke_config(tmp_path / "runs", total_timesteps=100, algo_kwargs=LINEAR))
    before = model_bytes(result.run_dir)
    outcome = cli("resume", "--checkpoint", str(result.run_dir), "--total-timesteps", "200", "--quiet")
    assert outcome.code == 0
    assert outcome.err == (
        "warning: learning_rate is 0 from step 100 on, where its schedule ends, and steps up to 200 teach nothing: "
        "with resume --extend-schedule, or learn(n, extend_schedule=True), it runs over the new total\n"
    )
    assert open_checkpoint(result.run_dir).step == 200 and model_bytes(result.run_dir) == before
    assert rates(result.run_dir)[200] == 0


def test_an_extended_schedule_runs_over_the_new_total(cli: Cli, tmp_path: Path) -> None:
    result = train(smoke_config(tmp_path / "runs", total_timesteps=100, algo_kwargs={**LINEAR, "learning_starts": 20}))
    before = model_bytes(result.run_dir)
    assert rates(result.run_dir) == pytest.approx({50: 0.5e-3, 100: 0.0}, abs=1e-12)
    outcome = cli("resume", "--checkpoint", str(result.run_dir), "--total-timesteps", "400", "--extend-schedule", "--quiet")
    assert (outcome.code, outcome.err) == (0, "")
    # the rate at step t is that of t / 400: 1e-3·(1 − t/400)
    expected = {50: 0.5e-3, 100: 0.0, **{step: 1e-3 * (1 - step / 400) for step in range(150, 401, 50)}}
    assert rates(result.run_dir) == pytest.approx(expected, abs=1e-12)
    assert model_bytes(result.run_dir) != before
    config = load_config(result.run_dir / "config.yaml")
    assert config.total_timesteps == config.horizon == 400


def test_exploration_follows_the_new_total_too(tmp_path: Path) -> None:
    settings = {"epsilon_start": 1.0, "epsilon_end": 0.0, "exploration_fraction": 1.0, "learning_starts": 0}
    result = train(smoke_config(tmp_path, total_timesteps=100, algo_kwargs=settings))
    resume_training(result.run_dir, total_timesteps=200, extend_schedule=True)
    records = [json.loads(line) for line in (result.run_dir / "metrics.jsonl").read_text().splitlines()]
    explored = {record["step"]: record["rollout/exploration_rate"] for record in records if "rollout/exploration_rate" in record}
    assert explored == pytest.approx({50: 0.5, 100: 0.0, 150: 0.25, 200: 0.0})  # 1 − t/100, then 1 − t/200


def agent_of(folder: Path, **keywords: Any) -> DQN:
    settings: dict[str, Any] = {"hidden_sizes": [8], "batch_size": 8, "buffer_capacity": 500, "learning_starts": 20}
    return DQN("CartPole-v1", output_dir=folder, eval_episodes=1, log_interval=50, **settings, **LINEAR, **keywords)


def test_in_python_a_later_learn_extends_where_it_is_told_to(tmp_path: Path) -> None:
    agent = agent_of(tmp_path)
    agent.learn(100)
    with pytest.warns(UserWarning, match="learning_rate is 0 from step 100 on"):
        result = agent.learn(50)
    assert rates(result.run_dir)[150] == 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = agent.learn(50, extend_schedule=True)  # to 200 steps in all
    assert rates(result.run_dir)[200] == 0
    result = agent.learn(200, extend_schedule=True)
    assert rates(result.run_dir)[300] == pytest.approx(1e-3 * (1 - 300 / 400))
    said = agent_of(tmp_path / "said", total_timesteps=50).learn(100, extend_schedule=True)
    assert rates(said.run_dir)[50] == pytest.approx(0.5e-3)


def test_the_command_line_takes_a_run_of_python_to_its_total(cli: Cli, tmp_path: Path) -> None:
    first = agent_of(tmp_path / "runs", total_timesteps=120).learn(60)
    assert load_config(first.run_dir / "config.yaml").total_timesteps == 60
    outcome = cli("resume", "--checkpoint", str(first.run_dir), "--quiet")
    assert (outcome.code, outcome.err) == (0, "") and open_checkpoint(first.run_dir).step == 120
    whole = agent_of(tmp_path / "whole", total_timesteps=120).learn()
    for name in ("model", "training", "replay"):
        resumed, uninterrupted = (open_checkpoint(run).path / f"{name}.safetensors" for run in (first.run_dir, whole.run_dir))
        assert resumed.read_bytes() == uninterrupted.read_bytes()


def test_a_resume_with_nothing_to_do_says_so(cli: Cli, trained: Path) -> None:
    before = model_bytes(trained)
    for options in ((), ("--total-timesteps", "120")):
        outcome = cli("resume", "--checkpoint", str(trained), "--quiet", *options)
        assert outcome.code == 0 and model_bytes(trained) == before
        assert outcome.err == (
            "warning: the run is at its end already (step 120 of 120): nothing is trained; a larger total_timesteps goes on\n"
        )


def test_a_resume_with_an_evaluation_left_says_nothing(cli: Cli, here: Path) -> None:
    """After a Ctrl-C in the last evaluation the command that goes on does what is left, and there is nothing to be warned of."""

    class AtTheEnd(Callback):
        def on_checkpoint(self, run: Any, path: Path) -> None:
            if run.clock.env_steps == 120:
                signal.raise_signal(signal.SIGINT)

    with pytest.raises(Interrupted) as stopped:
        train(load_config("small.yaml"), callbacks=[AtTheEnd()])
    run_dir = stopped.value.run_dir
    assert run_dir is not None and "eval/mean_reward" not in (run_dir / "metrics.jsonl").read_text()
    outcome = cli("resume", "--checkpoint", str(run_dir), "--quiet")
    assert (outcome.code, outcome.err) == (0, "") and "eval/mean_reward" in (run_dir / "metrics.jsonl").read_text()
    assert outcome.out == f"{run_dir}/checkpoints/step_120\n"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"algo_kwargs": {"epsilon_ladder": True}}, "epsilon_ladder over one environment is ε = 0.4 for ever"),
        ({"algo_kwargs": {"epsilon_ladder": True}, "num_envs": 2}, None),
        ({"algo_kwargs": {"learning_starts": 3_001}}, "nothing is learned: learning_starts is 3,001 and the run ends at step 3,000"),
        ({"algo_kwargs": {"learning_starts": 3_001}, "schedule_timesteps": 6_000}, None),  # a piece of a longer run
        ({"algo_kwargs": LINEAR, "schedule_timesteps": 2_000}, "learning_rate is 0 from step 2,000 on"),
        ({"algo_kwargs": {**LINEAR, "learning_rate_end": 1e-5}, "schedule_timesteps": 2_000}, None),
        ({"algo": "ppo", "algo_kwargs": {"clip_schedule": "linear", "num_steps": 8}, "schedule_timesteps": 2_000}, "clip_coef is 0 from"),
    ],
)
def test_what_nobody_means_is_said(changes: dict[str, Any], said: str | None, tmp_path: Path) -> None:
    values: dict[str, Any] = {
        "algo": "dqn",
        "env_id": "CartPole-v1",
        "seed": 0,
        "total_timesteps": 3_000,
        "output_dir": tmp_path,
        **changes,
    }
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        check_sanity(TrainConfig(**values))
    assert [str(warning.message).startswith(said or "") for warning in caught] == ([True] if said else [])


@pytest.mark.parametrize(("arguments", "gamma"), [({}, 0.9), ({"gamma": 0.5}, 0.5)])
def test_normalised_rewards_are_discounted_as_the_row_discounts(arguments: dict[str, float], gamma: float, tmp_path: Path) -> None:
    wrappers = [{"normalize_reward": arguments}]
    config = smoke_config(tmp_path, algo_kwargs={"gamma": 0.9}, env_kwargs={"wrappers": wrappers})
    envs = prepare(config, None).envs
    assert envs.reward_normalizer is not None
    envs.reset()
    for _ in range(3):
        envs.step(envs.single_action_space.sample()[None] % 2)
    # CartPole gives 1 a step: R = 1 + γ + γ²
    assert envs.reward_normalizer.state_dict()["returns"] == pytest.approx([1 + gamma + gamma**2])
    envs.close()

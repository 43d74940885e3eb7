"""Constant, linear, cosine and piecewise schedules, warm-up and callables: their values, what a config may say, and exact resume."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from command_line import SMALL, Cli
from rl_training import DQN, PPO, TrainConfig, register_schedule
from rl_training.algorithms.schedules import CosineSchedule, LinearSchedule, PiecewiseSchedule, WarmUp
from rl_training.errors import ConfigError, RunError
from rl_training.experiment import schedules as named
from rl_training.experiment.checkpointing import open_checkpoint
from rl_training.experiment.config import load_config
from rl_training.experiment.registry import algorithm_names, get_algorithm_spec
from rl_training.experiment.settings import LearningSettings
from rl_training.runtime import schedules
from rl_training.runtime.workflows import resume_training, train
from test_dqn_trainer_smoke import smoke_config
from test_ppo_trainer_smoke import small_config

PIECEWISE = {"schedule": "piecewise", "points": [[0, 1e-3], [50_000, 1e-4]]}


@pytest.fixture(autouse=True)
def _own_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(named, "_NAMED", {})


# Values


def test_cosine_in_closed_form() -> None:
    # 0.2 + 0.8·(1 + cos(π·t/100))/2: cos is 1, 1/√2, 0, −1 at t = 0, 25, 50, 100
    cosine = CosineSchedule(1.0, 0.2, 100)
    expected = [1.0, 0.2 + 0.4 * (1 + 1 / math.sqrt(2)), 0.6, 0.2, 0.2]
    assert [cosine(step) for step in (0, 25, 50, 100, 1_000)] == pytest.approx(expected, rel=1e-12)


def test_piecewise_in_closed_form() -> None:
    # from 1 to 0.5 over steps 10–20, a jump to 3 at 20, constant outside
    points = PiecewiseSchedule(((10, 1.0), (20, 0.5), (20, 3.0), (40, 2.0)))
    values = {0: 1.0, 10: 1.0, 14: 0.8, 19: 0.55, 20: 3.0, 30: 2.5, 40: 2.0, 99: 2.0}
    assert {step: points(step) for step in values} == pytest.approx(values)


def test_a_warm_up_rises_to_where_the_schedule_begins() -> None:
    # 0 to 1 over 4 steps, then 1 to 0 over the next 10
    rate = WarmUp(4, LinearSchedule(1.0, 0.0, 10))
    assert [rate(step) for step in (0, 1, 3, 4, 9, 14, 20)] == pytest.approx([0, 0.25, 0.75, 1.0, 0.5, 0.0, 0.0])


@pytest.mark.parametrize(
    ("value", "at"),
    [
        (0.5, {0: 0.5, 99: 0.5}),
        ({"schedule": "constant", "value": 0.5}, {0: 0.5, 99: 0.5}),
        ({"schedule": "constant", "value": 0.5, "warmup": 10}, {0: 0.0, 5: 0.25, 10: 0.5, 99: 0.5}),
        ({"schedule": "linear", "start": 1.0, "end": 0.5}, {0: 1.0, 50: 0.75, 100: 0.5}),
        ({"schedule": "linear", "start": 1.0, "fraction": 0.5}, {25: 0.5, 50: 0.0, 100: 0.0}),
        # from 1 at step 20 to 0 at step 100: half of it at 60
        ({"schedule": "linear", "start": 1.0, "warmup": 20}, {10: 0.5, 20: 1.0, 60: 0.5, 100: 0.0}),
        ({"schedule": "cosine", "start": 1.0}, {0: 1.0, 50: 0.5, 100: 0.0}),
        ({"schedule": "cosine", "start": 1.0, "warmup": 20}, {10: 0.5, 60: 0.5, 100: 0.0}),
        ({"schedule": "piecewise", "points": [[0, 1.0], [40, 0.0]]}, {10: 0.75, 40: 0.0, 100: 0.0}),
    ],
)
@pytest.mark.parametrize("key", ["learning_rate", "epsilon", "clip_coef"])
def test_what_a_config_says_over_100_steps(value: Any, at: dict[int, float], key: str) -> None:
    settings: Any = get_algorithm_spec("ppo" if key == "clip_coef" else "dqn").parse({key: value})
    make: Callable[..., Any] = {
        "learning_rate": schedules.learning_rate,
        "epsilon": schedules.epsilon,
        "clip_coef": schedules.clip_range,
    }[key]
    made = make(settings, 100)
    assert {step: made(step) if callable(made) else made for step in at} == pytest.approx(at)


def test_the_keys_that_were_there_before_mean_what_they_meant() -> None:
    dqn: Any = get_algorithm_spec("dqn").parse({"lr_schedule": "linear", "learning_rate": 1e-3, "learning_rate_end": 1e-4})
    assert schedules.learning_rate(dqn, 100) == LinearSchedule(1e-3, 1e-4, 100)
    assert schedules.epsilon(dqn, 100) == LinearSchedule(1.0, 0.05, 20)
    ppo: Any = get_algorithm_spec("ppo").parse({"clip_schedule": "linear"})
    assert schedules.clip_range(ppo, 100) == LinearSchedule(0.2, 0.0, 100) and schedules.learning_rate(ppo, 100) == 3e-4


# Configs


@pytest.mark.parametrize("row", [name for name in algorithm_names() if issubclass(get_algorithm_spec(name).settings, LearningSettings)])
def test_every_row_takes_a_schedule_and_gives_it_back(row: str) -> None:
    spec = get_algorithm_spec(row)
    settings = spec.parse({"learning_rate": PIECEWISE})
    assert settings.to_dict()["learning_rate"] == PIECEWISE and spec.parse(settings.to_dict()) == settings


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("learning_rate", {"schedule": "cosin"}, "learning_rate.schedule has no 'cosin'; did you mean cosine?"),
        ("learning_rate", {"start": 1.0}, "learning_rate must be a number, or a mapping that says which schedule: constant, linear,"),
        ("learning_rate", {"schedule": "cosine"}, "learning_rate.start is missing"),
        ("learning_rate", {"schedule": "cosine", "start": 1, "ende": 0}, "learning_rate.ende is not a key of a cosine schedule; did you"),
        ("learning_rate", {"schedule": "linear", "start": -1.0}, "learning_rate.start must be >= 0, got -1"),
        ("learning_rate", {"schedule": "linear", "start": "1"}, "learning_rate.start must be a number, got '1'"),
        (
            "learning_rate",
            {"schedule": "piecewise", "points": [[5, 1], [3, 1]]},
            "learning_rate.points must be in the order of their steps",
        ),
        ("learning_rate", {"schedule": "piecewise", "points": []}, "learning_rate.points must hold at least 1 values, got 0"),
        ("learning_rate", {"schedule": "piecewise", "points": [[0, 1.0], [9, -2.0]]}, "learning_rate.points.1.1 must be >= 0, got -2"),
        ("epsilon", {"schedule": "linear", "start": 1.5}, "epsilon.start must be <= 1, got 1.5"),
        ("epsilon", 1.5, "epsilon must be <= 1.0, got 1.5"),
        ("learning_rate", 0, "learning_rate must be > 0.0, got 0"),
    ],
)
def test_a_schedule_that_cannot_be_is_named(key: str, value: Any, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        get_algorithm_spec("dqn").parse({key: value})
    assert str(caught.value).startswith(f"algo_kwargs.{message}")


@pytest.mark.parametrize(
    ("row", "values", "message"),
    [
        ("dqn", {"learning_rate": PIECEWISE, "lr_schedule": "linear"}, "lr_schedule is linear, and learning_rate is a schedule itself"),
        ("ppo", {"clip_coef": PIECEWISE, "clip_schedule": "linear"}, "clip_schedule is linear, and clip_coef is a schedule itself"),
        ("dqn", {"epsilon": 0.1, "epsilon_end": 0.2}, "epsilon_end needs epsilon: null"),
        ("dqn", {"epsilon": 0.1, "epsilon_ladder": True}, "epsilon and epsilon_ladder: give one of them"),
    ],
)
def test_two_schedules_of_one_thing_are_refused(row: str, values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        get_algorithm_spec(row).parse(values)


def test_the_command_line_takes_them(cli: Cli) -> None:
    rate = "algo_kwargs.learning_rate={schedule: piecewise, points: [[0, 1e-3], [100, 5e-4]]}"
    done = cli("train", "--config", "small.yaml", "--set", rate, "--set", "log_interval=50", "--quiet")
    assert done.code == 0, done.err
    records = [json.loads(line) for line in (Path(done.out.strip()).parent.parent / "metrics.jsonl").read_text().splitlines()]
    assert [each["train/learning_rate"] for each in records if "train/learning_rate" in each][:2] == pytest.approx([7.5e-4, 5e-4])


# Runs


def fingerprint(run_dir: Path) -> list[bytes]:
    return [(open_checkpoint(run_dir).path / f"{name}.safetensors").read_bytes() for name in ("model", "training", "replay")]


@pytest.mark.parametrize("algo", ["dqn", "ppo"])
def test_a_run_in_pieces_ends_as_a_whole_one(algo: str, tmp_path: Path) -> None:
    rates: dict[str, Any] = {"learning_rate": {"schedule": "cosine", "start": 1e-2, "end": 1e-4, "warmup": 40}}
    if algo == "dqn":
        rates["epsilon"] = {"schedule": "piecewise", "points": [[0, 1.0], [60, 0.3], [200, 0.0]]}
        make: Callable[..., TrainConfig] = smoke_config
    else:
        rates["clip_coef"] = {"schedule": "cosine", "start": 0.3, "end": 0.1}

        def make(folder: Path, **changes: Any) -> TrainConfig:
            return small_config(folder, "ppo", **changes)

    whole = train(make(tmp_path / "whole", total_timesteps=256, algo_kwargs=rates))
    part = train(make(tmp_path / "part", total_timesteps=100, schedule_timesteps=256, algo_kwargs=rates))
    part = resume_training(part.run_dir, total_timesteps=256)
    assert fingerprint(part.run_dir) == fingerprint(whole.run_dir)
    assert load_config(part.run_dir / "config.yaml").settings == load_config(whole.run_dir / "config.yaml").settings


def test_extended_a_cosine_runs_over_the_new_total_and_points_stay(tmp_path: Path) -> None:
    rates = {"learning_rate": {"schedule": "cosine", "start": 1e-3}, "epsilon": {"schedule": "piecewise", "points": [[0, 1.0], [200, 0.0]]}}
    config = smoke_config(tmp_path, total_timesteps=100, log_interval=50, algo_kwargs={**rates, "learning_starts": 20})
    result = resume_training(train(config).run_dir, total_timesteps=200, extend_schedule=True)
    records = [json.loads(line) for line in (result.run_dir / "metrics.jsonl").read_text().splitlines()]
    logged = {each["step"]: (each["train/learning_rate"], each["rollout/exploration_rate"]) for each in records if "time/fps" in each}
    # cos(π/2) = 0 at 50 of 100; then over 200: (1 + cos(3π/4))/2 at 150
    expected = {50: (0.5e-3, 0.75), 100: (0.0, 0.5), 150: (1e-3 * (1 - 1 / math.sqrt(2)) / 2, 0.25), 200: (0.0, 0.0)}
    for step, pair in expected.items():
        assert logged[step] == pytest.approx(pair, abs=1e-12)


def test_a_cosine_that_ended_at_zero_is_said(tmp_path: Path) -> None:
    config = smoke_config(tmp_path, total_timesteps=60, algo_kwargs={"learning_rate": {"schedule": "cosine", "start": 1e-3}})
    run = train(config).run_dir
    with pytest.warns(UserWarning, match="learning_rate is 0 from step 60 on, where its schedule ends"):
        resume_training(run, total_timesteps=80)


# Callables


def tiny(folder: Path, **keywords: Any) -> DQN:
    settings: dict[str, Any] = {"hidden_sizes": [8], "batch_size": 8, "buffer_capacity": 500, "learning_starts": 20}
    return DQN("CartPole-v1", output_dir=folder, eval_episodes=1, total_timesteps=150, log_interval=50, **settings, **keywords)


def halving(env_steps: int) -> float:
    return 1e-3 * 0.5 ** (env_steps / 50)


def test_a_callable_is_a_schedule_and_is_passed_again_to_go_on(tmp_path: Path) -> None:
    whole = tiny(tmp_path / "whole", learning_rate=halving).learn()
    agent = tiny(tmp_path / "parts", learning_rate=halving)
    assert agent.config.algo_kwargs["learning_rate"] == {"schedule": "callable:halving"}
    agent.learn(70)
    part = agent.learn()  # the same object knows it still
    assert fingerprint(part.run_dir) == fingerprint(whole.run_dir)
    records = [json.loads(line) for line in (whole.run_dir / "metrics.jsonl").read_text().splitlines()]
    rates = {each["step"]: each["train/learning_rate"] for each in records if "train/learning_rate" in each}
    assert rates == pytest.approx({50: 5e-4, 100: 2.5e-4, 150: 1.25e-4})


def test_another_process_is_told_to_pass_it_again(tmp_path: Path) -> None:
    whole = tiny(tmp_path / "whole", learning_rate=halving).learn()
    run = tiny(tmp_path / "parts", learning_rate=halving).learn(70).run_dir
    named._NAMED.clear()  # as in another process
    assert DQN.load(run).predict([0.0, 0.0, 0.0, 0.0])[0] in (0, 1)  # a policy does not need it
    with pytest.raises(ConfigError, match=r"learning_rate of this run is a callable \(callable:halving\): pass it again, schedules="):
        DQN.resume(run).learn()
    with pytest.raises(ConfigError, match="schedules: epsilon of this run is no callable"):
        DQN.resume(run, schedules={"epsilon": halving}).learn()
    resumed = DQN.resume(run, schedules={"learning_rate": halving}).learn()
    assert fingerprint(resumed.run_dir) == fingerprint(whole.run_dir)


def test_two_callables_of_one_name_are_told_apart() -> None:
    first, second = (DQN("CartPole-v1", epsilon=lambda step, rate=rate: rate) for rate in (0.1, 0.2))
    for agent, rate in ((first, 0.1), (second, 0.2)):
        assert schedules.epsilon(agent.config.replace(seed=3).settings, 100)(7) == rate  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [float("nan"), -1.0])
def test_a_callable_that_gives_nonsense_ends_the_run(value: float, tmp_path: Path) -> None:
    with pytest.raises(RunError, match=rf"the schedule of learning_rate gave {value} at step \d+: it must be a number >= 0"):
        tiny(tmp_path, learning_rate=lambda step: value).learn()


def test_a_registered_schedule_has_a_name_for_configs() -> None:
    with pytest.raises(ConfigError, match=r"learning_rate\.schedule has no 'halving'"):
        TrainConfig(**{**SMALL, "algo_kwargs": {"learning_rate": {"schedule": "halving"}}})
    register_schedule("halving", halving)
    settings: Any = TrainConfig(**{**SMALL, "algo_kwargs": {"learning_rate": {"schedule": "halving"}}}).settings
    made: Any = schedules.learning_rate(settings, 100)
    assert made(100) == pytest.approx(2.5e-4) and settings.to_dict()["learning_rate"] == {"schedule": "halving"}
    for name in ("halving", "linear", "callable:x"):
        with pytest.raises(ConfigError, match="is already registered, or reserved"):
            register_schedule(name, halving)


def test_ppo_clips_by_a_callable(tmp_path: Path) -> None:
    agent = PPO(
        "CartPole-v1", output_dir=tmp_path, num_steps=32, hidden_sizes=(8,), eval_episodes=1, clip_coef=lambda step: 0.1 + step / 1e3
    )
    assert agent.learn(64).metrics["num_updates"] > 0

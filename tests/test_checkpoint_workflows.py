"""What users do with checkpoints: evaluate, resume, predict; and what is left after a failure."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
import yaml

from checkpoint_files import edit
from rl_training.errors import CheckpointError, ConfigError, RunError, SpaceError, UserError
from rl_training.experiment.checkpoint_store import CheckpointStore
from rl_training.experiment.checkpointing import open_checkpoint
from rl_training.models.network import Facts
from rl_training.runtime import workflows
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.devices import Resolved
from rl_training.runtime.evaluator import Evaluation
from rl_training.runtime.run import Run
from rl_training.runtime.workflows import evaluate_checkpoint, fresh_policy, load_policy, resume_training, train
from rl_training.types import EnvStep
from test_dqn_trainer_smoke import smoke_config


def test_wherever_a_checkpoint_is_taken_several_paths_will_do(tmp_path: Path) -> None:
    result = train(smoke_config(tmp_path))
    places = [
        result.run_dir,
        result.checkpoint_path,
        result.checkpoint_path / "model.safetensors",
        result.run_dir / "checkpoints" / "latest",
    ]
    scores = [evaluate_checkpoint(place, num_episodes=3) for place in places]
    assert all(score == scores[0] for score in scores)
    assert scores[0]["eval_episodes"] == 3


def test_the_final_evaluation_is_that_of_the_saved_policy(tmp_path: Path) -> None:
    result = train(smoke_config(tmp_path))
    again = evaluate_checkpoint(result.checkpoint_path, num_episodes=2)
    assert again["eval_return_mean"] == result.metrics["eval_return_mean"]
    other = evaluate_checkpoint(result.checkpoint_path, num_episodes=20, seed=99)
    assert other["eval_return_mean"] != evaluate_checkpoint(result.checkpoint_path, num_episodes=20)["eval_return_mean"]


def test_a_policy_is_evaluated_where_it_was_trained_or_where_one_asks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here `meta`, which holds no numbers, stands for a GPU."""
    result = train(smoke_config(tmp_path))
    asked: list[tuple[str, int]] = []
    played: list[set[str]] = []

    def resolve(device: str, facts: Facts) -> Resolved:
        asked.append((device, facts.parameters))
        return Resolved("meta", "asked here")

    def play(network: torch.nn.Module, make_envs: Any, **given: Any) -> Evaluation:
        played.append({p.device.type for p in network.parameters()} | {given["device"].type})
        return Evaluation(np.ones(1), np.ones(1))

    monkeypatch.setattr(workflows, "resolve_device", resolve)
    monkeypatch.setattr(workflows, "evaluate", play)
    evaluate_checkpoint(result.checkpoint_path)
    evaluate_checkpoint(result.checkpoint_path, device="cuda:3")
    assert asked == [("cpu", 16 * 5 + 2 * 17), ("cuda:3", 16 * 5 + 2 * 17)]  # 4 inputs, 16 units, 2 actions
    assert played == [{"meta"}, {"meta"}]


class _Elsewhere(torch.nn.Linear):
    """A network that can be sent to a GPU that is not here."""

    facts = Facts(parameters=4, recurrent=False, convolutional=True)

    def to(self, device: Any) -> _Elsewhere:  # type: ignore[override]  # torch's takes more
        self.sent = str(device)
        return self


@pytest.mark.parametrize(
    ("trained_on", "trained_in", "precision"),
    [("cuda", "float32", "float32"), ("cuda:1", "tf32", "tf32"), ("cpu", "bf16", "tf32")],  # a CPU's precision says nothing of a GPU
)
def test_on_a_gpu_a_policy_has_its_run_s_precision(
    trained_on: str, trained_in: str, precision: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: list[tuple[str, str]] = []
    monkeypatch.setattr(workflows, "resolve_device", lambda device, facts: Resolved("cuda", "asked here"))
    monkeypatch.setattr(workflows, "use_precision", lambda network, name, device: used.append((name, str(device))))
    network = _Elsewhere(2, 2)
    config = smoke_config(tmp_path).replace(device=trained_on, precision=trained_in)
    assert str(workflows._place(network, config, "cuda")) == network.sent == "cuda"  # type: ignore[arg-type]  # a part of a network
    assert used == [(precision, "cuda")]


def test_without_the_run_s_gpu_a_policy_is_evaluated_on_the_cpu(tmp_path: Path) -> None:
    """Unless that GPU was asked for."""
    network = _Elsewhere(2, 2)
    config = smoke_config(tmp_path).replace(device="cuda:999")  # no machine has it
    assert str(workflows._place(network, config, None)) == network.sent == "cpu"  # type: ignore[arg-type]  # a part of a network
    with pytest.raises(ConfigError, match="device cuda:999 was asked for"):
        workflows._place(network, config, "cuda:999")  # type: ignore[arg-type]  # a part of a network


def test_two_processes_do_not_train_in_one_run(tmp_path: Path) -> None:
    """A second resume would cut the records and checkpoints that the first is writing."""
    refused: list[str] = []

    class ResumesItself(Callback):
        def on_step(self, run: Run, step: EnvStep) -> None:
            if run.clock.env_steps == 150:
                before = sorted(run.directory.path.rglob("*"))
                with pytest.raises(UserError, match="another process is training in this run") as caught:
                    resume_training(run.directory.path)
                refused.append(str(caught.value))
                assert sorted(run.directory.path.rglob("*")) == before

    result = train(smoke_config(tmp_path, total_timesteps=200, checkpoint_interval=100), callbacks=[ResumesItself()])
    assert len(refused) == 1
    resume_training(result.run_dir, total_timesteps=250)  # free again when the run is over


def test_predict_from_a_checkpoint_is_the_networks_argmax(tmp_path: Path) -> None:
    result = train(smoke_config(tmp_path))
    policy = load_policy(result.checkpoint_path)
    obs = np.random.default_rng(0).normal(size=(32, 4)).astype(np.float32)
    actions, state = policy.predict(obs)
    with torch.no_grad():
        expected = policy.network.q_values(torch.from_numpy(obs)).argmax(-1).numpy()
    np.testing.assert_array_equal(actions, expected)
    assert state == ()
    one, _ = policy.predict(obs[3])
    assert one == expected[3] and isinstance(one, int)
    with pytest.raises(UserError, match=r"shape \(4,\)"):
        policy.predict(np.zeros(3))


def test_a_noisy_policy_explores_by_its_noise_alone(tmp_path: Path) -> None:
    noisy = smoke_config(tmp_path, algo="noisy_dqn", algo_kwargs={"epsilon_end": 1.0, "noisy_sigma": 1e-6})
    policy, obs = fresh_policy(noisy), np.random.default_rng(0).normal(size=(32, 4)).astype(np.float32)
    np.testing.assert_array_equal(policy.predict(obs, deterministic=False)[0], policy.predict(obs)[0])
    plain = fresh_policy(smoke_config(tmp_path, algo_kwargs={"epsilon_end": 1.0}))
    assert (plain.predict(obs, deterministic=False)[0] != plain.predict(obs)[0]).any()


def test_a_compiled_run_goes_on_where_there_is_no_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = train(smoke_config(tmp_path))
    assert open_checkpoint(result.run_dir).config.compile is False
    edit(result.checkpoint_path, lambda manifest: manifest["config"].update(compile=True))  # as `auto` says where compiling pays
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.warns(RuntimeWarning, match=r"goes on without compiling.*no-such-compiler"):
        again = resume_training(result.run_dir, total_timesteps=result.metrics["global_step"] + 20)
    assert again.metrics["global_step"] == result.metrics["global_step"] + 20


def test_fresh_policy_is_the_one_training_starts_from(tmp_path: Path) -> None:
    config = smoke_config(tmp_path, total_timesteps=20)  # ends before learning_starts: nothing is learned
    trained = load_policy(train(config).checkpoint_path)
    fresh = fresh_policy(config)
    for a, b in zip(fresh.network.parameters(), trained.network.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)


def test_resume_moves_only_the_end(tmp_path: Path) -> None:
    """A run of 300 steps resumed to 500 keeps its schedules: ε and the learning rate are those of a total of 300."""
    settings = {"lr_schedule": "linear", "exploration_fraction": 1.0}
    first = train(smoke_config(tmp_path / "a", algo_kwargs=settings))
    result = resume_training(first.run_dir, total_timesteps=500)
    assert result.run_dir == first.run_dir and result.metrics["global_step"] == 500
    config = open_checkpoint(result.checkpoint_path).config
    assert (config.total_timesteps, config.horizon) == (500, 300)
    with pytest.raises(ConfigError, match="absolute"):
        resume_training(first.run_dir, total_timesteps=200)


def test_resume_cuts_records_past_the_checkpoint(tmp_path: Path) -> None:
    class DieAt(Callback):
        def on_step(self, run: Run, step: EnvStep) -> None:
            if run.clock.env_steps == 240:
                raise RunError("died")

    config = smoke_config(tmp_path)
    with pytest.raises(RunError, match=r"died \(the last checkpoint is .*step_150\)"):
        train(config, callbacks=[DieAt()])
    (run_dir,) = tmp_path.iterdir()
    result = resume_training(run_dir)
    steps = [yaml.safe_load(line)["step"] for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    assert steps == sorted(steps) and steps.count(200) == 2  # one record of training and one of evaluation, not two of each
    assert result.metrics["global_step"] == 300


def test_a_run_without_a_checkpoint_starts_over_in_its_directory(tmp_path: Path) -> None:
    class DieAt(Callback):
        def on_step(self, run: Run, step: EnvStep) -> None:
            if run.clock.env_steps == 130:  # after the evaluation at 100, whose `best` is no checkpoint to resume from
                raise RunError("died")

    config = smoke_config(tmp_path / "a")
    with pytest.raises(RunError, match="no checkpoint had been saved yet"):
        train(config, callbacks=[DieAt()])
    (run_dir,) = (tmp_path / "a").iterdir()
    resumed = resume_training(run_dir)
    reference = train(config.replace(output_dir=str(tmp_path / "b")))
    assert resumed.run_dir == run_dir
    for name in ("model", "training", "replay"):
        a, b = (result.checkpoint_path / f"{name}.safetensors" for result in (resumed, reference))
        assert a.read_bytes() == b.read_bytes(), name


def test_resume_without_replay_says_so_and_fills_it_first(tmp_path: Path) -> None:
    updates: list[int] = []

    class Count(Callback):
        def on_step(self, run: Run, step: EnvStep) -> None:
            updates.append(run.clock.updates)

    first = train(smoke_config(tmp_path, checkpoint_replay=False))
    assert not (first.checkpoint_path / "replay.safetensors").exists()
    with pytest.warns(UserWarning, match="holds no replay"):
        resume_training(first.run_dir, total_timesteps=400, callbacks=[Count()])
    # learning_starts is 50: the 49 steps 301 … 349 make no update, and from 350 on there is one per multiple of 4 (352 is the first)
    assert set(updates[:51]) == {63} and updates[51] == 64


class Faulty(gym.Env[Any, Any]):
    """CartPole-like, until step 200 of all its steps: then what `fault` says."""

    observation_space = gym.spaces.Box(-1, 1, (3,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, fault: str) -> None:
        self.fault, self.count = fault, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.t = 0
        return np.zeros(3, np.float32), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        self.count += 1
        obs, reward = np.full(3, self.t / 100, np.float32), 1.0
        if self.count == 200:
            if self.fault == "raise":
                raise ZeroDivisionError("the physics broke")
            if self.fault == "nan observation":
                obs[1] = np.nan
            if self.fault == "nan reward":
                reward = float("nan")
        return obs, reward, self.t == 20, False, {}


@pytest.mark.parametrize("fault", ["raise", "nan observation", "nan reward"])
def test_a_broken_environment_is_named_and_the_last_checkpoint_stays(fault: str, tmp_path: Path) -> None:
    made = 0

    def make() -> gym.Env[Any, Any]:
        nonlocal made
        made += 1
        return Faulty(fault if made == 2 else "none")  # environment 1 of 2 is the broken one

    config = smoke_config(tmp_path, env_id="callable:make", num_envs=2, total_timesteps=1_000)
    with pytest.raises(RunError) as caught:
        train(config, env=make)
    message = str(caught.value)
    # its 200th step is the 20th of its tenth episode
    assert "environment 1" in message and "step 20 of its episode 9" in message and "step_300" in message and "\n" not in message
    (run_dir,) = tmp_path.iterdir()
    assert open_checkpoint(run_dir).step == 300
    assert load_policy(run_dir).predict(np.zeros(3))[0] in (0, 1)


def test_spaces_a_row_does_not_take_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    config = smoke_config(tmp_path, env_id="Pendulum-v1")
    with pytest.raises(SpaceError, match=r"dqn cannot act in the action space Box.*Discrete"):
        train(config)
    with pytest.raises(SpaceError, match=r"dqn cannot learn from the observation space Discrete.*flatten"):
        train(smoke_config(tmp_path, env_id="FrozenLake-v1"))
    assert list(tmp_path.iterdir()) == []


def test_a_buffer_that_does_not_fit_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"buffer .*GiB"):
        train(smoke_config(tmp_path, algo_kwargs={"buffer_capacity": 10**10}))
    assert list(tmp_path.iterdir()) == []


def test_a_model_of_other_sizes_is_refused(tmp_path: Path) -> None:
    small, large = train(smoke_config(tmp_path / "a")), train(smoke_config(tmp_path / "b", algo_kwargs={"hidden_sizes": [32]}))
    (small.checkpoint_path / "model.safetensors").write_bytes((large.checkpoint_path / "model.safetensors").read_bytes())
    edit(small.checkpoint_path)
    with pytest.raises(CheckpointError, match=r"float32\[32,4\], but the manifest says .float32\[16,4\]"):
        load_policy(small.checkpoint_path)


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_run_saves_and_leaves_with_its_code(signum: int, code: int, tmp_path: Path) -> None:
    config = smoke_config(tmp_path / "runs", total_timesteps=10**7, checkpoint_interval=0, eval_interval=0, compile=False)
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(config.to_dict()))
    process = subprocess.Popen(
        [sys.executable, "-m", "rl_training", "train", "--config", str(path), "--quiet"],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    deadline = time.monotonic() + 120
    while not any((tmp_path / "runs").glob("*/metrics.jsonl")) or not next((tmp_path / "runs").glob("*/metrics.jsonl")).stat().st_size:
        assert process.poll() is None and time.monotonic() < deadline, "the run did not get under way"
        time.sleep(0.05)
    process.send_signal(signum)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == code, errors
    assert "Traceback" not in errors and len(errors.strip().splitlines()) == 1
    (run_dir,) = (tmp_path / "runs").iterdir()
    saved = open_checkpoint(run_dir)
    assert saved.step > 0 and saved.load_replay() is not None


def test_a_full_disk_keeps_the_last_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from rl_training.experiment import checkpoint_store

    calls = 0
    original = checkpoint_store.write_tensors

    def full_at_the_third(*args: Any, **keywords: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls > 6:  # model, training and replay of two checkpoints were written
            raise OSError(28, "No space left on device")
        return original(*args, **keywords)

    monkeypatch.setattr(checkpoint_store, "write_tensors", full_at_the_third)
    with pytest.raises(RunError, match="No space left on device"):
        train(smoke_config(tmp_path, eval_interval=0, checkpoint_interval=100))
    (run_dir,) = tmp_path.iterdir()
    assert open_checkpoint(run_dir).step == 200
    assert load_policy(run_dir).predict(np.zeros(4))[0] in (0, 1)
    assert not list((run_dir / "checkpoints").glob(".*"))


class Killed(BaseException):
    """Stands for SIGKILL at one exact place."""


@pytest.mark.parametrize("place", ["before best is linked", "after the final checkpoint"])
def test_a_kill_between_saving_and_the_next_thing_loses_nothing(place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = smoke_config(tmp_path / "a", eval_interval=150)  # evaluations fall on checkpoints: 150 and 300
    reference = train(config.replace(output_dir=str(tmp_path / "b")))

    with monkeypatch.context() as patch:
        if place == "before best is linked":

            def die(*args: Any) -> None:
                raise Killed

            patch.setattr(CheckpointStore, "mark_best", die)
        else:
            original = Run.checkpoint

            def die_at_the_end(self: Run) -> Path:
                path = original(self)
                if self.clock.env_steps == 300:
                    raise Killed
                return path

            patch.setattr(Run, "checkpoint", die_at_the_end)
        with pytest.raises(Killed):
            train(config)
    (run_dir,) = (tmp_path / "a").iterdir()
    resumed = resume_training(run_dir)

    def left_behind(run: Path) -> tuple[Any, Any]:
        records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        untimed = [{key: value for key, value in record.items() if not key.startswith("time/")} for record in records]
        return untimed, (run / "checkpoints" / "best").readlink()

    assert left_behind(resumed.run_dir) == left_behind(reference.run_dir)


def test_a_loaded_policy_normalises_as_training_did(tmp_path: Path) -> None:
    """The policy sees (obs − mean)/√(var + eps) with the training run's statistics: what evaluation sees in its environments."""
    config = smoke_config(tmp_path, env_kwargs={"wrappers": ["normalize_observation"]})
    result = train(config)
    policy = load_policy(result.checkpoint_path)
    state = open_checkpoint(result.checkpoint_path).load_training()["actor"]["envs"]["statistics"]["observation"]
    assert int(state["count"]) >= 300
    mean, var = np.asarray(state["mean"]), np.asarray(state["m2"]) / int(state["count"])
    obs = np.random.default_rng(0).normal(size=(8, 4)).astype(np.float32)
    expected = np.clip((obs - mean) / np.sqrt(var + 1e-8), -10, 10).astype(np.float32)
    with torch.no_grad():
        q_values = policy.network.q_values(torch.from_numpy(expected)).numpy()
    np.testing.assert_allclose(policy.q_values(obs)[0], q_values, rtol=1e-5)
    assert evaluate_checkpoint(result.checkpoint_path, num_episodes=2)["eval_return_mean"] == result.metrics["eval_return_mean"]
